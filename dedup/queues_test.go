package dedup_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/outbox"
)

// queue is an inbox or an outbox, by the names of its tables.
type queue struct {
	tables          []string
	migrate, verify func(context.Context, *pgxpool.Pool) error
}

func queues() map[string]queue {
	in, out := inbox.Table{Name: "tenant.inbox"}, outbox.Table{Name: "tenant.outbox"}
	return map[string]queue{
		"inbox": {
			[]string{"tenant.inbox"},
			func(ctx context.Context, pool *pgxpool.Pool) error { return inbox.Migrate(ctx, pool, in) },
			func(ctx context.Context, pool *pgxpool.Pool) error { return inbox.Verify(ctx, pool, in) },
		},
		"outbox": {
			[]string{"tenant.outbox", "tenant.outbox_lanes"},
			func(ctx context.Context, pool *pgxpool.Pool) error { return outbox.Migrate(ctx, pool, out) },
			func(ctx context.Context, pool *pgxpool.Pool) error { return outbox.Verify(ctx, pool, out) },
		},
	}
}

// An inbox and an outbox are refused on Citus, however Citus has the table, and where it has others in shards. They
// do where the extension is there and nothing is spread.
func TestQueuesOnCitus(t *testing.T) {
	t.Parallel()
	pool := coordinator(t)
	for name, q := range queues() {
		for shape, c := range map[string]struct {
			sql  func(table string) string
			want dedup.Kind // 0: none
		}{
			"nothing is spread": {func(string) string { return `SELECT 1` }, 0},
			"known to Citus": {func(table string) string {
				return `SELECT citus_add_local_table_to_metadata('` + table + `')`
			}, dedup.KindSpread},
			"everywhere": {func(table string) string {
				return `SELECT create_reference_table('` + table + `')`
			}, dedup.KindSpread},
			"in shards": {func(table string) string {
				column := map[string]string{"tenant.inbox": "message_id"}[table]
				if column == "" {
					column = "lane"
				}
				return `SELECT create_distributed_table('` + table + `', '` + column + `', colocate_with => 'none')`
			}, dedup.KindSpread},
			"a schema of a node": {func(string) string {
				return `SELECT citus_schema_distribute('tenant') WHERE NOT EXISTS (SELECT FROM pg_dist_schema)`
			}, dedup.KindSpread},
			"beside shards": {func(string) string {
				return `SELECT create_distributed_table('orders', 'id') WHERE NOT EXISTS (SELECT FROM pg_dist_partition)`
			}, dedup.KindNotSpread},
		} {
			t.Run(name+"/"+shape, func(t *testing.T) {
				dropAll(t, pool)
				exec1(t, pool, `CREATE SCHEMA tenant`)
				exec1(t, pool, `CREATE TABLE orders (id int PRIMARY KEY)`)
				require.NoError(t, q.migrate(t.Context(), pool))
				require.NoError(t, q.verify(t.Context(), pool))
				for i, table := range q.tables {
					if i == len(q.tables)-1 && c.want == dedup.KindSpread && shape != "a schema of a node" && i > 0 {
						wantKind(t, c.want, q.verify(t.Context(), pool)) // the first of two is enough
					}
					exec1(t, pool, c.sql(table))
				}
				if c.want == 0 {
					require.NoError(t, q.verify(t.Context(), pool))
					return
				}
				wantKind(t, c.want, q.verify(t.Context(), pool))
				var refused *dedup.VerifyError // of which kind it is: a table that Citus knows has lost its comment
				require.ErrorAs(t, q.migrate(t.Context(), pool), &refused)
				if c.want == dedup.KindNotSpread {
					exec1(t, pool, `DROP SCHEMA tenant CASCADE`)
					exec1(t, pool, `CREATE SCHEMA tenant`)
					wantKind(t, c.want, q.migrate(t.Context(), pool))
					require.Zero(t, number(t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace = 'tenant'::regnamespace`),
						"nothing is made")
				}
			})
		}
	}
}

func wantKind(t *testing.T, want dedup.Kind, err error) {
	t.Helper()
	var found *dedup.VerifyError
	require.ErrorAs(t, err, &found)
	require.Equal(t, want, found.Problems[0].Kind, "%v", err)
	require.NoError(t, found.Except(want))
}
