package pgerr

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotRun is what [SendBatch] reports for a statement that the server skipped, because an earlier one of its batch
// failed. It wraps no other error, so [Duplicate] is false and [Code] is empty.
var ErrNotRun = errors.New("pgerr: statement not run, because an earlier one of its batch failed")

// SendBatch sends b like db.SendBatch, and gives each result the error of its own statement. db is a pool, a connection
// or a transaction of pgx.
//
// The server skips what comes after a failed statement, and pgx reports that statement's error for each skipped one. So
// a program counts as done what never ran:
//
//	for range events {
//		if _, err := results.Exec(); pgerr.Duplicate(err, "events_pkey") {
//			continue // with db.SendBatch: wrong for every event after the first duplicate
//		}
//	}
//
// Here skipped results, and the callbacks of [pgx.QueuedQuery], get [ErrNotRun]. A skipped statement's callback is
// called once at most; in some query exec modes pgx calls none. Close returns the first error of the batch, as in pgx.
//
// A failed statement undoes the batch, and fails a transaction of the caller. To learn which of many rows are new,
// insert them with ON CONFLICT DO NOTHING and RETURNING in one statement. After a lost connection nobody knows which
// statements ran, and every result reports that error. Do not use b again: SendBatch sets its callbacks. The results
// are for one goroutine.
func SendBatch(
	ctx context.Context,
	db interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	},
	b *pgx.Batch,
) pgx.BatchResults {
	s := &batchState{}
	for _, q := range b.QueuedQueries {
		fn := q.Fn
		q.Fn = func(br pgx.BatchResults) error {
			own := &batchResults{BatchResults: br, state: s}
			if fn != nil {
				skipped := s.failed != nil
				err := fn(own)
				if skipped && err == nil {
					return ErrNotRun // else pgx, whose results stand still, would call it again, for ever
				}
				return err
			}
			// Close reads the statements without a callback by itself and, in some query modes, goes on to the
			// callback of the next one after an error. Read here, the error is noted.
			_, err := own.Exec()
			return err
		}
	}
	return &batchResults{BatchResults: db.SendBatch(ctx, b), state: s}
}

// batchState is what the results of one batch share, whoever reads them.
type batchState struct {
	failed error    // of the first statement that the server refused
	open   pgx.Rows // the last result of Query; its error may come late
}

// note takes the error of a statement. Only the server's own word means that it will skip the rest.
func (s *batchState) note(err error) {
	if s.failed == nil && len(inspect(err).server) > 0 {
		s.failed = err
	}
}

type batchResults struct {
	pgx.BatchResults
	state *batchState
}

// next returns where the next result is to be read from.
func (r *batchResults) next() pgx.BatchResults {
	if r.state.open != nil {
		r.state.note(r.state.open.Err())
		r.state.open = nil
	}
	if r.state.failed != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, ErrNotRun)
	}
	return r.BatchResults
}

func (r *batchResults) Exec() (pgconn.CommandTag, error) {
	tag, err := r.next().Exec()
	r.state.note(err)
	return tag, err
}

func (r *batchResults) Query() (pgx.Rows, error) {
	rows, err := r.next().Query()
	r.state.note(err)
	r.state.open = rows
	return rows, err
}

func (r *batchResults) QueryRow() pgx.Row {
	return batchRow{r.next().QueryRow(), r.state}
}

type batchRow struct {
	pgx.Row
	state *batchState
}

func (r batchRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	r.state.note(err)
	return err
}

func (r *batchResults) Close() error {
	err := r.BatchResults.Close()
	if r.state.failed != nil {
		return r.state.failed // for pgx it may be what the last callback returned
	}
	return err
}
