package upsert_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// function is DDL for the trigger tr on accounts.
func function(when, body string) string {
	return "CREATE FUNCTION tr() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN " + body + " END$$; CREATE TRIGGER tr " +
		when + " EXECUTE FUNCTION tr();"
}

// TestVerifyAround puts one thing at a time around a sound table (or in its place). harm shows what it does, where
// Verify reports it; where it does not, the statement works.
func TestVerifyAround(t *testing.T) {
	t.Parallel()
	const columns = "tenant text NOT NULL, email text NOT NULL, name text, deleted_at timestamptz, v int"
	const table = "CREATE TABLE accounts (" + columns + ", PRIMARY KEY (tenant, email));"
	const beforeAll, each = "BEFORE INSERT OR UPDATE ON accounts FOR EACH ROW", "ON accounts FOR EACH ROW"
	full := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v")
	partial := upsert.Into[account]("accounts").OnConflict("email").Where("v > 0 AND deleted_at IS NULL").Set("name",
		"tenant").SetOnInsert("v").LastWins()
	lower := upsert.Into[account]("accounts").OnConflict("lower(email)").Set("email", "name", "tenant").Version("v")
	type run func(v int) (upsert.Result[account], error)
	fails := func(want error) func(*testing.T, *pgxpool.Pool, run) {
		return func(t *testing.T, pool *pgxpool.Pool, run run) {
			_, err := run(1)
			if err == nil {
				_, err = run(1)
			}
			require.ErrorIs(t, err, want)
		}
	}
	code := func(want string) func(*testing.T, *pgxpool.Pool, run) {
		return func(t *testing.T, pool *pgxpool.Pool, run run) {
			_, err := run(1)
			require.ErrorContains(t, err, want)
		}
	}
	for _, tt := range []struct {
		name    string
		ddl     string
		build   upsert.Builder[account]
		problem string // "": none
		fix     string
		harm    func(*testing.T, *pgxpool.Pool, run)
	}{
		{
			"an heir", table + "CREATE TABLE old () INHERITS (accounts)", full, "table old inherits from it",
			"ALTER TABLE old NO INHERIT accounts", func(t *testing.T, pool *pgxpool.Pool, run run) {
				exec(t, pool, "INSERT INTO old VALUES ('t', 'A', 'old', NULL, 1)")
				_, err := run(2)
				require.NoError(t, err)
				require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM accounts WHERE email = 'A'"))
			},
		},
		{
			"a trigger changes the key", table + function(beforeAll, "NEW.email = lower(NEW.email); RETURN NEW;"), full,
			"changes the key column email", "DROP TRIGGER tr ON accounts", fails(upsert.ErrUnsettled),
		},
		{
			"a trigger changes content", table + function(beforeAll, "IF true THEN NEW.Name := 'x'; END IF; RETURN NEW;"), full,
			"changes name: the same event differs", "", fails(upsert.ErrVersionConflict),
		},
		{
			"a trigger selects into a column", table + function(beforeAll, "SELECT 'x' INTO STRICT new.name; RETURN NEW;"),
			full, "changes name", "", fails(upsert.ErrVersionConflict),
		},
		{
			"a trigger replaces the row",
			table + function(beforeAll, "NEW := ROW(NEW.tenant, NEW.email, 'x'::text, NULL::timestamptz, NEW.v); RETURN NEW;"),
			full, "changes name", "", fails(upsert.ErrVersionConflict),
		},
		{
			"a trigger returns another row",
			table + function(beforeAll, "RETURN ROW(NEW.tenant, NEW.email, 'x'::text, NULL::timestamptz, NEW.v);"), full,
			"returns something else than NEW", "", fails(upsert.ErrVersionConflict),
		},
		{
			"a trigger drops the row", table + function("BEFORE INSERT "+each,
				"IF NEW.name <> '' THEN RETURN NULL; END IF; RETURN NEW;"), full, "returns NULL: the row is not written", "",
			fails(upsert.ErrUnsettled),
		},
		{
			"a trigger keeps the row", table + function("BEFORE UPDATE "+each, "RETURN OLD;"), full,
			"returns something else than NEW", "", func(t *testing.T, pool *pgxpool.Pool, run run) {
				_, err := run(1)
				require.NoError(t, err)
				res, err := run(2)
				require.NoError(t, err)
				require.Equal(t, "updated 1", fmt.Sprint(res.Outcome, " ", get[int](t, pool, "SELECT v FROM accounts")))
			},
		},
		{
			"a trigger deletes afterwards",
			table + function("AFTER INSERT "+each, "DELETE FROM accounts WHERE name = NEW.name; RETURN NULL;"), full,
			"changes or deletes rows of the table itself", "", func(t *testing.T, pool *pgxpool.Pool, run run) {
				res, err := run(1)
				require.NoError(t, err)
				require.Equal(t, "inserted 0", fmt.Sprint(res.Outcome, " ", get[int](t, pool, "SELECT count(*) FROM accounts")))
			},
		},
		{
			"a trigger of the statement",
			table + function("AFTER INSERT ON accounts", `UPDATE ONLY public."accounts" SET v = 7; RETURN NULL;`), full,
			"changes or deletes rows of the table itself", "", func(t *testing.T, pool *pgxpool.Pool, run run) {
				_, err := run(1)
				require.NoError(t, err)
				require.Equal(t, 7, get[int](t, pool, "SELECT v FROM accounts"))
			},
		},
		{
			"a trigger that is accepted", table + function(beforeAll, "NEW.v := NEW.v; RETURN NEW;"), full.Accept("tr"), "", "",
			nil,
		},
		{
			"a trigger that reads", table + function("BEFORE INSERT OR UPDATE OR DELETE "+each, `
				-- NEW.email := 'x'; RETURN NULL;
				IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
				IF NEW.email = 'x' AND NEW.name = 'y' OR NEW.tenant = 'NEW.name := 1; DELETE FROM accounts;' THEN RAISE 'no'; END IF;
				NEW.deleted_at = NEW.deleted_at; /* RETURN OLD; */
				UPDATE accounts_log SET n = 1; DELETE FROM old_accounts;
				RETURN NEW;`) + "CREATE TABLE accounts_log (n int); CREATE TABLE old_accounts (n int)", full, "", "", nil,
		},
		{"a trigger for deletions", table + function("BEFORE DELETE "+each, "RETURN NULL;"), full, "", "", nil},
		{
			"a rule", table + "CREATE RULE quiet AS ON UPDATE TO accounts WHERE false DO INSTEAD NOTHING", full,
			"it has the rule quiet", "DROP RULE quiet ON accounts", code("0A000"),
		},
		{
			"another unique index", table + "CREATE UNIQUE INDEX names ON accounts (name)", full,
			"names is a further constraint", "DROP INDEX names", func(t *testing.T, pool *pgxpool.Pool, run run) {
				exec(t, pool, "INSERT INTO accounts VALUES ('t', 'other', 'n', NULL, 1)")
				_, err := run(1)
				require.ErrorIs(t, err, upsert.ErrOtherConstraint)
			},
		},
		{
			"another unique index, of fewer columns", table + "CREATE UNIQUE INDEX mails ON accounts (email)", full,
			"mails is a further constraint", "", nil,
		},
		{
			"another unique index, of an expression", table + "CREATE UNIQUE INDEX lowered ON accounts (tenant, lower(email))",
			full, "lowered is a further constraint", "", nil,
		},
		{
			"another unique index, accepted", table + "CREATE UNIQUE INDEX names ON accounts (name)", full.Accept("names"), "",
			"", nil,
		},
		{
			"another unique index beside an expression",
			"CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX lowered ON accounts (lower(email)); CREATE UNIQUE INDEX names ON accounts (name)", lower,
			"names is a further constraint", "", nil,
		},
		{
			"another unique index, with the key", table + "CREATE UNIQUE INDEX ON accounts (email, name, tenant)", full, "", "",
			nil,
		},
		{
			"another unique index, of what the database makes",
			table + "ALTER TABLE accounts ADD id bigint GENERATED ALWAYS AS IDENTITY UNIQUE, ADD code uuid DEFAULT " +
				"gen_random_uuid() UNIQUE, ADD later text UNIQUE", full, "", "", nil,
		},
		{
			"an exclusion", table + "ALTER TABLE accounts ADD CONSTRAINT alone EXCLUDE (name WITH =)", full,
			"alone is a further constraint", "ALTER TABLE accounts DROP CONSTRAINT alone",
			func(t *testing.T, pool *pgxpool.Pool, run run) {
				exec(t, pool, "INSERT INTO accounts VALUES ('t', 'other', 'n', NULL, 1)")
				_, err := run(1)
				require.ErrorIs(t, err, upsert.ErrOtherConstraint)
			},
		},
		{
			"a generated key", "CREATE TABLE accounts (" + strings.Replace(columns, "email text NOT NULL",
				"email text GENERATED ALWAYS AS (lower(name)) STORED", 1) + ", UNIQUE (tenant, email))", full,
			"no event brings a value for it", "", code("generated"),
		},
		{"a view", "CREATE TABLE people (" + columns +
			", n int, PRIMARY KEY (tenant, email)); CREATE VIEW accounts AS SELECT tenant, email, name, deleted_at, v FROM " +
			"people WHERE v > 0", full, "", "", nil},
		{"a view of a view", "CREATE TABLE people (" + columns +
			", PRIMARY KEY (tenant, email)); CREATE VIEW one AS SELECT * FROM people; CREATE VIEW accounts AS SELECT * FROM one", full, "", "", nil},
		{
			"a view without an index", "CREATE TABLE people (" + columns + "); CREATE VIEW accounts AS SELECT * FROM people",
			full, "in the table of the view, so that every statement fails (42P10)",
			"CREATE UNIQUE INDEX ON people (tenant, email)", code("42P10"),
		},
		{
			"a view that cannot be written",
			"CREATE TABLE people (" + columns +
				", PRIMARY KEY (tenant, email)); CREATE VIEW accounts AS SELECT DISTINCT * FROM people", full,
			"it is a view that PostgreSQL cannot turn", "", code("55000"),
		},
		{
			"a view with a trigger instead",
			"CREATE TABLE people (" + columns +
				", PRIMARY KEY (tenant, email)); CREATE VIEW accounts AS SELECT DISTINCT * FROM people;" +
				function("INSTEAD OF INSERT OR UPDATE "+each, "RETURN NEW;"), full, "it is a view that PostgreSQL cannot turn", "",
			code("42P10"),
		},
		{
			"a view of a table with a rule",
			"CREATE TABLE people (" + columns +
				", PRIMARY KEY (tenant, email)); CREATE VIEW accounts AS SELECT * FROM people; CREATE RULE quiet AS ON UPDATE TO " +
				"people WHERE false DO INSTEAD NOTHING", full, "PostgreSQL does not take the statement on this view",
			"DROP RULE quiet ON people", code("0A000"),
		},
		{
			"a view of a table with a trigger",
			"CREATE TABLE people (" + columns +
				", PRIMARY KEY (tenant, email)); CREATE VIEW accounts AS SELECT * FROM people; " +
				strings.ReplaceAll(function(beforeAll, "NEW.email = lower(NEW.email); RETURN NEW;"), "accounts", "people"), full,
			"changes the key column email", "", fails(upsert.ErrUnsettled),
		},
		{
			"a materialized view", "CREATE TABLE people (" + columns +
				"); CREATE MATERIALIZED VIEW accounts AS SELECT * FROM people; CREATE UNIQUE INDEX ON accounts (tenant, email)",
			full, "it is no table", "", code("42809"),
		},
		{"an equal predicate", "CREATE TABLE accounts (" + columns +
			"); CREATE UNIQUE INDEX ON accounts (email) WHERE NOT (deleted_at IS NOT NULL) AND 0 < v", partial, "", "", nil},
		{
			"a wider predicate", "CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX wide ON accounts (email) WHERE v > 0", partial,
			"PostgreSQL takes it, so rows outside of WHERE v > 0 AND deleted_at IS NULL conflict too",
			"CREATE UNIQUE INDEX ON accounts (email) WHERE v > 0 AND deleted_at IS NULL; DROP INDEX wide",
			func(t *testing.T, pool *pgxpool.Pool, run run) {
				exec(t, pool, "INSERT INTO accounts VALUES ('t', 'A', 'gone', now(), 1)")
				_, err := run(1)
				require.NoError(t, err)
				require.Equal(t, "n", get[string](t, pool, "SELECT string_agg(name, ' ') FROM accounts"),
					"the deleted row is overwritten")
			},
		},
		{
			"a narrower predicate", "CREATE TABLE accounts (" + columns +
				"); CREATE UNIQUE INDEX narrow ON accounts (email) WHERE v > 0 AND deleted_at IS NULL AND tenant = 't'", partial,
			"the predicate of index narrow is another",
			"CREATE UNIQUE INDEX ON accounts (email) WHERE v > 0 AND deleted_at IS NULL; DROP INDEX narrow", code("42P10"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			cfg := pgtest.Config(t)
			pool := pgtest.PoolConfig(t, cfg)
			exec(t, pool, tt.ddl, pgx.QueryExecModeSimpleProtocol)
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
			}
			check(pool, tt.problem)
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			check(tx, tt.problem)
			require.NoError(t, tx.Commit(ctx), "the transaction stays usable")
			db, err := sql.Open("postgres", cfg.ConnString())
			require.NoError(t, err)
			defer db.Close()
			check(upsert.SQL(db), tt.problem)
			run := func(v int) (upsert.Result[account], error) {
				return stmt.Exec(ctx, pool, account{Tenant: "t", Email: "A", Name: "n", V: v})
			}
			switch {
			case tt.harm != nil:
				tt.harm(t, pool, run)
			case tt.problem == "":
				for _, want := range []upsert.Outcome{upsert.Inserted, upsert.Unchanged} {
					res, err := run(1)
					require.NoError(t, err)
					require.Equal(t, want, res.Outcome)
				}
			}
			if tt.fix != "" {
				exec(t, pool, tt.fix, pgx.QueryExecModeSimpleProtocol)
				check(pool, "")
			}
		})
	}
}

