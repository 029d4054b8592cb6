package inbox_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/tracelog"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// trips counts what the client sends: pgx writes once a round trip.
type trips struct {
	net.Conn
	n *atomic.Int64
}

func (c trips) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

// Storing is one round trip, and two for a duplicate; a look that finds nothing one; a message four, and of a key five.
func TestRoundTrips(t *testing.T) {
	type counts struct{ Store, Duplicate, Look, Message, OfKey int64 }
	for mode, want := range map[pgx.QueryExecMode]counts{
		pgx.QueryExecModeCacheStatement: {1, 2, 1, 4, 5},
		pgx.QueryExecModeCacheDescribe:  {1, 2, 1, 4, 5},
		pgx.QueryExecModeDescribeExec:   {2, 4, 2, 7, 9},
		pgx.QueryExecModeExec:           {1, 2, 1, 4, 5},
		pgx.QueryExecModeSimpleProtocol: {1, 2, 1, 4, 5},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			var n atomic.Int64
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.MaxConns = 1
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return trips{c, &n}, err
			}
			pool := pgtest.PoolConfig(t, cfg)
			require.NoError(t, inbox.Migrate(ctx, pool))
			of := func(f func()) int64 {
				before := n.Load()
				f()
				return n.Load() - before
			}
			none := func(context.Context, pgx.Tx, inbox.Message) error { return nil }
			var got counts
			for round := range 3 { // the last one counts: by then every statement is cached
				free, keyed := msg("", fmt.Sprint("f", round)), msg("k", fmt.Sprint("k", round))
				got.Store = of(func() { store(t, pool, free) })
				got.Duplicate = of(func() { again(t, pool, free) })
				// Drain ends with a look that finds nothing.
				got.Message = of(func() { drain(t, pool, none) })
				got.Look = of(func() { drain(t, pool, none) })
				got.Message -= got.Look
				store(t, pool, keyed)
				got.OfKey = of(func() { drain(t, pool, none) }) - got.Look
			}
			require.Equal(t, want, got)
		})
	}
}

// A message without a key is inserted once and updated twice; a look that finds nothing writes nothing.
func TestWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	for n := range 100 {
		store(t, pool, msg("", fmt.Sprint(n)))
	}
	require.EqualValues(t, 100, drain(t, pool, insert).Handled)
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		none := func(context.Context, pg.Tx, engine.Message) error { return nil }
		w, err := engine.Options{Handle: none}.Worker(pg.FromPgxTx(tx), nil)
		require.NoError(t, err)
		_, found, err := w.Step(ctx)
		require.NoError(t, err)
		require.False(t, found)
		var assigned bool
		require.NoError(t, tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned))
		require.False(t, assigned)
		return nil
	}))
	pool.Reset()
	require.Eventually(t, func() bool {
		var n [3]int
		require.NoError(t, pool.QueryRow(ctx,
			`SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'inbox'`).
			Scan(&n[0], &n[1], &n[2]))
		return n == [3]int{100, 200, 0}
	}, 20*time.Second, 20*time.Millisecond)
}

const blocksSQL = `
SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'inbox'`

// With very many messages waiting, of which many wait for later, behind others of their key, or are finished, a claim
// reads as few blocks as with few: no more than the height of an index adds.
func TestManyWaiting(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	blocks := func() (n int) {
		pgtest.Quiet(t, pool) // what filled the table, and a vacuum of the server's own, are not to be counted
		before := count(t, pool, blocksSQL)
		stop, cancel := context.WithCancel(ctx)
		claims := 0
		_, _ = inbox.Worker{MinRetry: time.Hour}.Drain(stop, pool, func(context.Context, pgx.Tx, inbox.Message) error {
			if claims++; claims == 30 {
				cancel()
			}
			return errNothing
		})
		require.Equal(t, 30, claims)
		require.Eventually(t, func() bool {
			pgtest.Quiet(t, pool)
			n = count(t, pool, blocksSQL) - before
			return n > 0
		}, 10*time.Second, 20*time.Millisecond)
		return n
	}
	_, err := pool.Exec(ctx, `ALTER TABLE inbox SET (autovacuum_enabled = off)`)
	require.NoError(t, err)
	fill(t, pool, 1_000)
	few := blocks()
	fill(t, pool, 100_000)
	many := blocks()
	t.Logf("blocks read in 30 claims: %d and %d", few, many)
	require.Less(t, many, few*2)
}

// fill adds messages: half of them are due, the others are finished, wait for later, or behind one of their key.
func fill(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	execSQL(t, pool, `
		INSERT INTO inbox (source, operation, message_id, key, body, state, due_at, finished_at)
		SELECT 's', 'o', gen_random_uuid()::text, CASE WHEN n % 6 = 5 THEN 'k' ELSE '' END, 'x', CASE WHEN n % 6 = 3 THEN 2 ELSE 1 END,
		       CASE n % 6 WHEN 3 THEN NULL WHEN 4 THEN now() + interval '1 day' WHEN 5 THEN 'infinity' ELSE now() END,
		       CASE n % 6 WHEN 3 THEN now() END
		  FROM generate_series(1, $1::int) AS n`, n)
	execSQL(t, pool, `VACUUM ANALYZE inbox`)
}

// No call that succeeds leaves a failed span, a log line of an error, or an error in the server's log: each of those
// has come to the client as an ErrorResponse.
func TestSuccessLeavesNoError(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			var mu sync.Mutex
			var seen []string
			saw := func(what string) { mu.Lock(); defer mu.Unlock(); seen = append(seen, what) }
			script := &faultconn.Script{
				From: faultconn.Backend, When: func(m faultconn.Message) bool { return m.Type == "ErrorResponse" },
				Do: func(m faultconn.Message) { saw("server " + m.Code) }, Repeat: true,
			}
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.Tracer = &tracelog.TraceLog{
				LogLevel: tracelog.LogLevelTrace,
				Logger: tracelog.LoggerFunc(func(_ context.Context, level tracelog.LogLevel, msg string, _ map[string]any) {
					if level <= tracelog.LogLevelWarn {
						saw("log " + msg)
					}
				}),
			}
			script.Attach(&cfg.ConnConfig.Config)
			pool := pgtest.PoolConfig(t, cfg)
			for range 2 {
				require.NoError(t, inbox.Migrate(ctx, pool))
			}
			require.NoError(t, inbox.Verify(ctx, pool))
			execSQL(t, pool, `CREATE TABLE effects (id text)`)
			for n := range 3 {
				store(t, pool, msg("k", fmt.Sprint(n)), msg("", fmt.Sprint("f", n)))
				again(t, pool, msg("k", fmt.Sprint(n)))
			}
			require.EqualValues(t, 6, drain(t, pool, insert).Handled)
			require.Zero(t, depth(t, pool))
			_, err := inbox.Table{Keep: 1}.Purge(ctx, pool)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			require.Empty(t, seen)
		})
	}
}
