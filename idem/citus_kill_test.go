package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/pgtest"
)

// Nodes of a cluster are killed and restarted under load, workers and the coordinator, where a key and its effect commit
// on two nodes. The workers of the test deliver again what failed: effects = distinct events.
func TestKilledNodeOnCitus(t *testing.T) {
	t.Parallel()
	kills, events := 4, 300
	if long {
		kills, events = 100, 6000
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	// What a killed node has left in doubt is settled by the coordinator, after a minute as it comes.
	c := pgtest.NewOwnCluster(t, map[string]string{"citus.recover_2pc_interval": "1s"})
	pool, err := pgxpool.New(ctx, c.DSNs[0])
	require.NoError(t, err)
	defer pool.Close()
	table := dedup.Table{Spread: "key"}
	require.NoError(t, dedup.Migrate(ctx, pool, table))
	for _, sql := range []string{
		`CREATE TABLE effects (tenant int NOT NULL, what text NOT NULL)`,
		`SELECT create_distributed_table('effects', 'tenant')`,
	} {
		_, err := pool.Exec(ctx, sql)
		require.NoError(t, err)
	}

	r := seeded(t)
	queue := make(chan int, 4*events) // never full: a failed delivery is put back
	var left atomic.Int64
	for i := range events {
		for range 3 {
			queue <- i
			left.Add(1)
		}
	}
	once := idem.Once{Table: table, MaxWait: time.Second} // a key in doubt is locked
	var executed, duplicate, again, unknown, ran atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				select {
				case i := <-queue:
					out, err := once.Run(ctx, pool, stripe.Key(fmt.Sprintf("event %d", i)), func(ctx context.Context, tx pgx.Tx) error {
						ran.Add(1)
						_, err := tx.Exec(ctx, `INSERT INTO effects (tenant, what) VALUES ($1, $2)`, i%50, fmt.Sprint(i))
						return err
					})
					switch {
					case err != nil: // a consumer of a broker does not acknowledge, whatever it is
						again.Add(1)
						queue <- i
					case out == idem.Executed:
						executed.Add(1)
						left.Add(-1)
					default:
						duplicate.Add(1)
						left.Add(-1)
					}
					if own := new(idem.Error); errors.As(err, &own) && own.Unknown {
						unknown.Add(1)
					}
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	begun, total := time.Now(), left.Load()
	nodes := make([]int, kills)
	for i := range nodes {
		nodes[i] = i % len(c.DSNs)
	}
	r.Shuffle(kills, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for i, node := range nodes {
		want := total - total*int64(i+1)/int64(kills+2)
		require.Eventually(t, func() bool { return left.Load() <= want }, 3*time.Minute, time.Millisecond)
		require.NoError(t, c.Kill(node))
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond) // as a machine that comes again
		require.NoError(t, c.Restart(ctx, node))
	}
	wg.Wait()
	require.Zero(t, left.Load(), "the workers did not recover")
	// What is in doubt is not seen yet.
	require.Eventually(t, func() bool {
		var open int
		err := pool.QueryRow(ctx, `SELECT sum(result::int)::int FROM run_command_on_all_nodes('SELECT count(*) FROM pg_prepared_xacts')`).Scan(&open)
		return err == nil && open == 0
	}, time.Minute, 100*time.Millisecond)
	var effects, distinct, keys int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT what) FROM effects`).Scan(&effects, &distinct))
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM processed_events`).Scan(&keys))
	coordinator := len(slices.DeleteFunc(slices.Clone(nodes), func(n int) bool { return n != 0 }))
	t.Logf("%d kills, %d of them of the coordinator: %d deliveries, %d executed, %d duplicates, %d delivered again, %d calls of unknown outcome; fn ran %d times; "+
		"%d events, %d keys, %d effects; %v", kills, coordinator, total, executed.Load(), duplicate.Load(), again.Load(), unknown.Load(), ran.Load(),
		events, keys, effects, time.Since(begun).Round(time.Second))
	require.Equal(t, []int{events, events, events}, []int{keys, distinct, effects}, "keys, distinct effects, effects")
}
