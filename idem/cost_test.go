package idem_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func nothing(context.Context, pgx.Tx) error { return nil }

// A thousand duplicates write nothing: no heap insert, no dead tuple, no transaction id, no sequence value.
func TestDuplicatesWriteNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t, pgtest.Pool(t))
	key := stripe.Key("evt_1")
	out, err := idem.Run(ctx, pool, key, nothing)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)

	effects := &pgx.Batch{}
	effects.Queue(`INSERT INTO effects (what) VALUES ('a')`)
	for range 500 {
		out, err := idem.Once{}.Apply(ctx, pool, key, effects)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		out, err = idem.Run(ctx, pool, key, nothing)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)

		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			out, err := idem.Do(ctx, tx, key, nothing)
			require.Equal(t, idem.Duplicate, out)
			var assigned bool
			require.NoError(t, tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned))
			require.False(t, assigned, "a duplicate got a transaction id")
			return err
		}))
	}

	// A backend reports its counts at the latest when it ends.
	pool.Reset()
	var ins, upd, del, dead int64
	require.Eventually(t, func() bool {
		err := pool.QueryRow(ctx, `
			SELECT n_tup_ins, n_tup_upd, n_tup_del, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'processed_events'
			`).Scan(&ins, &upd, &del, &dead)
		return err == nil && ins > 0
	}, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, []int64{1, 0, 0, 0}, []int64{ins, upd, del, dead})

	var sequences, indexes int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM pg_sequences`).Scan(&sequences))
	require.Zero(t, sequences, "there is no sequence to burn")
	require.NoError(t, pool.QueryRow(ctx,
		`SELECT count(*) FROM pg_indexes WHERE tablename = 'processed_events'`).Scan(&indexes))
	require.Equal(t, 1, indexes, "a first delivery pays for one index")
}

// trips counts what the client sends: pgx writes once a round trip.
type trips struct{ writes atomic.Int64 }

type tripConn struct {
	net.Conn
	t *trips
}

func (c tripConn) Write(b []byte) (int, error) {
	c.t.writes.Add(1)
	return c.Conn.Write(b)
}

func (tr *trips) of(f func()) int64 {
	before := tr.writes.Load()
	f()
	return tr.writes.Load() - before
}

// counted returns a pool of one connection whose round trips are counted.
func counted(t *testing.T, mode pgx.QueryExecMode) (*pgxpool.Pool, *trips) {
	tr := &trips{}
	cfg := pgtest.Config(t)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.MaxConns = 1
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return tripConn{c, tr}, err
	}
	return migrated(t, pgtest.PoolConfig(t, cfg)), tr
}

func TestRoundTrips(t *testing.T) {
	type counts struct {
		Do, DoDuplicate, DoMaxWait, Run, RunDuplicate, RunMaxWait, Lookup, Many, ManyDuplicates int64
		// Again: a new key, behind a duplicate
		Apply, ApplyDuplicate, ApplyAgain, ApplyMaxWait int64
	}
	// Of a connection whose statements are cached where the mode caches. Do counts begin, claim, effect and commit.
	want := map[pgx.QueryExecMode]counts{
		pgx.QueryExecModeCacheStatement: {
			Do: 4, DoDuplicate: 4, DoMaxWait: 4, Run: 3, RunDuplicate: 2, RunMaxWait: 3, Lookup: 1,
			Many: 4, ManyDuplicates: 4, Apply: 1, ApplyDuplicate: 1, ApplyAgain: 1, ApplyMaxWait: 1,
		},
		pgx.QueryExecModeCacheDescribe: {
			Do: 4, DoDuplicate: 4, DoMaxWait: 4, Run: 3, RunDuplicate: 2, RunMaxWait: 3, Lookup: 1,
			Many: 4, ManyDuplicates: 4, Apply: 1, ApplyDuplicate: 1, ApplyAgain: 1, ApplyMaxWait: 1,
		},
		pgx.QueryExecModeDescribeExec: {
			Do: 5, DoDuplicate: 6, DoMaxWait: 5, Run: 4, RunDuplicate: 4, RunMaxWait: 4, Lookup: 2,
			Many: 5, ManyDuplicates: 6, Apply: 2, ApplyDuplicate: 2, ApplyAgain: 2, ApplyMaxWait: 2,
		},
		pgx.QueryExecModeExec: {
			Do: 4, DoDuplicate: 4, DoMaxWait: 4, Run: 3, RunDuplicate: 2, RunMaxWait: 3, Lookup: 1,
			Many: 4, ManyDuplicates: 4, Apply: 1, ApplyDuplicate: 1, ApplyAgain: 1, ApplyMaxWait: 1,
		},
		pgx.QueryExecModeSimpleProtocol: {
			Do: 4, DoDuplicate: 4, DoMaxWait: 4, Run: 3, RunDuplicate: 2, RunMaxWait: 3, Lookup: 1,
			Many: 4, ManyDuplicates: 4, Apply: 1, ApplyDuplicate: 1, ApplyAgain: 1, ApplyMaxWait: 1,
		},
	}
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool, tr := counted(t, mode)
			effect := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ('a')`)
				return err
			}
			limited := idem.Once{MaxWait: time.Minute}
			n := 0
			next := func() idem.Key { n++; return stripe.Key(fmt.Sprint(n)) }
			do := func(o idem.Once, key idem.Key) {
				tx, err := pool.Begin(ctx)
				require.NoError(t, err)
				_, err = o.Do(ctx, tx, key, effect)
				require.NoError(t, err)
				require.NoError(t, tx.Commit(ctx))
			}
			run := func(o idem.Once, key idem.Key) {
				_, err := o.Run(ctx, pool, key, effect)
				require.NoError(t, err)
			}
			many := func(batch []idem.Key) {
				tx, err := pool.Begin(ctx)
				require.NoError(t, err)
				_, err = idem.Once{}.DoMany(ctx, tx, batch,
					func(ctx context.Context, tx pgx.Tx, _ []int) error { return effect(ctx, tx) })
				require.NoError(t, err)
				require.NoError(t, tx.Commit(ctx))
			}
			apply := func(o idem.Once, key idem.Key) {
				effects := &pgx.Batch{}
				effects.Queue(`INSERT INTO effects (what) VALUES ('a')`)
				_, err := o.Apply(ctx, pool, key, effects)
				require.NoError(t, err)
			}
			var got counts
			for range 3 { // the last one counts: by then every statement is cached
				key := next()
				got.Do = tr.of(func() { do(idem.Once{}, key) })
				got.DoDuplicate = tr.of(func() { do(idem.Once{}, key) })
				got.DoMaxWait = tr.of(func() { do(limited, next()) })
				key = next()
				got.Run = tr.of(func() { run(idem.Once{}, key) })
				got.RunDuplicate = tr.of(func() { run(idem.Once{}, key) })
				got.RunMaxWait = tr.of(func() { run(limited, next()) })
				key = next()
				got.Apply = tr.of(func() { apply(idem.Once{}, key) })
				got.ApplyDuplicate = tr.of(func() { apply(idem.Once{}, key) })
				got.ApplyAgain = tr.of(func() { apply(idem.Once{}, next()) })
				got.ApplyMaxWait = tr.of(func() { apply(limited, next()) })
				got.Lookup = tr.of(func() {
					_, err := idem.Once{}.Lookup(ctx, pool, key)
					require.NoError(t, err)
				})
				batch := make([]idem.Key, 100)
				for i := range batch {
					batch[i] = next()
				}
				got.Many = tr.of(func() { many(batch) })
				got.ManyDuplicates = tr.of(func() { many(batch) })
			}
			require.Equal(t, want[mode], got)
		})
	}
}

