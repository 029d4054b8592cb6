package outbox_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
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

// Append is one round trip, whatever the number of events; a look that finds nothing one; a batch three.
func TestRoundTrips(t *testing.T) {
	type counts struct{ AppendOne, AppendTen, Look, Batch int64 }
	for mode, want := range map[pgx.QueryExecMode]counts{
		pgx.QueryExecModeCacheStatement: {1, 1, 1, 4},
		pgx.QueryExecModeCacheDescribe:  {1, 1, 1, 4},
		pgx.QueryExecModeDescribeExec:   {2, 2, 2, 8},
		pgx.QueryExecModeExec:           {1, 1, 1, 4},
		pgx.QueryExecModeSimpleProtocol: {1, 1, 1, 4},
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
			require.NoError(t, outbox.Migrate(ctx, pool))
			of := func(f func()) int64 {
				before := n.Load()
				f()
				return n.Load() - before
			}
			ten := make([]outbox.Event, 10)
			for i := range ten {
				ten[i] = ev("k", i)
			}
			b := &broker{}
			var got counts
			for range 3 { // the last one counts: by then every statement is cached
				require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					got.AppendOne = of(func() { require.NoError(t, outbox.Append(ctx, tx, ev("k", 1))) })
					got.AppendTen = of(func() { require.NoError(t, outbox.Append(ctx, tx, ten...)) })
					return nil
				}))
				// Drain ends with a look that finds nothing.
				got.Batch = of(func() { require.EqualValues(t, 11, drain(t, pool, outbox.Relay{Publisher: b}).Published) })
				got.Look = of(func() { drain(t, pool, outbox.Relay{Publisher: b}) })
			}
			require.Equal(t, want, got)
		})
	}
}

// An event is inserted once and deleted once, and never updated; a look that finds nothing writes nothing.
func TestWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	for n := range 500 {
		add(t, pool, ev(fmt.Sprint(n%50), n))
	}
	b := &broker{}
	require.EqualValues(t, 500, drain(t, pool, outbox.Relay{Publisher: b}).Published)
	var assigned bool
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for range 3 {
			drain(t, pool, outbox.Relay{Publisher: b})
		}
		return tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&assigned)
	}))
	pool.Reset()
	read := func(table string) (n [4]int64) {
		require.NoError(t, pool.QueryRow(ctx, `
			SELECT n_tup_ins, n_tup_upd, n_tup_del, n_tup_upd - n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1`, table).
			Scan(&n[0], &n[1], &n[2], &n[3]))
		return n
	}
	require.Eventually(t, func() bool { return read("outbox") == [4]int64{500, 0, 500, 0} }, 20*time.Second,
		20*time.Millisecond)
	lanes := read("outbox_lanes")
	require.EqualValues(t, 32, lanes[0])
	require.LessOrEqual(t, lanes[1], int64(2*32*2), "a batch leases its lane, and ends the lease")
	require.LessOrEqual(t, lanes[3], lanes[1]/4, "mostly on the same page")
}

// With very many events waiting, a claim and its batch read the pages of a few indexes, as with few: it is the same
// plan, and no more blocks than the height of an index adds.
func TestManyWaiting(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	fill := func(n int) {
		_, err := pool.Exec(ctx, `
			INSERT INTO outbox (lane, id, topic, key, payload)
			SELECT CASE WHEN n % 10 = 0 THEN -1 - n % 32 ELSE n % 32 END, gen_random_uuid(), 't', 'k' || n % 32, '' FROM generate_series(1, $1::int) AS n`, n)
		require.NoError(t, err)
		_, err = pool.Exec(ctx, `VACUUM ANALYZE outbox`)
		require.NoError(t, err)
	}
	blocks := func() (n int) {
		pgtest.Quiet(t, pool) // what filled the table, and a vacuum of the server's own, are not to be counted
		before := count(t, pool, blocksSQL)
		calls := 0
		away := func(context.Context, []outbox.Event) error { calls++; return outbox.ErrUnavailable }
		_, err := outbox.Relay{Batch: 20, Publisher: outbox.PublisherFunc(away)}.Drain(ctx, pool)
		require.ErrorIs(t, err, outbox.ErrUnavailable)
		_, err = pool.Exec(ctx, `UPDATE outbox_lanes SET lease_until = '-infinity'`)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			pgtest.Quiet(t, pool)
			n = count(t, pool, blocksSQL) - before
			return n > 0
		}, 10*time.Second, 20*time.Millisecond)
		return n / calls
	}
	_, err := pool.Exec(ctx, `ALTER TABLE outbox SET (autovacuum_enabled = off)`)
	require.NoError(t, err)
	fill(1_000)
	few := blocks()
	fill(100_000)
	many := blocks()
	t.Logf("blocks read for each claim: %d and %d", few, many)
	// Each look into an index goes a level or two deeper, from one. A scan would read a hundred times as many.
	require.Less(t, many, few*4)
}

const blocksSQL = `
SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'outbox'`

// A batch has 8 MB at the most, or one event: a relay's memory is bounded, also by what failed before.
func TestBatchBytes(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for _, size := range []int{3, 3, 3, 9, 1, 1} {
		add(t, pool, outbox.Event{Topic: "t", Key: "k", Payload: make([]byte, size<<20)})
	}
	var batches [][]int
	failing := true
	r := quick(outbox.PublisherFunc(func(_ context.Context, events []outbox.Event) error {
		sizes := make([]int, len(events))
		errs := make(outbox.EventErrors, len(events))
		for i, e := range events {
			sizes[i] = len(e.Payload) >> 20
			if failing {
				errs[i] = outbox.ErrInvalid
			}
		}
		failing = false
		batches = append(batches, sizes)
		return errs.Err()
	}))
	_, err := r.Drain(t.Context(), pool)
	require.Error(t, err)
	for range 5 {
		drain(t, pool, r)
	}
	require.Equal(t, [][]int{{3, 3}, {3, 3}, {3}, {9}, {1, 1}}, batches)
}
