package dedup_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// A table that lies on other nodes is purged there, by each form of the purge. A row that somebody has locked is left.
func TestPurgeOnCitus(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(context.Background(), pgtest.Cluster(t)[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	table := dedup.Table{}
	migrated(t, pool, table)
	exec1(t, pool, `SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4)`)
	for name, purge := range map[string]func(*testing.T) (deleted int64){
		"Purge": func(t *testing.T) int64 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			stats, err := table.Purge(ctx, pool)
			require.NoError(t, err)
			return stats.Deleted
		},
		"PurgeSQL": func(t *testing.T) int64 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := pool.Exec(ctx, table.PurgeSQL())
			require.NoError(t, err)
			return -1
		},
	} {
		t.Run(name, func(t *testing.T) {
			exec1(t, pool, `DELETE FROM processed_events`)
			stay, expire := insertKinds(t, pool, table)
			counted, err := dedup.Cleaner{Table: table}.Count(t.Context(), pool)
			require.NoError(t, err)
			require.EqualValues(t, expire, counted.Deleted)
			if deleted := purge(t); deleted >= 0 {
				require.EqualValues(t, expire, deleted)
			}
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM processed_events WHERE key LIKE 'stays%'`))
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM processed_events`))

			exec1(t, pool, `DELETE FROM processed_events`)
			insertKinds(t, pool, table)
			holder, err := pool.Begin(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = holder.Rollback(context.Background()) }) // or the pool could not be closed after a failure
			// By its key, and so on one node alone: a statement over all of them would be waited for by the coordinator.
			var key string
			require.NoError(t, holder.QueryRow(t.Context(),
				`SELECT max(key) FROM processed_events WHERE key LIKE 'goes%'`).Scan(&key))
			_, err = holder.Exec(t.Context(), `UPDATE processed_events SET attempt = attempt WHERE key = $1`, key)
			require.NoError(t, err)
			purge(t) // ends, though the holder does not
			require.NoError(t, holder.Rollback(t.Context()))
			purge(t)
			require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events WHERE key NOT LIKE 'stays%'`))
		})
	}
}

// A table of weeks is maintained: Citus refuses DETACH ... CONCURRENTLY. A claim that is open holds it up, and it
// holds up other claims for no longer than a second.
func TestMaintainOnCitus(t *testing.T) {
	t.Parallel()
	pool := coordinator(t)
	spread := shorter
	spread.Spread = "key"
	long := weekly
	long.Spread = "key"
	require.NoError(t, dedup.Migrate(t.Context(), pool, long))
	for n := 3; n <= 8; n++ {
		leaf, _, _ := monday(t, pool, n)
		exec1(t, pool, `DROP TABLE `+leaf)
	}
	put(t, pool, "expired", -5, "")
	put(t, pool, "in the window", -1, "")
	put(t, pool, "today's", 0, "")

	open, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = open.Rollback(context.Background()) })
	_, err = open.Exec(t.Context(), `UPDATE processed_events SET attempt = attempt WHERE key = 'today''s'`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	held := make(chan error, 1)
	go func() { _, err := spread.Maintain(ctx, pool); held <- err }()
	require.Eventually(t, func() bool {
		return count(t, pool, `
			SELECT sum(result::int)::int FROM run_command_on_all_nodes('SELECT count(*) FROM pg_locks WHERE NOT granted')`) > 0
	}, 5*time.Second, time.Millisecond)
	for i := range 8 { // in all shards
		put(t, pool, fmt.Sprintf("beside it %d", i), 0, "")
	}
	err = <-held
	require.True(t, pgerr.Is(err, "55P03"), "%v", err)
	require.NoError(t, open.Rollback(t.Context()))

	put(t, pool, "not done", -4, "lease_until=now()")
	stats, err := spread.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.NotEmpty(t, stats.Dropped)
	require.Len(t, stats.Kept, 1)
	exec1(t, pool, `UPDATE processed_events SET lease_until = NULL WHERE key = 'not done'`)
	stats, err = spread.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Dropped, 1)
	require.NoError(t, dedup.Verify(t.Context(), pool, spread))
	require.Len(t, leaves(t, pool), kept(t, pool))
	require.Equal(t, kept(t, pool), count(t, pool, tables), "no table is left over")
	require.Equal(t, 2+8, count(t, pool, `SELECT count(*) FROM processed_events`))
	require.Equal(t, 1, count(t, pool, `SELECT count(DISTINCT colocationid) FROM pg_dist_partition`))
}