// Which types order events, and which begin anew or have another order.
func TestVerifyVersionTypes(t *testing.T) {
	t.Parallel()
	type stamped struct {
		ID string `db:"id"`
		V  string `db:"v"`
	}
	ctx := context.Background()
	pool := pgtest.Pool(t)
	for i, tt := range []struct {
		typ        string
		old, newer string
		sound      bool
	}{
		{"int2", "9", "10", true},
		{"numeric(9,2)", "9", "10", true},
		{"float8", "9", "10", true},
		{"date", "2026-01-31", "2026-02-01", true},
		{"timestamptz", "2026-01-31 23:59Z", "2026-02-01 00:01Z", true},
		{"pg_lsn", "0/9", "0/A", true},
		{"xid8", "9", "10", true},
		{"uuid", "0190a000-0000-7000-8000-000000000000", "0190a001-0000-7000-8000-000000000000", true},
		{"mood", "calm", "angry", true},
		{"time", "23:59", "00:01", false}, // the next day
		{"timetz", "23:59Z", "00:01Z", false},
		{"jsonb", `{"n": 1, "m": 0}`, `{"n": 2}`, false},
		{"text", "9", "10", false},
		{"inet", "10.0.0.9", "10.0.0.10", false},
	} {
		table := fmt.Sprintf("stamps_%d", i)
		if tt.typ == "mood" {
			exec(t, pool, "CREATE TYPE mood AS ENUM ('calm', 'angry')")
		}
		exec(t, pool, "CREATE TABLE "+table+" (id text PRIMARY KEY, v "+tt.typ+")")
		build := upsert.Into[stamped](table).OnConflict("id").Version("v")
		stmt := build.MustBuild()
		err := upsert.Verify(ctx, pool, stmt)
		require.NoError(t, upsert.Verify(ctx, pool, build.AnyVersionType().MustBuild()), tt.typ)
		for n, v := range []string{tt.old, tt.newer} {
			res, err := stmt.Exec(ctx, pool, stamped{"1", v})
			require.NoError(t, err, tt.typ)
			if tt.sound {
				require.Equal(t, []upsert.Outcome{upsert.Inserted, upsert.Updated}[n], res.Outcome, tt.typ)
			}
		}
		if tt.sound {
			require.NoError(t, err, tt.typ)
		} else {
			require.ErrorContains(t, err, "may not sort in the order of events", tt.typ)
		}
	}
}