// pgx prepares what a connection has not seen: one round trip more for the first call.
func TestRoundTripsOfFirstUse(t *testing.T) {
	pool, tr := counted(t, pgx.QueryExecModeCacheStatement)
	var got []int64
	for _, id := range []string{"1", "2", "1", "1", "3"} {
		effects := &pgx.Batch{}
		effects.Queue(`INSERT INTO effects (what) VALUES ('a')`)
		got = append(got, tr.of(func() {
			_, err := idem.Once{}.Apply(t.Context(), pool, stripe.Key(id), effects)
			require.NoError(t, err)
		}))
	}
	require.Equal(t, []int64{2, 1, 1, 1, 1}, got)
}

func BenchmarkRun(b *testing.B) {
	ctx := b.Context()
	pool := migrated(b, pgtest.Pool(b))
	effect := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ('a')`)
		return err
	}
	n := 0
	next := func() idem.Key { n++; return stripe.Key(fmt.Sprintf("evt_%d", n)) }
	b.Run("First", func(b *testing.B) {
		for b.Loop() {
			if _, err := idem.Run(ctx, pool, next(), effect); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Duplicate", func(b *testing.B) {
		key := next()
		for b.Loop() {
			if _, err := idem.Run(ctx, pool, key, effect); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ByHand", func(b *testing.B) {
		// What a careful person writes: begin, insert, effect, commit. It reads nothing of a lost COMMIT.
		for b.Loop() {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, `
					INSERT INTO processed_events (source, operation, key) VALUES ($1, $2, $3)
					ON CONFLICT (key, operation, source) DO NOTHING`, "stripe", "activate", next().ID())
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				return effect(ctx, tx)
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
