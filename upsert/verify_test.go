package upsert_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// TestVerify makes one mistake at a time. fix is run after the problem was found, and must leave none.
func TestVerify(t *testing.T) {
	t.Parallel()
	const columns = "tenant text NOT NULL, email text NOT NULL, name text, deleted_at timestamptz, v int"
	full := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v")
	partial := upsert.Into[account]("accounts").OnConflict("email").Where("deleted_at IS NULL").Set("name",
		"tenant").LastWins()
	lower := upsert.Into[account]("accounts").OnConflict("lower(email)").Set("email", "name", "tenant").Version("v")
	tests := []struct {
		name    string
		ddl     string
		build   upsert.Builder[account]
		problem string // "": none
		fix     string
	}{
		{"sound", "CREATE TABLE accounts (" + columns + ", PRIMARY KEY (email, tenant))", full, "", ""},
		{"sound, index", "CREATE TABLE accounts (" + columns +
			"); CREATE UNIQUE INDEX ON accounts (tenant, email) INCLUDE (name)", full, "", ""},
		{"sound, partial", "CREATE TABLE accounts (" + columns +
			"); CREATE UNIQUE INDEX ON accounts (email) WHERE (deleted_at IS NULL)", partial, "", ""},
		{
			"sound, expression", "CREATE TABLE accounts (" + columns + "); CREATE UNIQUE INDEX ON accounts (Lower( email ))",
			lower, "", "",
		},
		{"table missing", "SELECT 1", full, "there is no such table", ""},
		{
			"column missing", "CREATE TABLE accounts (tenant text, email text, name text, v int, PRIMARY KEY (tenant, email))",
			full, `the tag "deleted_at" names no column`, "ALTER TABLE accounts ADD deleted_at timestamptz",
		},
		{
			"no index", "CREATE TABLE accounts (" + columns + ")", full, "no unique index on exactly",
			"CREATE UNIQUE INDEX ON accounts (tenant, email)",
		},
		{
			"an index that is not unique", "CREATE TABLE accounts (" + columns + "); CREATE INDEX ON accounts (tenant, email)",
			full, "no unique index on exactly", "CREATE UNIQUE INDEX ON accounts (tenant, email)",
		},
		{
			"a column too many", "CREATE TABLE accounts (" + columns + ", UNIQUE (tenant, email, v))", full,
			"no unique index on exactly", "ALTER TABLE accounts ADD UNIQUE (tenant, email)",
		},
		{
			"an expression of that name",
			`CREATE TABLE accounts (` + columns + `); CREATE UNIQUE INDEX ON accounts (tenant, (email || ''))`, full,
			"no unique index on exactly", "ALTER TABLE accounts ADD UNIQUE (tenant, email); DROP INDEX accounts_tenant_expr_idx",
		},
		{
			"deferrable", "CREATE TABLE accounts (" + columns + ", CONSTRAINT once UNIQUE (tenant, email) DEFERRABLE)", full,
			"constraint once is deferrable", `ALTER TABLE "accounts" DROP CONSTRAINT "once", ADD UNIQUE ("tenant", "email")`,
		},
		{
			"partial index", "CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX live ON accounts (tenant, email) WHERE deleted_at IS NULL", full,
			`index live has them for the rows WHERE (deleted_at IS NULL) only`,
			"CREATE UNIQUE INDEX ON accounts (tenant, email)",
		},
		{
			"another predicate", "CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX live ON accounts (email) WHERE deleted_at IS NULL AND v > 0", partial,
			"the predicate of index live is another: WHERE ((deleted_at IS NULL) AND (v > 0))",
			"CREATE UNIQUE INDEX ON accounts (email) WHERE deleted_at IS NULL",
		},
		{
			"a weaker predicate", "CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX live ON accounts (email) WHERE deleted_at IS NULL OR v > 0", partial,
			"the predicate of index live is another", "CREATE UNIQUE INDEX ON accounts (email) WHERE deleted_at IS NULL",
		},
		{
			"predicate on a full index", "CREATE TABLE accounts (" + columns + ", UNIQUE (email))", partial,
			"has none, so rows outside of it conflict too", "",
		},
		{
			"another expression", "CREATE TABLE accounts (" + columns + "); CREATE UNIQUE INDEX ON accounts (upper(email))",
			lower, "no unique index on exactly", "CREATE UNIQUE INDEX ON accounts (lower(email))",
		},
		{
			"an expression of an unknown function", "CREATE TABLE accounts (" + columns + ")",
			upsert.Into[account]("accounts").OnConflict("fold(email)").Set("email", "tenant").Version("v"),
			"PostgreSQL cannot make an index of the conflict target", "",
		},
		{
			"a predicate on an unknown column", "CREATE TABLE accounts (" + columns + ")",
			upsert.Into[account]("accounts").OnConflict("email").Where("alive").Set("name", "tenant").LastWins(),
			"PostgreSQL cannot make an index of the conflict target", "",
		},
		{
			"nullable key", "CREATE TABLE accounts (tenant text, email text NOT NULL, name text, deleted_at timestamptz, v " +
				"int, UNIQUE (tenant, email))", full, "the key column tenant may be NULL",
			"ALTER TABLE accounts ALTER tenant SET NOT NULL",
		},
		{
			"version on a partial target",
			"CREATE TABLE accounts (" + columns + "); CREATE UNIQUE INDEX ON accounts (email) WHERE deleted_at IS NULL",
			upsert.Into[account]("accounts").OnConflict("email").Where("deleted_at IS NULL").Set("name",
				"tenant").Version("v"), "a late event inserts a second one", "",
		},
		{
			"version without zone", "CREATE TABLE accounts (" + strings.Replace(columns, "v int", "v timestamp", 1) +
				", PRIMARY KEY (tenant, email))", full, "the version v is a timestamp without time zone",
			"ALTER TABLE accounts ALTER v TYPE int USING extract(epoch FROM v)",
		},
		{
			"version is text", "CREATE TABLE accounts (" + strings.Replace(columns, "v int", "v text", 1) +
				", PRIMARY KEY (tenant, email))", full, `the version v is text, which may not sort`,
			"ALTER TABLE accounts ALTER v TYPE bigint USING v::bigint",
		},
		{
			"version is text, asked for",
			"CREATE TABLE accounts (" + strings.Replace(columns, "v int", "v text", 1) + ", PRIMARY KEY (tenant, email))",
			full.AnyVersionType(), "", "",
		},
		{
			"generated", "CREATE TABLE accounts (" + strings.Replace(columns, "name text",
				"name text GENERATED ALWAYS AS (upper(email)) STORED", 1) + ", PRIMARY KEY (tenant, email))", full,
			"column name is generated", "",
		},
		{
			"identity", "CREATE TABLE accounts (" + strings.Replace(columns, "v int", "v int GENERATED ALWAYS AS IDENTITY", 1) +
				", PRIMARY KEY (tenant, email))", full, "GENERATED ALWAYS AS IDENTITY",
			"ALTER TABLE accounts ALTER v SET GENERATED BY DEFAULT",
		},
		{
			"never written", "CREATE TABLE accounts (" + columns + ", plan text NOT NULL, PRIMARY KEY (tenant, email))", full,
			"column plan is NOT NULL and has no default", "ALTER TABLE accounts ALTER plan SET DEFAULT 'free'",
		},
		{
			"a tombstone of a row that has no NULLs",
			"CREATE TABLE accounts (" + strings.Replace(columns, "name text", "name text NOT NULL", 1) +
				", PRIMARY KEY (tenant, email))", full.Tombstone("deleted_at"), "", "",
		},
		{
			"another collation", `CREATE TABLE accounts (` + columns +
				`); CREATE UNIQUE INDEX odd ON accounts (tenant, email COLLATE "POSIX")`, full, "index odd has another collation",
			`DROP INDEX odd; CREATE UNIQUE INDEX ON accounts (tenant, email)`,
		},
		{
			"trigger", "CREATE TABLE accounts (" + columns + ", PRIMARY KEY (tenant, email)); " +
				"CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.V := 7; RETURN NEW; END'; " +
				"CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION touch()", full,
			"trigger touch (function touch) runs before a row is written and mentions v", "DROP TRIGGER touch ON accounts",
		},
		{
			"a trigger's argument", "CREATE TABLE accounts (" + columns + ", PRIMARY KEY (tenant, email)); " +
				"CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; " +
				"CREATE TRIGGER touch BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION touch('x', 'v')", full, "mentions v",
			"ALTER TABLE accounts DISABLE TRIGGER touch",
		},
		{"other triggers", "CREATE TABLE accounts (" + columns + ", PRIMARY KEY (tenant, email)); " +
			"CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.deleted_at := vv; RETURN NEW; END'; " +
			"CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := 1; RETURN NEW; END'; " +
			"CREATE TRIGGER late AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION late(); " +
			"CREATE TRIGGER touch BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION touch()", full, "", ""},
		{
			"partition without the index",
			"CREATE TABLE accounts (" + columns +
				") PARTITION BY HASH (email); CREATE TABLE accounts_0 PARTITION OF accounts FOR VALUES WITH (MODULUS 1, " +
				"REMAINDER 0); " +
				"CREATE UNIQUE INDEX bad ON ONLY accounts (tenant, email)", full, "index bad is INVALID",
			"CREATE UNIQUE INDEX ON accounts_0 (tenant, email); ALTER INDEX bad ATTACH PARTITION accounts_0_tenant_email_idx",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			cfg := pgtest.Config(t)
			pool := pgtest.PoolConfig(t, cfg)
			run := func(ddl string) { exec(t, pool, ddl, pgx.QueryExecModeSimpleProtocol) }
			run(tt.ddl)
			stmt := tt.build.MustBuild()
			check := func(db upsert.DB, problem string) {
				t.Helper()
				err := upsert.Verify(ctx, db, stmt)
				if problem == "" {
					require.NoError(t, err)
					return
				}
				var verr *upsert.VerifyError
				require.ErrorAs(t, err, &verr)
				require.Len(t, verr.Problems, 1, "%v", err)
				require.Contains(t, verr.Problems[0].Message, problem)
				require.NotEmpty(t, verr.Problems[0].Fix)
				require.Equal(t, kindOf(t, problem), verr.Problems[0].Kind)
				require.Equal(t, "accounts", verr.Problems[0].Table)
			}
			check(pool, tt.problem)
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			check(tx, tt.problem)
			require.NoError(t, tx.Commit(ctx), "the probe leaves the transaction usable")
			db, err := sql.Open("postgres", cfg.ConnString())
			require.NoError(t, err)
			defer db.Close()
			check(upsert.SQL(db), tt.problem)
			sqlTx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			check(upsert.SQL(sqlTx), tt.problem)
			require.NoError(t, sqlTx.Commit())
			if tt.fix != "" {
				run(tt.fix)
				check(pool, "")
			}
		})
	}
}

