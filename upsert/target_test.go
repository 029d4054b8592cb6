package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

type account struct {
	Tenant    string     `db:"tenant"`
	Email     string     `db:"email"`
	Name      string     `db:"name"`
	DeletedAt *time.Time `db:"deleted_at"`
	V         int        `db:"v"`
}

// sequence runs events of one entity and compares the outcomes.
func sequence[T any](
	t *testing.T, run func(*upsert.Stmt[T], T) (upsert.Result[T], error), stmt *upsert.Stmt[T], row func(v int) T,
) {
	t.Helper()
	for i, s := range []struct {
		v    int
		want upsert.Outcome
	}{
		{2, upsert.Inserted},
		{2, upsert.Unchanged},
		{1, upsert.Stale},
		{3, upsert.Updated},
		{4, upsert.Updated},
		{3, upsert.Stale},
	} {
		res, err := run(stmt, row(s.v))
		require.NoError(t, err, i)
		require.Equal(t, s.want, res.Outcome, i)
	}
}

func TestCompositeKey(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"", " PARTITION BY HASH (tenant)", " PARTITION BY LIST (tenant)"} {
		t.Run("table"+part, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, pool *pgxpool.Pool,
				run func(*upsert.Stmt[account], account) (upsert.Result[account], error),
			) {
				exec(t, pool, "CREATE TABLE accounts (tenant text, email text, name text, deleted_at timestamptz, v int, PRIMARY "+
					"KEY (email, tenant))"+part)
				if part != "" {
					bounds := "WITH (MODULUS 1, REMAINDER 0)"
					if part == " PARTITION BY LIST (tenant)" {
						bounds = "IN ('one', 'two')"
					}
					exec(t, pool, "CREATE TABLE accounts_1 PARTITION OF accounts FOR VALUES "+bounds)
				}
				stmt := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v").MustBuild()
				for _, tenant := range []string{"one", "two"} {
					sequence(t, run, stmt, func(v int) account {
						return account{Tenant: tenant, Email: "a", Name: fmt.Sprint(v), V: v}
					})
				}
				require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM accounts"))
				require.NoError(t, upsert.Verify(context.Background(), pool, stmt))
			})
		})
	}
}

func TestExpressionTarget(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool,
		run func(*upsert.Stmt[account], account) (upsert.Result[account], error),
	) {
		exec(t, pool, "CREATE TABLE accounts (tenant text NOT NULL, email varchar, name text, deleted_at timestamptz, v int)")
		exec(t, pool, "CREATE UNIQUE INDEX ON accounts (tenant, lower(email))")
		stmt := upsert.Into[account]("accounts").OnConflict("tenant", "lower(email)").Set("email",
			"name").Version("v").MustBuild()
		require.NoError(t, upsert.Verify(context.Background(), pool, stmt))
		sequence(t, run, stmt, func(v int) account {
			return account{Tenant: "t", Email: []string{"A@b", "a@B", "a@b"}[v%3], Name: fmt.Sprint(v % 3), V: v}
		})
		require.Equal(t, "a@B 4", get[string](t, pool, "SELECT string_agg(email || ' ' || v, ',') FROM accounts"))
	})
}

func TestExpressionKeyIsNull(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[user], user) (upsert.Result[user], error)) {
		exec(t, pool, "CREATE TABLE users (id int, email text, name text, plan text, public_id text, deleted_at "+
			"timestamptz, v int)")
		exec(t, pool, "CREATE UNIQUE INDEX ON users (lower(plan))")
		stmt := upsert.Into[user]("users").OnConflict("lower(plan)").Set("plan", "name").Version("v").MustBuild()
		_, err := run(stmt, user{V: 1})
		require.ErrorIs(t, err, upsert.ErrInvalidRow)
		require.Zero(t, get[int](t, pool, "SELECT count(*) FROM users"))
	})
}

// A row may hold nothing but NULLs under a key that is an expression, and is a stored row all the same.
func TestExpressionKeyOfNulls(t *testing.T) {
	t.Parallel()
	type bare struct {
		Plan *string `db:"plan"`
		V    int     `db:"v"`
	}
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[bare], bare) (upsert.Result[bare], error)) {
		exec(t, pool, "CREATE TABLE bares (plan text, v int)")
		exec(t, pool, "CREATE UNIQUE INDEX ON bares (coalesce(plan, 'none'))")
		exec(t, pool, "INSERT INTO bares DEFAULT VALUES")
		stmt := upsert.Into[bare]("bares").OnConflict("coalesce(plan, 'none')").Set("plan").Version("v").MustBuild()
		for i, want := range []upsert.Outcome{upsert.Updated, upsert.Unchanged} {
			res, err := run(stmt, bare{V: 1})
			require.NoError(t, err)
			require.Equal(t, want, res.Outcome, i)
		}
		res, err := run(stmt, bare{Plan: ptr("pro"), V: 1})
		require.NoError(t, err)
		require.Equal(t, upsert.Inserted, res.Outcome)
		require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM bares"))
	})
}

