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

// A table that lies on other nodes is purged there, by each form of the purge, and a row that somebody has locked is left, soon.
func TestPurgeOnCitus(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(context.Background(), pgtest.Cluster(t)[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	table := dedup.Table{}
	migrated(t, pool, table)
	exec1(t, pool, `SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4)`)
	for name, purge := range map[string]func() (deleted int64){
		"Purge": func() int64 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			stats, err := table.Purge(ctx, pool)
			require.NoError(t, err)
			return stats.Deleted
		},
		"PurgeSQL": func() int64 {
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
			if deleted := purge(); deleted >= 0 {
				require.EqualValues(t, expire, deleted)
			}
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM processed_events WHERE key LIKE 'stays%'`))
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM processed_events`))

			exec1(t, pool, `DELETE FROM processed_events`)
			insertKinds(t, pool, table)
			holder, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = holder.Exec(t.Context(), `UPDATE processed_events SET attempt = attempt WHERE key NOT LIKE 'stays%'`)
			require.NoError(t, err)
			purge() // ends, though the holder does not
			require.NoError(t, holder.Rollback(t.Context()))
			purge()
			require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events WHERE key NOT LIKE 'stays%'`))
		})
	}
}
