package pgerr_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// inEachMode runs test in each of pgx's query exec modes, one after the other, with a table events that holds the row
// "old".
func inEachMode(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool)) {
	cfg := pgtest.Config(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := cfg.Copy()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.PoolConfig(t, cfg)
			execAll(t, pool,
				`DROP TABLE IF EXISTS events`,
				`CREATE TABLE events (id text CONSTRAINT events_pkey PRIMARY KEY)`,
				`INSERT INTO events (id) VALUES ('old')`)
			test(t, pool)
		})
	}
}

const insertEvent = `INSERT INTO events (id) VALUES ($1::text) RETURNING id`

func eventBatch(ids ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue(insertEvent, id)
	}
	return b
}

// The trap, and that SendBatch avoids it: new2 never ran, and pgx reports the error of "old" for it.
func TestBatch(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, pool *pgxpool.Pool) {
		duplicates := func(results pgx.BatchResults) (found []bool, errs []error) {
			for range 4 {
				_, err := results.Exec()
				found, errs = append(found, pgerr.Duplicate(err, "events_pkey")), append(errs, err)
			}
			errs = append(errs, results.Close())
			return found, errs
		}

		found, errs := duplicates(pool.SendBatch(t.Context(), eventBatch("new1", "old", "new2", "new3")))
		require.Equal(t, []bool{false, true, true, true}, found, "pgx has changed: is SendBatch still needed?")
		require.Same(t, errs[1], errs[2])

		found, errs = duplicates(pgerr.SendBatch(t.Context(), pool, eventBatch("new1", "old", "new2", "new3")))
		require.Equal(t, []bool{false, true, false, false}, found)
		require.NoError(t, errs[0])
		require.Equal(t, pgerr.ErrNotRun, errs[2])
		require.Equal(t, pgerr.ErrNotRun, errs[3])
		require.Empty(t, pgerr.Code(errs[2]))
		require.Same(t, errs[1], errs[4], "Close returns the first error")
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM events`))

		found, errs = duplicates(pgerr.SendBatch(t.Context(), pool, eventBatch("new1", "new2", "new3", "new4")))
		require.Equal(t, make([]bool, 4), found)
		require.Equal(t, make([]error, 5), errs)
		require.Equal(t, 5, count(t, pool, `SELECT count(*) FROM events`))
	})
}

// The same when the results are read as rows, whose error comes late.
func TestBatchRows(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, pool *pgxpool.Pool) {
		results := pgerr.SendBatch(t.Context(), pool, eventBatch("new1", "old", "new2", "new3", "new4"))
		var id string
		require.NoError(t, results.QueryRow().Scan(&id))
		rows, _ := results.Query()
		for rows.Next() {
			require.Fail(t, "a row of a duplicate")
		}
		rows.Close()
		require.True(t, pgerr.Duplicate(rows.Err(), "events_pkey"))

		rows, err := results.Query()
		require.Equal(t, pgerr.ErrNotRun, err)
		require.False(t, rows.Next())
		require.Equal(t, pgerr.ErrNotRun, rows.Err())
		require.Equal(t, pgerr.ErrNotRun, results.QueryRow().Scan(&id))
		_, err = results.Exec()
		require.Equal(t, pgerr.ErrNotRun, err)
		require.True(t, pgerr.Duplicate(results.Close(), "events_pkey"))

		results = pgerr.SendBatch(t.Context(), pool, eventBatch("old", "new1"))
		require.True(t, pgerr.Duplicate(results.QueryRow().Scan(&id), "events_pkey"))
		require.Equal(t, pgerr.ErrNotRun, results.QueryRow().Scan(&id))
		require.Error(t, results.Close())
	})
}

// The same in callbacks, of which each takes a duplicate for success. In some modes pgx calls the later ones, too.
func TestBatchCallbacks(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, pool *pgxpool.Pool) {
		run := func(send func(b *pgx.Batch) pgx.BatchResults, b *pgx.Batch) (done map[string]bool) {
			done = map[string]bool{}
			for i, q := range b.QueuedQueries {
				id := q.Arguments[0].(string)
				take := func(err error) error {
					if err == nil || pgerr.Duplicate(err, "events_pkey") {
						done[id] = err != nil
						return nil
					}
					return err
				}
				switch i % 3 {
				case 0: // without a callback
				case 1:
					q.QueryRow(func(row pgx.Row) error { return take(row.Scan(new(string))) })
				case 2:
					q.Query(func(rows pgx.Rows) error {
						rows.Next()
						rows.Close()
						return take(rows.Err())
					})
				}
			}
			require.Error(t, send(b).Close())
			return done
		}
		send := func(b *pgx.Batch) pgx.BatchResults { return pgerr.SendBatch(t.Context(), pool, b) }

		require.Equal(t, map[string]bool{"1": false, "old": true}, run(send, eventBatch("0", "1", "old", "3", "4", "5")))
		require.Equal(t, map[string]bool{"old": true}, run(send, eventBatch("0", "old", "2", "3", "4", "5")))
		// The failed statement has no callback: the next ones must not take its error for theirs.
		require.Empty(t, run(send, eventBatch("old", "1", "2", "3")))
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM events`))

		plain := func(b *pgx.Batch) pgx.BatchResults { return pool.SendBatch(t.Context(), b) }
		trapped := run(plain, eventBatch("0", "old", "2", "3"))
		t.Logf("with pgx alone: %v", trapped)
		if mode := pool.Config().ConnConfig.DefaultQueryExecMode; mode == pgx.QueryExecModeExec ||
			mode == pgx.QueryExecModeSimpleProtocol {
			require.Equal(t, map[string]bool{"old": true, "2": true}, trapped, "pgx has changed: is SendBatch still needed?")
		}
	})
}

