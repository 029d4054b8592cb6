package idem_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Shards of the table are moved from node to node, as a rebalance does, while 8 workers deliver each message three
// times.
func TestMovedShardsOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	pool, err := pgxpool.New(t.Context(), nodes[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	table := dedup.Table{Spread: "key"}
	require.NoError(t, dedup.Migrate(t.Context(), pool, table))
	for _, sql := range []string{
		`CREATE TABLE effects (what text COLLATE "C" NOT NULL)`,
		`SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	once := idem.Once{Table: table}
	var n, again atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				what := fmt.Sprint(n.Add(1) / 3)
				for try := 0; ; try++ {
					_, err := once.Run(t.Context(), pool, stripe.Key(what), func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, what)
						return err
					})
					if err == nil {
						break
					}
					if again.Add(1); try > 50 {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	var moved int
	for i := range 6 {
		var shard int64
		var host string
		var from int
		err := pool.QueryRow(t.Context(), `
			SELECT shardid, nodename, nodeport FROM citus_shards WHERE table_name = 'processed_events'::regclass
			 ORDER BY shardid OFFSET $1 LIMIT 1`, i%4).Scan(&shard, &host, &from)
		require.NoError(t, err)
		for _, dsn := range nodes[1:] {
			u, err := url.Parse(dsn)
			require.NoError(t, err)
			if u.Port() == fmt.Sprint(from) {
				continue
			}
			_, err = pool.Exec(t.Context(),
				fmt.Sprintf(`SELECT citus_move_shard_placement(%d, '%s', %d, '%[2]s', %[4]s, 'block_writes')`, shard, host, from,
					u.Port()))
			require.NoError(t, err)
			moved++
			break
		}
	}
	stop()
	wg.Wait()
	var keys, effects, distinct int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&keys))
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT what) FROM effects`).Scan(&effects,
		&distinct))
	t.Logf("%d shards moved; %d deliveries, %d keys, %d effects; %d calls failed and were made again", moved, n.Load(),
		keys, effects, again.Load())
	require.Equal(t, 6, moved)
	require.Greater(t, keys, 10)
	require.Equal(t, []int{keys, keys}, []int{effects, distinct})
}

// A table with keys in it is spread, by the statements that Verify names, while workers claim: keys stay keys, and
// claims wait and go on.
func TestSpreadWithKeysOnCitus(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), pgtest.Cluster(t)[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	exec := func(sql string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	exec(`CREATE TABLE effects (what text COLLATE "C" NOT NULL)`)
	deliver := func(once idem.Once, what string) (idem.Outcome, error) {
		return once.Run(t.Context(), pool, stripe.Key(what), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, what)
			return err
		})
	}
	const before = 200
	for i := range before {
		_, err := deliver(idem.Once{}, fmt.Sprint("before ", i))
		require.NoError(t, err)
	}
	var n atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				what := fmt.Sprint(n.Add(1) / 3)
				for try := 0; ; try++ {
					_, err := deliver(idem.Once{}, what)
					if err == nil {
						break
					}
					if try > 50 { // a broker delivers again
						t.Error(err)
						return
					}
				}
			}
		})
	}
	spread := dedup.Table{Spread: "key"}
	var found *dedup.VerifyError
	require.ErrorAs(t, dedup.Verify(t.Context(), pool, spread), &found)
	require.Equal(t, dedup.KindNotSpread, found.Problems[0].Kind)
	for _, stmt := range strings.SplitAfter(found.Problems[0].Fix, ";\n") {
		exec(stmt)
	}
	exec(`SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events')`)
	least := n.Load() + 20 // some more, behind it
	require.Eventually(t, func() bool { return n.Load() > least }, time.Minute, time.Millisecond)
	stop()
	wg.Wait()
	require.NoError(t, dedup.Verify(t.Context(), pool, spread))
	for i := range before {
		out, err := deliver(idem.Once{Table: spread}, fmt.Sprint("before ", i))
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
	}
	var keys, effects, distinct int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&keys))
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT what) FROM effects`).Scan(&effects,
		&distinct))
	require.Greater(t, keys, before)
	require.Equal(t, []int{keys, keys}, []int{effects, distinct})
}
