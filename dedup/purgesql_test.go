package dedup_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/retention"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// runBlock runs the block of SQL on a connection of its own, as a scheduler would, and returns its notices.
func runBlock(t *testing.T, pool *pgxpool.Pool, table dedup.Table) string {
	t.Helper()
	var notices strings.Builder
	cfg := pool.Config().ConnConfig.Copy()
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices.WriteString(n.Message + "\n") }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), table.PurgeSQL(), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return notices.String()
}

// The block deletes what Purge deletes.
func TestPurgeSQL(t *testing.T) {
	t.Parallel()
	for _, table := range []dedup.Table{
		{},
		{Name: `"My.App"."a""b'c"`, Retention: 48 * time.Hour},
		{Name: "$pgonce$", Retention: 30*time.Hour + 234567*time.Microsecond},
	} {
		t.Run(table.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			exec1(t, pool, `CREATE SCHEMA "My.App"`)
			migrated(t, pool, table)
			stay, expire := insertKinds(t, pool, table)
			require.Contains(t, runBlock(t, pool, table), "pgonce: "+strconv.Itoa(expire)+" keys deleted")
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM `+quoted(table)+` WHERE key LIKE 'stays%'`))
			require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM `+quoted(table)))
			counted, err := dedup.Cleaner{Table: table}.Count(t.Context(), pool)
			require.NoError(t, err)
			require.Zero(t, counted.Deleted)
		})
	}
}

// In batches, with a COMMIT after each; and not where somebody else's transaction would be committed.
func TestPurgeSQLCommits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	watched(t, pool)
	fill(t, pool, fillExpired, 5_000)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), dedup.Table{}.PurgeSQL())
	require.True(t, pgerr.Is(err, "2D000"), "%v", err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 5_000, number(t, pool, `SELECT count(*) FROM processed_events`))
	require.Contains(t, runBlock(t, pool, dedup.Table{}), "pgonce: 5000 keys deleted")
	require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events`))
	require.LessOrEqual(t, number(t, pool, `SELECT max(n)::int FROM (SELECT sum(n) AS n FROM deletes GROUP BY xid) AS d`),
		1_000)
	require.Greater(t, number(t, pool, `SELECT count(DISTINCT xid) FROM deletes`), 4)
}

// Every statement is one that this server takes, and reads only the pages that it is given, whatever the planner knows.
func TestPurgeStatements(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	fill(t, pool, fillFifth, 20_000)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig.Copy())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	for i, sql := range retention.Texts(pg.Name{Table: "processed_events"}) {
		if strings.HasPrefix(sql, "SET") {
			continue // nothing that could be prepared
		}
		name := "p" + strconv.Itoa(i)
		_, err := conn.Exec(t.Context(), `PREPARE `+name+` AS `+sql)
		require.NoError(t, err, sql)
		if !strings.Contains(sql, "ctid") {
			continue
		}
		for _, plan := range []string{"force_generic_plan", "force_custom_plan"} {
			for _, analyze := range []string{"SELECT 1", "ANALYZE processed_events"} {
				_, err = conn.Exec(t.Context(), `SET plan_cache_mode = `+plan)
				require.NoError(t, err)
				_, err = conn.Exec(t.Context(), analyze)
				require.NoError(t, err)
				rows, err := conn.Query(t.Context(), `EXPLAIN EXECUTE `+name+` ('(8,0)', '(16,0)', 1)`)
				require.NoError(t, err)
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				require.NoError(t, err)
				require.Contains(t, strings.Join(lines, "\n"), "Tid Range Scan", "%s, %s", plan, sql)
			}
		}
	}
}

// A claim pays for one index: purging has none.
func TestOneIndex(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	require.Equal(t, 1, number(t, pool, `SELECT count(*) FROM pg_index WHERE indrelid = 'processed_events'::regclass`))
}
