package upsert

import (
	"context"
	"reflect"

	"github.com/pgonce/pgonce/internal/pg"
)

// tries bounds how often a row is judged anew. After a race the second judgement settles it, save where a rival
// deletes the row at the same moment again and again; a trigger or row security would go on for ever.
const tries = 10

// Exec applies one row in one round trip. It takes one more when the columns are read (see [Stmt]), and one when a
// rival changed the row.
//
//   - No such row: [Inserted]. The stored row is older: [Updated].
//   - The stored row is newer: [Stale]. The same event again: [Unchanged]. Nothing is written.
//   - A rival has written the row and not committed: Exec waits, then judges by what was committed. At REPEATABLE READ
//     and SERIALIZABLE that is 40001: try the transaction again.
//   - Equal versions, other content: [ErrVersionConflict]; Result.Stored has the stored row, which stays. The
//     transaction goes on.
//   - A row that cannot be applied: [ErrInvalidRow] or [ErrVersionAhead]; the transaction goes on.
//   - A field cannot take what the table holds: [ErrUnreadable]; the row is settled as the Outcome says.
//   - A clash with another unique constraint: [ErrOtherConstraint]; the transaction has failed. Outside a transaction
//     the statement is first sent again, at most twice, for the same event may have come twice at once.
//   - Every other error of the server: that error, wrapped, without what quotes the row; the transaction has failed.
//
// Inserted and Updated each draw a value of every sequence behind a column that is not written (identity, serial), so
// the numbers have gaps. Stale and Unchanged draw none, unless a rival came in between.
//
// db is the caller's transaction, or a connection or pool, where each call is a transaction of its own.
func (s *Stmt[T]) Exec(ctx context.Context, db DB, row T) (Result[T], error) {
	conn, err := connOf(db)
	if err != nil {
		return Result[T]{}, err
	}
	p := s.p
	t, err := p.prepare(ctx, conn)
	if err != nil {
		return Result[T]{}, err
	}
	for range tries {
		values, err := p.values(t, reflect.ValueOf(&row).Elem(), -1, nil)
		if err != nil {
			return Result[T]{Err: err}, err
		}
		args := make([]any, len(values))
		for i, v := range values {
			if !v.null {
				args[i] = v.text
			}
		}
		var res Result[T]
		var verdict string
		var bad misfit
		stmt := &pg.Stmt{SQL: t.one, Args: args, Dest: append([]any{&verdict}, p.cells(t.l, &res.Stored, &bad)...)}
		if err := beyondClashes(func() error { return conn.Send(ctx, stmt) }); err != nil {
			return Result[T]{}, p.failed(err)
		}
		switch verdict {
		case raced:
			continue
		case outdated:
			if t, err = p.prepareAnew(ctx, conn); err != nil {
				return Result[T]{}, err
			}
			continue
		}
		settle(p, &res, verdict, -1, bad)
		return res, res.Err
	}
	p.use.Store(nil)
	err = &RowError{Table: p.table.String(), Index: -1, err: ErrUnsettled}
	return Result[T]{Err: err}, err
}

// Verdicts of the SQL after which a row is judged anew.
const (
	raced    = "raced"    // a rival changed the row in between
	outdated = "outdated" // the table's columns are not what the statement was made for
)

// cells returns where the columns of a stored row go.
func (p *plan) cells(l *layout, row any, bad *misfit) []any {
	v := reflect.ValueOf(row).Elem()
	dest := make([]any, 0, len(p.written)+len(p.read))
	for _, ms := range [][]member{p.written, p.read} {
		for _, m := range ms {
			dest = append(dest, &cell{dst: v.FieldByIndex(m.index), c: l.byName[m.column], bad: bad})
		}
	}
	return dest
}

// settle turns a verdict of the SQL into an outcome or an error.
func settle[T any](p *plan, res *Result[T], verdict string, index int, bad misfit) {
	refuse := func(sentinel error, column, reason string) {
		res.Err = &RowError{Table: p.table.String(), Index: index, Column: column, Reason: reason, err: sentinel}
	}
	switch verdict {
	case "inserted":
		res.Outcome = Inserted
	case "updated":
		res.Outcome = Updated
	case "stale":
		res.Outcome = Stale
	case "unchanged":
		res.Outcome = Unchanged
	case "conflict":
		p.use.Store(nil) // for the content may differ in what a new precision has cut
		refuse(ErrVersionConflict, "", "")
	case "ahead":
		refuse(ErrVersionAhead, p.versions[0], "")
	case "outside":
		refuse(ErrInvalidRow, "", "it lies outside the predicate of Where, so it could never conflict")
	case "keyless":
		refuse(ErrInvalidRow, "", "an expression of the key is NULL; rows are found by keys that are not")
	default:
		refuse(ErrUnsettled, "", "")
	}
	if res.Err == nil && bad.err != nil {
		refuse(ErrUnreadable, bad.column, "its field cannot take what is stored")
		return
	}
	if res.Err != nil && verdict != "conflict" {
		var none T
		res.Stored = none
	}
}
