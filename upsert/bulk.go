package upsert

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

const (
	chunkRows  = 1000
	chunkBytes = 1 << 20
)

// Summary counts the outcomes of [Stmt.ExecMany].
type Summary struct {
	Inserted, Updated, Stale, Unchanged int

	// Failed rows have an error of their own ([Result.Err]) and were not written.
	Failed int
}

// ExecMany applies rows as [Stmt.Exec] would, in few statements: one for each 1,000 rows or 1 MiB. One more follows for
// rows that share their version with another row of their key, or that a rival changed.
//
// Each row is judged by the row that was stored before the call. (Of more than 2,000 rows with one key, some are judged
// by what the call has written.) Of the newer rows with one key only the newest is written (with FirstWins the first,
// with LastWins the last); the others are [Stale] (with FirstWins Unchanged). Of two with equal versions and different
// content the first by position is written; the other is an [ErrVersionConflict]. SetIfNotNull and SetOnInsert take
// their values from the row that is written.
//
// each, which may be nil, gets the result of every row; i is its position in rows. It is called between the statements,
// in no particular order, and may use db.
//
// A row's own trouble does not stop the others. The error then says how many failed and wraps a [*RowError] of each
// kind; what was applied stays, and the caller chooses whether to commit it. Any other error is the server's: the
// transaction has failed. With array_nulls off every call is such an error (and so is an Exec that writes an array
// column).
//
// Rows are locked in the order of their keys, so calls with the same keys do not deadlock. Two limits:
//
//   - Several calls in one transaction have no common order.
//   - In a call of several statements, keys need a type whose order is known here: integers, numeric, uuid, boolean,
//     bytea; text, varchar and char with a deterministic collation; dates and times that are a time.Time in Go. (In a
//     database that is neither UTF-8 nor LATIN1, only strings in ASCII count.)
//
// All rows are read, and their values kept as text, before the first statement. Call it once for every 100,000 rows or
// so of an endless stream, each time in a transaction of its own.
func (s *Stmt[T]) ExecMany(
	ctx context.Context, db DB, rows iter.Seq[T], each func(i int, r Result[T]),
) (Summary, error) {
	conn, err := connOf(db)
	if err != nil {
		return Summary{}, err
	}
	b := &bulk[T]{p: s.p, each: each}
	if b.t, err = s.p.prepare(ctx, conn); err != nil {
		return b.sum, err
	}
	if err := s.p.manyOnSpread(b.t.l); err != nil {
		return b.sum, err
	}
	if err := b.collect(rows); err != nil {
		return b.sum, err
	}
	// A prepared statement would get a generic plan from the sixth chunk on, made for ten rows and for the table as it
	// was.
	conn = withoutPlan(db, conn)
	b.order = newOrder(s.p, b.t.l)
	var part []packed
	for rest := b.rows.sorted(b.order); len(rest) > 0; rest = rest[len(part):] {
		part = b.chunk(rest, part[:0])
		if err := b.send(ctx, conn, part); err != nil {
			return b.sum, err
		}
		for _, r := range part {
			clear(r.cells) // so that the memory of values can be had back before the call ends
		}
	}
	return b.sum, b.err()
}

// bulk is one call of ExecMany.
type bulk[T any] struct {
	p    *plan
	t    *texts
	each func(int, Result[T])

	order order
	rows  store
	total int
	sum   Summary
	errs  []error // the first of each kind

	troubled int // rows with an error
}

// collect reads all rows, and reports those that cannot be sent.
func (b *bulk[T]) collect(rows iter.Seq[T]) error {
	if rows == nil {
		return errors.New("upsert: rows is nil")
	}
	var refused []placed[T]
	b.rows.columns = len(b.p.written)
	var buf []value
	var row T
	v := reflect.ValueOf(&row).Elem()
	for row = range rows {
		values, err := b.p.values(b.t, v, b.total, buf[:0])
		if err != nil {
			refused = append(refused, placed[T]{pos: b.total, res: Result[T]{Err: err}})
		} else {
			buf = values
			b.rows.add(values, b.total)
		}
		b.total++
	}
	b.report(refused)
	return nil
}

// chunk appends to rows those of the sorted ones that go into the next statement. Equal keys stay together, within
// reason.
func (b *bulk[T]) chunk(sorted []uint32, rows []packed) []packed {
	size := 0
	for _, i := range sorted {
		r := b.rows.row(i)
		n := len(rows)
		full := n >= chunkRows || n > 0 && size+r.size() > chunkBytes
		if full && (n >= 2*chunkRows || size >= 2*chunkBytes || b.order.compare(rows[n-1], r) != 0) {
			break
		}
		size += r.size()
		rows = append(rows, r)
	}
	return rows
}

