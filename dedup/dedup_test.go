package dedup_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// migrateEnv makes the test binary one of the processes of TestMigrateFromManyProcesses.
const migrateEnv = "PGONCE_MIGRATE_DSN"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(migrateEnv); dsn != "" {
		os.Exit(migrateOnce(dsn))
	}
	pgtest.Main(m)
}

func migrateOnce(dsn string) int {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err == nil {
		err = dedup.Migrate(ctx, conn, dedup.Table{}, dedup.Table{Name: "group_b"})
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		return 1
	}
	return 0
}

func TestMigrateFromManyProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	self, err := os.Executable()
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), migrateEnv+"="+pool.Config().ConnString())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	require.NoError(t, dedup.Verify(t.Context(), pool, dedup.Table{}, dedup.Table{Name: "group_b"}))
}

// The same in one process, many times, at the isolation level where a snapshot is easily too old.
func TestMigrateFromManyConnections(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.MaxConns = 8
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool := pgtest.PoolConfig(t, cfg)
	for round := range 5 {
		table := dedup.Table{Name: "t" + string(rune('a'+round))}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := dedup.Migrate(t.Context(), pool, table); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.NoError(t, dedup.Verify(t.Context(), pool, table))
	}
}

func exec1(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// A BEGIN inside of a transaction is only a warning, and Migrate's COMMIT would be the caller's.
func TestMigrateRefusesConnectionInTransaction(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), pgtest.Pool(t)
	acquired, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer acquired.Release()
	for name, db := range map[string]dedup.DB{"conn": acquired.Conn(), "acquired": acquired} {
		outer, err := db.BeginTx(ctx, pgx.TxOptions{})
		require.NoError(t, err)
		_, err = outer.Exec(ctx, `CREATE TABLE outer_one ()`)
		require.NoError(t, err)
		require.ErrorContains(t, dedup.Migrate(ctx, db), "in a transaction already", name)
		require.NoError(t, outer.Rollback(ctx))
		var n int
		require.NoError(t, pool.QueryRow(ctx,
			`SELECT count(*) FROM pg_class WHERE relname IN ('outer_one', 'processed_events')`).Scan(&n))
		require.Zero(t, n, name)
	}
	require.NoError(t, dedup.Migrate(ctx, acquired))
}

func TestMigrateIsIdempotent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	exec1(t, pool, `INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', 'k')`)
	var before, after string
	xmin := `SELECT string_agg(c.xmin::text, ',' ORDER BY c.oid) FROM pg_class AS c WHERE relname LIKE 'processed_events%'`
	require.NoError(t, pool.QueryRow(t.Context(), xmin).Scan(&before))
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	require.NoError(t, pool.QueryRow(t.Context(), xmin).Scan(&after))
	require.Equal(t, before, after, "the catalog's rows were written again")
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&n))
	require.Equal(t, 1, n)
}

func TestMigrateNeedsNoRightOnceDone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	role := "least_" + strings.ToLower(strings.NewReplacer("/", "_").Replace(pool.Config().ConnConfig.Database))
	exec1(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), `DROP OWNED BY `+role)
		_, _ = pool.Exec(context.Background(), `DROP ROLE `+role)
	})
	exec1(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO `+role)
	exec1(t, pool, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET ROLE `+role)
	require.NoError(t, err)
	require.NoError(t, dedup.Migrate(t.Context(), conn))
	require.NoError(t, dedup.Verify(t.Context(), conn))
	_, err = conn.Exec(t.Context(), `RESET ROLE`)
	require.NoError(t, err)
}

// A table of the same name that is not ours is refused, and left as it was.
func TestMigrateRefusesForeignTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec1(t, pool, `CREATE TABLE processed_events (id text PRIMARY KEY)`)
	var bad *dedup.VerifyError
	require.ErrorAs(t, dedup.Migrate(t.Context(), pool, dedup.Table{Name: "group_b"}, dedup.Table{}), &bad)
	var columns, tables int
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT count(*) FROM information_schema.columns WHERE table_name = 'processed_events'`).Scan(&columns))
	require.Equal(t, 1, columns)
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_tables WHERE tablename = 'group_b'`).Scan(&tables))
	require.Zero(t, tables, "the whole migration is one transaction")
}

// IF NOT EXISTS looks into the first schema only: a second, empty table there would hide all keys.
func TestMigrateDoesNotHideATable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	exec1(t, pool, `CREATE SCHEMA app`)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET search_path = app, public`)
	require.NoError(t, err)
	var bad *dedup.VerifyError
	require.ErrorAs(t, dedup.Migrate(t.Context(), conn), &bad)
	require.Equal(t, "table in another schema", bad.Problems[0].Kind.String())
	var n int
	require.NoError(t, conn.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_tables WHERE tablename = 'processed_events'`).Scan(&n))
	require.Equal(t, 1, n)
	require.NoError(t, dedup.Migrate(t.Context(), conn, dedup.Table{Name: "public.processed_events"}))
	_, err = conn.Exec(t.Context(), `RESET search_path`)
	require.NoError(t, err)
}

func TestTableNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec1(t, pool, `CREATE SCHEMA "My.App"`)
	for _, name := range []string{
		"", "plain", "MixedCase", "order", `"dotted.name"`, `"My.App".events`, `"My.App"."a""b"`, "naïve",
		strings.Repeat("t", 63), "with space", "semi;colon", "quote'd", "a%sb",
	} {
		table := dedup.Table{Name: name}
		require.NoError(t, table.Validate(), name)
		require.NoError(t, dedup.Migrate(t.Context(), pool, table), name)
		require.NoError(t, dedup.Verify(t.Context(), pool, table), name)
	}
	for _, name := range []string{
		".", "a.", ".a", "a.b.c", `"`, `"a`, `"a"b`, `""`, "a\x00b", "\xff", strings.Repeat("t", 64),
		strings.Repeat("s", 64) + ".t",
	} {
		require.Error(t, dedup.Table{Name: name}.Validate(), name)
		require.Error(t, dedup.Migrate(t.Context(), pool, dedup.Table{Name: name}), name)
		require.Error(t, dedup.Verify(t.Context(), pool, dedup.Table{Name: name}), name)
		require.Panics(t, func() { _ = dedup.Table{Name: name}.DDL() })
	}
	require.Error(t, dedup.Table{Layout: 7}.Validate())
	require.Error(t, dedup.Table{Retention: -1}.Validate())
}

// The DDL can be run by psql and the like, more than once, and makes what Migrate makes.
func TestDDL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ddl := dedup.Table{}.DDL()
	require.Contains(t, ddl, "Locks:")
	exec1(t, pool, ddl)
	exec1(t, pool, ddl)
	require.NoError(t, dedup.Verify(t.Context(), pool))
	require.NoError(t, dedup.Migrate(t.Context(), pool))
}

// The table's own checks hold for rows that did not come through the library.
func TestTableChecks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	for _, values := range []string{
		`'', 'o', 'k'`, `'s', '', 'k'`, `'s', 'o', ''`, `repeat('s', 256), 'o', 'k'`, `'s', repeat('o', 256), 'k'`,
		`'s', 'o', repeat('k', 1025)`,
		`NULL, 'o', 'k'`, `'s', NULL, 'k'`, `'s', 'o', NULL`,
	} {
		_, err := pool.Exec(t.Context(), `INSERT INTO processed_events (source, operation, key) VALUES (`+values+`)`)
		require.Error(t, err, values)
	}
	exec1(t, pool, `INSERT INTO processed_events (source, operation, key) VALUES (repeat('s', 255), repeat('o', 255), repeat('k', 1024))`)
}
