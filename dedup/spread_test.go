package dedup_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func coordinator(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), pgtest.Cluster(t)[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// execAll runs statements one by one.
func execAll(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for _, stmt := range strings.SplitAfter(sql, ";\n") {
		if strings.TrimSpace(stmt) != "" {
			exec1(t, pool, stmt)
		}
	}
}

// dropAll empties the database: one on four servers is slow to make.
func dropAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec1(t, pool, `DROP SCHEMA IF EXISTS tenant CASCADE`)
	for _, table := range strs(t, pool, `
		SELECT c.oid::regclass::text FROM pg_class AS c
		 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition`) {
		exec1(t, pool, `DROP TABLE `+table)
	}
}

func strs(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// Migrate, and the DDL by itself, spread a new table as it says. Verify agrees, and other tables can be spread after
// it.
func TestSpreadOnCitus(t *testing.T) {
	t.Parallel()
	pool := coordinator(t)
	for name, table := range map[string]dedup.Table{
		"key":             {Spread: "key"},
		"key, odd name":   {Name: `"O'Neill.x"`, Spread: "key"},
		"key, weekly":     {Spread: "key", Layout: dedup.Weekly},
		"key, hash":       {Spread: "key", Layout: dedup.Hash(3)},
		"source":          {Spread: "source"},
		"schema":          {Name: "tenant.processed_events", Spread: "schema"},
		"schema, weekly":  {Name: "tenant.processed_events", Spread: "schema", Layout: dedup.Weekly},
		"left as it is":   {},
		"before the rest": {Spread: "key"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, byHand := range []bool{false, true} {
				dropAll(t, pool)
				exec1(t, pool, `CREATE SCHEMA tenant`)
				for range 2 {
					if byHand {
						execAll(t, pool, table.DDL())
					} else {
						require.NoError(t, dedup.Migrate(t.Context(), pool, table))
					}
				}
				if table.Layout == dedup.Weekly { // its DDL makes no weeks
					require.NoError(t, dedup.Migrate(t.Context(), pool, table))
				}
				require.NoError(t, dedup.Verify(t.Context(), pool, table))
				want := 1
				if table.Spread == "" {
					want = 0
				}
				require.Equal(t, want, number(t, pool, `
					SELECT count(*) FROM pg_dist_partition JOIN pg_class ON oid = logicalrelid WHERE NOT relispartition`))
				require.LessOrEqual(t, number(t, pool, `SELECT count(DISTINCT colocationid) FROM pg_dist_partition`), 1,
					"a table and its partitions")
				exec1(t, pool, `CREATE TABLE later (id text PRIMARY KEY)`)
				exec1(t, pool, `SELECT create_distributed_table('later', 'id')`)
			}
		})
	}
	require.ErrorContains(t, dedup.Table{Spread: "schema"}.Validate(), "schema")
	require.Error(t, dedup.Table{Spread: "operation"}.Validate())
}

// Where there is no Citus, a table that is to be spread is refused.
func TestSpreadWithoutCitus(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	table := dedup.Table{Spread: "key"}
	require.Error(t, dedup.Migrate(t.Context(), pool, table))
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	var found *dedup.VerifyError
	require.ErrorAs(t, dedup.Verify(t.Context(), pool, table), &found)
	require.Equal(t, dedup.KindNotSpread, found.Problems[0].Kind)
}

// Each way in which a table must not lie on a cluster is reported, and its Fix fixes it.
func TestVerifyOnCitus(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.Cluster(t)[0])
	require.NoError(t, err)
	cfg.MaxConns = 1 // the settings of a session are for all statements
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	byKey := dedup.Table{Spread: "key"}
	const spread = "SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4);\n" +
		"SELECT update_distributed_table_colocation('processed_events', 'none')"
	for name, c := range map[string]struct {
		table dedup.Table
		sql   string
		want  dedup.Kind
	}{
		"local beside shards": {
			dedup.Table{},
			"CREATE TABLE orders (id int PRIMARY KEY);\nSELECT create_distributed_table('orders', 'id')",
			dedup.KindNotSpread,
		},
		"local, to be spread": {byKey, "SELECT 1", dedup.KindNotSpread},
		"by another column":   {byKey, strings.Replace(spread, "'key'", "'source'", 1), dedup.KindNotSpread},
		"not by the source":   {dedup.Table{Spread: "source"}, spread, dedup.KindNotSpread},
		"known to Citus, no more": {
			byKey, "SELECT citus_add_local_table_to_metadata('processed_events')",
			dedup.KindNotSpread,
		},
		"reference table": {
			dedup.Table{},
			"SELECT create_reference_table('processed_events')",
			dedup.KindReferenceTable,
		},
		"statements": {
			dedup.Table{},
			"SELECT set_config('citus.shard_replication_factor', '2', false);\n" + spread +
				";\nRESET citus.shard_replication_factor",
			dedup.KindReplicatedByStatements,
		},
		"colocation": {dedup.Table{}, "SELECT create_distributed_table('processed_events', 'key')", dedup.KindColocation},
		"local effects": {
			dedup.Table{}, spread + ";\nCREATE TABLE \"O'Neill\" (id int PRIMARY KEY)", dedup.KindLocalTable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dropAll(t, pool)
			require.NoError(t, dedup.Migrate(t.Context(), pool))
			require.NoError(t, dedup.Verify(t.Context(), pool))
			execAll(t, pool, c.sql)
			if c.table.Spread == "" {
				require.NoError(t, dedup.Migrate(t.Context(), pool, c.table), "Migrate leaves it to Verify")
			} else {
				require.Error(t, dedup.Migrate(t.Context(), pool, c.table))
			}
			var found *dedup.VerifyError
			require.ErrorAs(t, dedup.Verify(t.Context(), pool, c.table), &found)
			require.Len(t, found.Problems, 1, "%v", found)
			require.Equal(t, c.want, found.Problems[0].Kind, "%v", found)
			execAll(t, pool, found.Problems[0].Fix)
			require.NoError(t, dedup.Verify(t.Context(), pool, c.table))
		})
	}
}