// A column for which a deletion that leaves it out has no value, which is told where the field can be NULL.
func TestVerifyTombstone(t *testing.T) {
	t.Parallel()
	type deletable struct {
		ID   string  `db:"id"`
		A    *string `db:"a"`
		B    string  `db:"b"`
		Gone bool    `db:"gone"`
		V    int     `db:"v"`
	}
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE things (id text PRIMARY KEY, a text NOT NULL, b text NOT NULL, gone bool, v int)")
	stmt := upsert.Into[deletable]("things").OnConflict("id").Set("a", "b").Tombstone("gone").Version("v").MustBuild()
	var verr *upsert.VerifyError
	require.ErrorAs(t, upsert.Verify(ctx, pool, stmt), &verr)
	require.Len(t, verr.Problems, 1)
	require.Contains(t, verr.Problems[0].Message, "leaves out column a, fails")
	deletion := deletable{ID: "1", Gone: true, V: 1}
	_, err := stmt.Exec(ctx, pool, deletion)
	require.ErrorContains(t, err, "23502")
	exec(t, pool, verr.Problems[0].Fix)
	require.NoError(t, upsert.Verify(ctx, pool, stmt))
	res, err := stmt.Exec(ctx, pool, deletion)
	require.NoError(t, err)
	require.Equal(t, upsert.Inserted, res.Outcome)
}
