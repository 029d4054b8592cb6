package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pgtest"
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
			require.NoError(t, holder.QueryRow(t.Context(), `SELECT max(key) FROM processed_events WHERE key LIKE 'goes%'`).Scan(&key))
			_, err = holder.Exec(t.Context(), `UPDATE processed_events SET attempt = attempt WHERE key = $1`, key)
			require.NoError(t, err)
			purge(t) // ends, though the holder does not
			require.NoError(t, holder.Rollback(t.Context()))
			purge(t)
			require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events WHERE key NOT LIKE 'stays%'`))
		})
	}
}
