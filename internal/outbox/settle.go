package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// settle ends the lease and writes down what became of the batch, if the lease still holds: who has lost it can mark
// nothing. It works with a done context, for what was published would otherwise be published again.
func (w *Worker) settle(ctx context.Context, lane, token int64, o outcome) (Stats, error) {
	rest := time.Duration(0)
	switch {
	case len(o.published) > 0:
		w.fails[lane] = 0
	case o.idle && ctx.Err() == nil:
		w.fails[lane]++
		rest = restAfter(w.fails[lane])
		if o.late {
			w.smaller(lane)
		}
	}
	stats, err := w.end(ctx, lane, token, rest, o)
	switch {
	case stats.Again > 0:
		w.smaller(lane)
	case stats.Published > 0:
		w.size[lane] = min(w.Batch, 2*w.size[lane])
	}
	return stats, err
}

// smaller halves the batches of a lane: the last one took longer than there is time.
func (w *Worker) smaller(lane int64) { w.size[lane] = max(1, w.size[lane]/2) }

func (w *Worker) end(ctx context.Context, lane, token int64, rest time.Duration, o outcome) (Stats, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	failedBefore := slices.ContainsFunc(o.published, func(r row) bool { return r.failed })
	if rest == 0 && len(o.failed) == 0 && len(o.behind) == 0 && !failedBefore {
		return w.done(ctx, lane, token, o.published)
	}
	if len(o.published)+len(o.failed)+len(o.behind) == 0 {
		return Stats{}, w.rest(ctx, lane, token, rest)
	}
	return w.change(ctx, lane, token, rest, o)
}

// done is the ordinary end: one statement.
func (w *Worker) done(ctx context.Context, lane, token int64, published []row) (Stats, error) {
	var mine, gone int64
	s := &pg.Stmt{SQL: w.SQL.done, Args: []any{lane, token, seqs(published)}, Dest: []any{&mine, &gone, new(string)}}
	if err := w.conn.Send(ctx, s); err != nil {
		return Stats{}, fmt.Errorf("delete what was published: %w", err)
	}
	if mine == 0 {
		return Stats{Again: int64(len(published))}, nil
	}
	return Stats{Published: gone}, nil
}

// change is the end of a batch in which something failed now or before. In a transaction, for each of the statements
// has to see what the ones before it did.
func (w *Worker) change(ctx context.Context, lane, token int64, rest time.Duration, o outcome) (Stats, error) {
	stats := Stats{Published: int64(len(o.published)), Failed: int64(len(o.failed))}
	own := &pg.Stmt{SQL: w.SQL.rest, Args: []any{lane, token, rest.Microseconds()}, Dest: restDest()}
	tx, err := w.db.Begin(ctx, own)
	if err != nil {
		return Stats{}, fmt.Errorf("end a lease: %w", err)
	}
	if own.Rows == 0 {
		_ = tx.Rollback(ctx)
		return Stats{Again: stats.Published}, nil
	}
	away := failedLane(lane)
	stmts := []*pg.Stmt{{SQL: w.SQL.remove, Args: []any{lane, away, seqs(o.published)}}}
	var moved []row
	for _, f := range o.failed {
		moved = append(moved, f.row)
	}
	moved = append(moved, o.behind...)
	stmts = append(stmts, &pg.Stmt{SQL: w.SQL.move, Args: []any{lane, away, seqs(moved)}})
	for _, f := range o.failed {
		wait := w.backoff(f.Attempt).Microseconds()
		if f.Attempt >= w.MaxAttempts {
			wait = -1
			stats.Parked++
		}
		stmts = append(stmts, &pg.Stmt{SQL: w.SQL.fail, Args: []any{away, f.seq, int64(f.Attempt), wait, printable(f.err)}})
	}
	heads, err := w.heads(away, keysOf(o.published, moved))
	if err == nil {
		err = tx.Send(ctx, append(stmts, heads...)...)
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return Stats{}, fmt.Errorf("write down what failed: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return Stats{}, fmt.Errorf("write down what failed: %w", err)
	}
	return stats, nil
}

// heads returns the statements that give the first event of each key, and no other, a time.
func (s SQL) heads(away int64, keys []string) ([]*pg.Stmt, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	args := []any{away, string(list)}
	return []*pg.Stmt{{SQL: s.demote, Args: args}, {SQL: s.promote, Args: args}}, nil
}

func (w *Worker) heads(away int64, keys []string) ([]*pg.Stmt, error) { return w.SQL.heads(away, keys) }

// keysOf lists the keys, each once.
func keysOf(lists ...[]row) []string {
	var keys []string
	seen := map[string]bool{"": true}
	for _, rows := range lists {
		for _, r := range rows {
			if !seen[r.Key] {
				seen[r.Key] = true
				keys = append(keys, r.Key)
			}
		}
	}
	return keys
}

// maxError is how much of an error's text is kept.
const maxError = 1000

// printable returns an error's text as the server can store it.
func printable(err error) string {
	return strings.ReplaceAll(strings.ToValidUTF8(fmt.Sprintf("%.*s", maxError, err), "?"), "\x00", "?")
}
