package dedup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Ages is an [Observer] that remembers how late duplicates come, which is what a retention must be sized by. The zero
// value works. It is safe for concurrent use, and must not be copied.
//
//	ages := &dedup.Ages{Next: metrics}
//	payments := idem.Once{Table: table, Observer: ages}
//	...
//	for _, a := range ages.Report(table) {
//		log.Print(a) // stripe: 1204 duplicates, the oldest after 71h12m0s: 8 % of 840h0m0s
//	}
//
// It counts since it was made, in this process, for at most 1,000 sources; further ones count together, as the source
// "". What came after its key was purged ran again, and is no duplicate: a highest age near the retention hints at
// that. Keys with a time of their own were refused instead, and count as Expired.
type Ages struct {
	// Next, if not nil, is told of every event, too.
	Next Observer

	mu   sync.Mutex
	seen map[agesKey]*SourceAges
}

type agesKey struct{ table, source string }

const maxSources = 1000

// ageBounds are the upper bounds of the histogram's first buckets; the last one has none.
func ageBounds() [7]time.Duration {
	const day = 24 * time.Hour
	return [...]time.Duration{time.Minute, time.Hour, 6 * time.Hour, day, 3 * day, 7 * day, 30 * day}
}

// SourceAges says how late the duplicates of one source came.
type SourceAges struct {
	Source     string
	Duplicates int64

	// Highest is the highest age of an original at its duplicate.
	Highest time.Duration

	// Expired counts the keys refused because their time lies before the retention (idem.ErrExpired). Nobody knows
	// whether they were duplicates.
	Expired int64

	// Share is the part of the retention that Highest has used, and at least 1 if anything Expired. From 0.8 on, be
	// careful: what comes late may come later.
	Share float64

	// Within counts the duplicates by age: up to a minute, an hour, 6 hours, a day, 3 days, 7 days, 30 days, and older.
	Within [8]int64

	retention time.Duration
}

// String says it in one line.
func (a SourceAges) String() string {
	s := fmt.Sprintf("%s: %d duplicates, the oldest after %v: %.0f %% of %v",
		a.Source, a.Duplicates, a.Highest.Round(time.Second), float64(a.Highest)/float64(a.retention)*100, a.retention)
	if a.Expired > 0 {
		s += fmt.Sprintf("; %d later than that, and refused", a.Expired)
	}
	return s
}

// Observe implements [Observer].
func (a *Ages) Observe(ctx context.Context, e Event) {
	if e.Outcome == Duplicate || e.Outcome == FinalFailure && e.Age > 0 || e.Outcome == Expired {
		a.add(e)
	}
	if a.Next != nil {
		a.Next.Observe(ctx, e)
	}
}

func (a *Ages) add(e Event) {
	key := agesKey{e.Table, e.Source}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.seen[key]
	if s == nil {
		if a.seen == nil {
			a.seen = map[agesKey]*SourceAges{}
		}
		if len(a.seen) >= maxSources {
			key.source = ""
		}
		if s = a.seen[key]; s == nil {
			s = &SourceAges{Source: key.source}
			a.seen[key] = s
		}
	}
	if e.Outcome == Expired {
		s.Expired++
		return
	}
	s.Duplicates++
	s.Highest = max(s.Highest, e.Age)
	bounds := ageBounds()
	i, _ := slices.BinarySearch(bounds[:], e.Age)
	s.Within[i]++
}

// Report returns what is known of t's sources, those first that have used the most of t's retention.
func (a *Ages) Report(t Table) []SourceAges {
	resolved, err := t.below().Resolve()
	if err != nil {
		return nil // nothing can have been claimed there
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []SourceAges
	for key, s := range a.seen {
		if key.table != resolved.Name.String() {
			continue
		}
		one := *s
		one.retention = resolved.Retention
		one.Share = float64(one.Highest) / float64(one.retention)
		if one.Expired > 0 {
			one.Share = max(one.Share, 1)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(x, y SourceAges) int {
		return cmp.Or(cmp.Compare(y.Share, x.Share), strings.Compare(x.Source, y.Source))
	})
	return all
}