// The predicate is a literal in the statement, so it still matches the index when a generic plan is used.
func TestPartialTarget(t *testing.T) {
	t.Parallel()
	for _, withDeleted := range []bool{true, false} {
		t.Run(fmt.Sprint("deleted_at written: ", withDeleted), func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, pool *pgxpool.Pool,
				run func(*upsert.Stmt[account], account) (upsert.Result[account], error),
			) {
				exec(t, pool, "CREATE TABLE accounts (tenant text, email text NOT NULL, name text, deleted_at timestamptz, v int)")
				exec(t, pool, "CREATE UNIQUE INDEX one_live ON accounts (email) WHERE deleted_at IS NULL")
				b := upsert.Into[account]("accounts").OnConflict("email").Where("deleted_at IS NULL").Set("name").Version("v")
				if withDeleted {
					b = b.SetOnInsert("deleted_at")
				}
				stmt := b.MustBuild()
				row := func(v int) account { return account{Email: "a", Name: fmt.Sprint(v), V: v} }
				sequence(t, run, stmt, row)
				for v := 5; v < 20; v++ { // beyond the sixth execution
					res, err := run(stmt, row(v))
					require.NoError(t, err)
					require.Equal(t, upsert.Updated, res.Outcome)
				}
				exec(t, pool, "UPDATE accounts SET deleted_at = now()")
				res, err := run(stmt, row(20))
				require.NoError(t, err)
				require.Equal(t, upsert.Inserted, res.Outcome, "one live row beside the deleted one")
				res, err = run(stmt, row(20))
				require.NoError(t, err)
				require.Equal(t, upsert.Unchanged, res.Outcome)
				require.Equal(t, "1 of 2", get[string](t, pool,
					"SELECT count(*) FILTER (WHERE deleted_at IS NULL) || ' of ' || count(*) FROM accounts"))
				if withDeleted {
					dead := row(30)
					dead.DeletedAt = &noon
					_, err = run(stmt, dead)
					require.ErrorIs(t, err, upsert.ErrInvalidRow, "a row outside the predicate would be inserted at each retry")
				}
			})
		})
	}
}

type odd struct {
	Key   string `db:"Key"`
	Value string `db:"select"`
	Set   int    `db:"a \"quoted\" one"`
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"Order", "excluded", "event", "stored", "applied", "judged", "absent", "tally", "old", "new", "t", "e", "s", "a",
		"y", "select", "MiXed.Case", `other."a.b"`, `"do""t"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[odd], odd) (upsert.Result[odd], error)) {
				quoted := map[string]string{
					"MiXed.Case": `"MiXed"."Case"`, `other."a.b"`: `other."a.b"`,
					`"do""t"`: `"do""t"`,
				}[name]
				if quoted == "" {
					quoted = `"` + name + `"`
				}
				exec(t, pool, `CREATE SCHEMA "MiXed"`)
				exec(t, pool, `CREATE SCHEMA other`)
				exec(t, pool, "CREATE TABLE "+quoted+` ("Key" text PRIMARY KEY, "select" text, "a ""quoted"" one" int)`)
				stmt := upsert.Into[odd](name).OnConflict("Key").Set("select").Version(`a "quoted" one`).MustBuild()
				sequence(t, run, stmt, func(v int) odd { return odd{"k", fmt.Sprint(v), v} })
				require.Equal(t, 4, get[int](t, pool, `SELECT "a ""quoted"" one" FROM `+quoted))
				require.NoError(t, upsert.Verify(context.Background(), pool, stmt))
			})
		})
	}
}

// The plain form does to the table what Exec does.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx := context.Background()
	create(t, pool, "plain", "things", thingColumns)
	for _, m := range modelRules() {
		sql, columns := m.stmt.SQL()
		exec(t, pool, "TRUNCATE things")
		var stored *thing
		versions := []int{2, 1, 2, 3}
		for i, v := range versions {
			e := thing{
				ID: "1", A: ptr(fmt.Sprint(i)), C: ptr(fmt.Sprint(i)), N: ptr("n"), V: &v, E: ptr(0), F: ptr(0),
				Gone: ptr(i == 3),
			}
			if i == 2 {
				e.A = ptr("0")
			}
			args := map[string]any{
				"id": e.ID, "a": e.A, "b": e.B, "n": e.N, "c": e.C, "gone": e.Gone, "v": e.V, "e": e.E,
				"f": e.F,
			}
			var values []any
			for _, c := range columns {
				values = append(values, args[c])
			}
			exec(t, pool, sql, values...)
			if !m.tombstone {
				e.Gone = nil
			}
			_, stored = m.one(e, stored)
			var got thing
			rows, err := pool.Query(ctx, "SELECT a, n, c, gone, v FROM things")
			require.NoError(t, err)
			require.True(t, rows.Next())
			require.NoError(t, rows.Scan(&got.A, &got.N, &got.C, &got.Gone, &got.V))
			rows.Close()
			got.ID, got.B, got.E, got.F = stored.ID, stored.B, stored.E, stored.F
			require.Equal(t, show(*stored), show(got), "%s, event %d", m.name, i)
		}
	}
}

func TestDecimalKeys(t *testing.T) {
	t.Parallel()
	type price struct {
		N string `db:"n"`
		S string `db:"s"`
		V int    `db:"v"`
	}
	for _, typ := range []string{"numeric", "numeric(10,2)"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := pgtest.Pool(t)
			exec(t, pool, "CREATE TABLE prices (n "+typ+" PRIMARY KEY, s text, v int)")
			stmt := upsert.Into[price]("prices").OnConflict("n").Set("s").Version("v").MustBuild()
			rows := []price{{"1.0", "a", 1}, {"1.00", "b", 3}, {"01", "c", 2}, {"-0", "d", 1}, {"0.000", "e", 2}}
			sum, err := stmt.ExecMany(ctx, pool, slices.Values(rows), nil)
			require.NoError(t, err)
			require.Equal(t, upsert.Summary{Inserted: 2, Stale: 3}, sum)
			require.Equal(t, "b e", get[string](t, pool, "SELECT string_agg(s, ' ' ORDER BY s) FROM prices"))
			res, err := stmt.Exec(ctx, pool, price{"1", "z", 4})
			require.NoError(t, err)
			require.Equal(t, upsert.Updated, res.Outcome)
		})
	}
}