// send applies one chunk, and judges anew what a race or a tie left open.
func (b *bulk[T]) send(ctx context.Context, conn pg.Conn, rows []packed) error {
	for range tries {
		var a answers[T]
		var inserted, updated int
		err := beyondClashes(func() error {
			a, inserted, updated = answers[T]{p: b.p, again: map[int]bool{}}, 0, 0
			return b.query(ctx, conn, rows, func(l line[T]) {
				switch {
				case b.each != nil:
					a.add(l)
				case l.mark == nil:
					inserted, updated = int(l.pos-l.nth), int(l.nth)
				default:
					a.settle(l, *l.mark)
				}
			})
		})
		if err != nil {
			return b.p.failed(err)
		}
		a.judge()
		if told := len(a.done) + len(a.again) + inserted + updated; told != len(rows) {
			return fmt.Errorf("upsert into %s: %d rows were sent and %d came back, as when a trigger stores a row under "+
				"another key", b.p.table, len(rows), told)
		}
		b.sum.Inserted += inserted
		b.sum.Updated += updated
		b.report(a.done)
		if len(a.again) == 0 {
			return nil
		}
		if a.outdated {
			if b.t, err = b.p.prepareAnew(ctx, conn); err != nil {
				return err
			}
		}
		rows = slices.DeleteFunc(slices.Clone(rows), func(r packed) bool { return !a.again[r.pos] })
		if a.strays {
			break // each try would store one more
		}
	}
	b.p.use.Store(nil)
	var open []placed[T]
	for _, r := range rows {
		open = append(open, placed[T]{
			r.pos,
			Result[T]{Err: &RowError{Table: b.p.table.String(), Index: r.pos, err: ErrUnsettled}},
		})
	}
	b.report(open)
	return nil
}

// query sends one statement and reads its answer.
func (b *bulk[T]) query(ctx context.Context, conn pg.Conn, rows []packed, got func(line[T])) error {
	s := shape{withRows: b.each != nil, distinct: b.order.distinct(rows)}
	var l line[T]
	dest := []any{&l.mark, &l.pos, &l.nth, &l.rank, &l.verdict}
	if s.withRows {
		dest = append(dest, b.p.cells(b.t.l, &l.stored, &l.bad)...)
	}
	var none T
	return conn.Query(ctx, b.t.many[s], b.arrays(rows), func(scan func(...any) error) error {
		l.stored, l.bad = none, misfit{}
		if err := scan(dest...); err != nil {
			return err
		}
		got(l)
		return nil
	})
}

// arrays returns the parameters: one array literal for the positions and one for each column.
func (b *bulk[T]) arrays(rows []packed) []any {
	var array strings.Builder
	literal := func(size func(packed) int, element func(packed)) any {
		n := 2
		for _, r := range rows {
			n += size(r)
		}
		array = strings.Builder{}
		array.Grow(n)
		for i, r := range rows {
			array.WriteByte("{,"[min(i, 1)])
			element(r)
		}
		array.WriteByte('}')
		return array.String()
	}
	var digits [20]byte
	args := []any{literal(func(packed) int { return len(digits) / 2 }, func(r packed) {
		array.Write(strconv.AppendInt(digits[:0], int64(r.pos), 10))
	})}
	for i := range b.p.written {
		args = append(args, literal(
			func(r packed) int { return len(r.cells[i]) + len(`"",`) },
			func(r packed) { writeElement(&array, r.cells[i], r.cells[i] == null) }))
	}
	return args
}

// report counts results and passes them on.
func (b *bulk[T]) report(done []placed[T]) {
	for _, d := range done {
		switch d.res.Outcome {
		case Inserted:
			b.sum.Inserted++
		case Updated:
			b.sum.Updated++
		case Stale:
			b.sum.Stale++
		case Unchanged:
			b.sum.Unchanged++
		default:
			b.sum.Failed++
		}
		if d.res.Err != nil {
			b.troubled++
			kind := errors.Unwrap(d.res.Err)
			if !slices.ContainsFunc(b.errs, func(e error) bool { return errors.Is(e, kind) }) {
				b.errs = append(b.errs, d.res.Err)
			}
		}
		if b.each != nil {
			b.each(d.pos, d.res)
		}
	}
}

func (b *bulk[T]) err() error {
	if len(b.errs) == 0 {
		return nil
	}
	if b.troubled > b.sum.Failed {
		return fmt.Errorf("%d of %d rows were not applied, and %d have an error: %w", b.sum.Failed, b.total, b.troubled,
			errors.Join(b.errs...))
	}
	return fmt.Errorf("%d of %d rows were not applied: %w", b.sum.Failed, b.total, errors.Join(b.errs...))
}
