package pgerr_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// Citus names a shard's constraint where the node that is asked has the shard, and none elsewhere. Neither is the one
// that the caller means, so that no violation is taken for success. What does work is ON CONFLICT.
func TestDuplicateOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	ctx := t.Context()
	coordinator, err := pgx.Connect(ctx, nodes[0])
	require.NoError(t, err)
	t.Cleanup(func() { _ = coordinator.Close(context.Background()) })
	for _, sql := range []string{
		`CREATE TABLE orders (id int PRIMARY KEY)`,
		`SELECT create_distributed_table('orders', 'id', colocate_with => 'none')`,
		`INSERT INTO orders SELECT generate_series(1, 20)`,
	} {
		_, err := coordinator.Exec(ctx, sql)
		require.NoError(t, err)
	}
	named := 0
	for _, dsn := range nodes[:2] {
		for driver, open := range drivers {
			ask := open(t, dsn)
			for _, sql := range []string{
				`INSERT INTO orders VALUES (1)`, `INSERT INTO orders VALUES (2)`, `INSERT INTO orders VALUES (3)`,
				`INSERT INTO orders VALUES (4)`, `INSERT INTO orders VALUES (5)`, `INSERT INTO orders VALUES (6)`,
			} {
				err := ask(ctx, sql)
				require.True(t, pgerr.Is(err, pgerr.UniqueViolation), "%s: %v", driver, err)
				require.False(t, pgerr.Duplicate(err, "orders_pkey"), "%s: %v", driver, err)
				require.False(t, pgerr.Duplicate(err, "orders_pkey", ""), "%s: %v", driver, err)
				for shard := 102000; shard < 102100; shard++ {
					if pgerr.Duplicate(err, "orders_pkey_"+strconv.Itoa(shard)) {
						named++
					}
				}
			}
		}
	}
	require.Positive(t, named, "a worker names its own shards' constraints")

	tx, err := coordinator.Begin(ctx)
	require.NoError(t, err)
	duplicate, err := pgerr.IgnoreDuplicate(ctx, tx, "orders_pkey", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders VALUES (1)`)
		return err
	})
	require.True(t, pgerr.Is(err, pgerr.UniqueViolation), "%v", err)
	require.False(t, duplicate)
	for id, rows := range map[int]int{1: 0, 21: 1} {
		got, err := tx.Query(ctx, `INSERT INTO orders VALUES ($1) ON CONFLICT (id) DO NOTHING RETURNING id`, id)
		require.NoError(t, err)
		ids, err := pgx.CollectRows(got, pgx.RowTo[int])
		require.NoError(t, err)
		require.Len(t, ids, rows, "the rows that were inserted")
	}
	require.NoError(t, tx.Commit(ctx))
}
