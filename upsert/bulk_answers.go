package upsert

// placed is the result of the row at pos.
type placed[T any] struct {
	pos int
	res Result[T]
}

// line is one row of the statement's answer. Where written rows are listed, the lines of one key follow each other,
// and the one for the row that was written has pos -1 and comes first.
type line[T any] struct {
	// mark is true for the first line of a key where written rows are listed, and else where the key's row was written;
	// nil with the numbers of all rows written (pos) and updated (nth).
	mark           *bool
	pos, nth, rank int64
	verdict        string
	stored         T
	bad            misfit
}

// answers takes the lines of one statement.
type answers[T any] struct {
	p       *plan
	written *line[T] // of the key at hand
	group   []line[T]
	done    []placed[T]
	again   map[int]bool

	outdated bool
	strays   bool // a trigger has stored a row under a key that was not given
}

// add takes the next line, where written rows are listed.
func (a *answers[T]) add(l line[T]) {
	if *l.mark {
		a.judge()
	}
	if l.pos < 0 {
		a.written = &l
	} else {
		a.group = append(a.group, l)
	}
}

// judge settles the rows of one key.
func (a *answers[T]) judge() {
	a.strays = a.strays || a.written != nil && len(a.group) == 0
	for _, l := range a.group {
		a.settle(l, a.written != nil)
	}
	a.written, a.group = nil, a.group[:0]
}

// settle says what became of a row; written, whether one of its key was.
func (a *answers[T]) settle(l line[T], written bool) {
	if a.open(l, written) {
		a.outdated = a.outdated || l.verdict == outdated
		a.again[int(l.pos)] = true
		return
	}
	res, bad, verdict := Result[T]{Stored: l.stored}, l.bad, l.verdict
	if verdict == "" {
		if verdict = a.passed(l); a.written != nil {
			res.Stored, bad = a.written.stored, a.written.bad
		}
	}
	settle(a.p, &res, verdict, int(l.pos), bad)
	a.done = append(a.done, placed[T]{int(l.pos), res})
}

// open says that a row must be judged again, by the row that is stored now.
func (a *answers[T]) open(l line[T], written bool) bool {
	switch {
	case l.verdict == outdated:
		return true
	case l.verdict != "":
		return false
	case !written && (l.nth == 1 || a.p.rule != lastWins):
		// A rival came first. With LastWins an earlier row of a key has lost, whether or not the last one had to be written.
		return true
	default:
		// A row of the same version as the one just written is judged against it, as any later one would be.
		return l.nth > 1 && l.rank == 1
	}
}

// passed returns the verdict of a row that was as good as the stored one, or better: what the statement did with it,
// if it is the one of its key that was written, and else that of one that came too late.
func (a *answers[T]) passed(l line[T]) string {
	switch {
	case l.nth == 1 && a.written != nil:
		return a.written.verdict
	case a.p.rule == firstWins:
		return "unchanged"
	default:
		return "stale"
	}
}