// What SendBatch must leave alone.
func TestBatchPassesOn(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, pool *pgxpool.Pool) {
		// What the server did not refuse does not stop a batch.
		b := &pgx.Batch{}
		b.Queue(`SELECT id FROM events WHERE id = $1::text`, "none")
		b.Queue(insertEvent, "new")
		results := pgerr.SendBatch(t.Context(), pool, b)
		var id string
		require.ErrorIs(t, results.QueryRow().Scan(&id), pgx.ErrNoRows)
		require.NoError(t, results.QueryRow().Scan(&id))
		require.Equal(t, "new", id)
		require.NoError(t, results.Close())

		// Callbacks get their results, and their own error comes back.
		b = eventBatch("a", "b")
		stop := errors.New("stop")
		b.QueuedQueries[0].Exec(func(tag pgconn.CommandTag) error {
			require.EqualValues(t, 1, tag.RowsAffected())
			return nil
		})
		b.QueuedQueries[1].Exec(func(pgconn.CommandTag) error { return stop })
		require.Equal(t, stop, pgerr.SendBatch(t.Context(), pool, b).Close())

		// A batch that begins a transaction.
		b = &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		b.Queue(insertEvent, "old")
		results = pgerr.SendBatch(t.Context(), pool, b)
		tx := results.Tx()
		require.NotNil(t, tx)
		require.True(t, pgerr.Duplicate(results.Close(), "events_pkey"))
		require.NoError(t, tx.Rollback(t.Context()))

		// A batch that is never sent, and an empty one.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		results = pgerr.SendBatch(ctx, pool, eventBatch("c", "d"))
		for range 2 {
			_, err := results.Exec()
			require.ErrorIs(t, err, context.Canceled)
		}
		require.ErrorIs(t, results.Close(), context.Canceled)
		require.NoError(t, pgerr.SendBatch(t.Context(), pool, &pgx.Batch{}).Close())
	})
}

// Each callback is called once at the most, whatever it makes of its error.
func TestBatchCallsOnce(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, pool *pgxpool.Pool) {
		for _, swallow := range []bool{false, true} {
			ids := []string{"a", "old", "b", "c"}
			calls, errs := make([]int, len(ids)), make([]error, len(ids))
			b := eventBatch(ids...)
			for i, q := range b.QueuedQueries {
				q.QueryRow(func(row pgx.Row) error {
					calls[i]++
					if calls[i] > 99 {
						return errors.New("called again and again")
					}
					if errs[i] = row.Scan(new(string)); swallow {
						return nil
					}
					return errs[i]
				})
			}
			require.True(t, pgerr.Duplicate(pgerr.SendBatch(t.Context(), pool, b).Close(), "events_pkey"))
			require.NoError(t, errs[0])
			require.True(t, calls[1] == 0 || pgerr.Duplicate(errs[1], "events_pkey"))
			for i, n := range calls {
				require.LessOrEqual(t, n, 1, "callback %d", i)
				if i > 1 && n > 0 {
					require.Equal(t, pgerr.ErrNotRun, errs[i])
				}
			}
		}
	})
}
