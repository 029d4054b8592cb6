package upsert_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// spread is a pool to a node of a cluster, where a table lies in shards.
func spread(t *testing.T, nodes []string, node int, ddl ...string) *pgxpool.Pool {
	t.Helper()
	pools := make([]*pgxpool.Pool, node+1)
	for i := range pools {
		var err error
		pools[i], err = pgxpool.New(context.Background(), nodes[i])
		require.NoError(t, err)
		t.Cleanup(pools[i].Close)
	}
	for _, sql := range ddl {
		exec(t, pools[0], sql) // a worker makes no tables
	}
	return pools[node]
}

const spreadThings = `SELECT create_distributed_table('things', 'id', colocate_with => 'none', shard_count => 4)`

// TestModelOnCitus compares with the model in a table that lies in shards. Of the rules of the model, those with a
// column of SetIfNotNull that is NOT NULL take single rows; the same ones without it take many, too.
func TestModelOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	pool := spread(t, nodes, 0, `CREATE TABLE things (`+thingColumns+`, PRIMARY KEY (id))`, spreadThings)
	base := upsert.Into[thing]("things").OnConflict("id").SetOnInsert("c")
	set := base.Set("a").SetIfNotNull("b")
	rules := []modelRule{
		{name: "many v", stmt: set.Version("v").MustBuild(), versions: 1, noN: true},
		{
			name: "many v,e and tombstone", stmt: set.Version("v", "e").Tombstone("gone").MustBuild(), versions: 2,
			tombstone: true, noN: true,
		},
		{name: "many last wins", stmt: set.LastWins().MustBuild(), noN: true},
	}
	for _, r := range modelRules() {
		r.single = !r.first
		rules = append(rules, r)
	}
	cases := 0
	var tx pgx.Tx
	t.Cleanup(func() {
		if tx != nil {
			_ = tx.Rollback(context.Background())
		}
	})
	limit := 60
	if pgtest.Full() {
		limit = 400
	}
	rapid.Check(t, func(rt *rapid.T) {
		if cases++; cases > limit { // each takes some milliseconds
			return
		}
		if tx == nil || cases%20 == 0 {
			if tx != nil {
				require.NoError(rt, tx.Commit(context.Background()))
			}
			var err error
			tx, err = pool.Begin(context.Background())
			require.NoError(rt, err)
		}
		check(rt, tx, rapid.SampledFrom(rules).Draw(rt, "rule"), fmt.Sprintf("%d_%d", cases%10, cases))
	})
}

// What a table of Citus cannot take is refused, with what mends it.
func TestRefusedOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	pool := spread(t, nodes, 0, `CREATE TABLE things (`+thingColumns+`, PRIMARY KEY (id))`, spreadThings,
		`CREATE TABLE orders (`+orderColumns+`, PRIMARY KEY (id)) PARTITION BY RANGE (id)`,
		`CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`,
		`SELECT create_distributed_table('orders', 'id', colocate_with => 'none', shard_count => 4)`)
	var found *upsert.VerifyError

	stmt := upsert.Into[thing]("things").OnConflict("id").SetIfNotNull("n").Version("v").MustBuild()
	one := 1
	rows := func(yield func(thing) bool) { yield(thing{ID: "1", V: &one}) }
	_, err := stmt.ExecMany(t.Context(), pool, rows, nil)
	require.ErrorAs(t, err, &found)
	require.Contains(t, found.Problems[0].Fix, "DROP NOT NULL")
	exec(t, pool, `ALTER TABLE things ALTER COLUMN n DROP NOT NULL`)
	stmt = upsert.Into[thing]("things").OnConflict("id").SetIfNotNull("n").Version("v").MustBuild()
	sum, err := stmt.ExecMany(t.Context(), pool, rows, nil)
	require.NoError(t, err)
	require.Equal(t, upsert.Summary{Inserted: 1}, sum)

	_, err = ownOrders().Exec(t.Context(), pool, order{ID: "1", At: noon})
	require.ErrorAs(t, err, &found)
	require.ErrorContains(t, err, "partitioned")
	require.ErrorContains(t, upsert.Verify(t.Context(), pool, ownOrders()), "partitioned")
}