// An index that CREATE INDEX CONCURRENTLY could not finish.
func TestVerifyInvalidIndex(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE accounts (tenant text NOT NULL, email text NOT NULL, name text, deleted_at timestamptz, v int)")
	exec(t, pool, "INSERT INTO accounts VALUES ('t', 'a', 'one', NULL, 1), ('t', 'a', 'two', NULL, 1)")
	_, err := pool.Exec(ctx, "CREATE UNIQUE INDEX CONCURRENTLY once ON accounts (tenant, email)")
	require.ErrorContains(t, err, "23505")
	stmt := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v").MustBuild()
	err = upsert.Verify(ctx, pool, stmt)
	require.ErrorContains(t, err, "index once is INVALID")
	require.ErrorContains(t, err, `REINDEX INDEX CONCURRENTLY "once"`)
	exec(t, pool, "DELETE FROM accounts WHERE name = 'two'")
	exec(t, pool, `REINDEX INDEX CONCURRENTLY "once"`)
	require.NoError(t, upsert.Verify(ctx, pool, stmt))
}

func TestVerifyNullsNotDistinct(t *testing.T) {
	t.Parallel()
	if pgtest.Version(t) < 150000 {
		t.Skip("NULLS NOT DISTINCT came with PostgreSQL 15")
	}
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE accounts (tenant text, email text, name text, deleted_at timestamptz, v int, UNIQUE "+
		"NULLS NOT DISTINCT (tenant, email))")
	stmt := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v").MustBuild()
	require.NoError(t, upsert.Verify(context.Background(), pool, stmt))
}

func TestVerifyAll(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	err := upsert.Verify(context.Background(), pool, orders, wides)
	require.ErrorContains(t, err, "orders: table missing: there is no such table")
	require.ErrorContains(t, err, "wides: table missing: there is no such table")
	require.NoError(t, upsert.Verify(context.Background(), pool))
}
