package upsert_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// captive has a column of every kind of type whose values are compared.
type captive struct {
	ID     string     `db:"id"`
	N      int64      `db:"n"`
	Price  *string    `db:"price"`
	Tags   []string   `db:"tags"`
	Doc    *string    `db:"doc"`
	Raw    []byte     `db:"raw"`
	Day    *time.Time `db:"day"`
	At     time.Time  `db:"at"`
	Gone   *time.Time `db:"gone"`
	Active bool       `db:"active"`
}

const captiveColumns = `id pg_catalog.text NOT NULL, n pg_catalog.int8, price pg_catalog.numeric, tags pg_catalog.text[], doc pg_catalog.jsonb,
	raw pg_catalog.bytea, day pg_catalog.date, at pg_catalog.timestamptz NOT NULL, gone pg_catalog.timestamptz, active boolean NOT NULL DEFAULT true`

// captives are statements of every kind, and the key that each needs.
func captives() map[string]upsert.Builder[captive] {
	into := func() upsert.Builder[captive] { return upsert.Into[captive]("app.things").OnConflict("id") }
	all := []string{"n", "price", "tags", "doc", "raw", "day", "active"}
	return map[string]upsert.Builder[captive]{
		"version":     into().Set(append(all, "gone")...).Version("at"),
		"tie":         into().Set("price", "tags", "doc", "raw", "day", "active", "gone").Version("at", "n"),
		"last wins":   into().Set(append(all, "at", "gone")...).LastWins(),
		"first wins":  into().SetOnInsert(append(all, "at", "gone")...).FirstWins(),
		"max skew":    into().Set(append(all, "gone")...).Version("at").MaxSkew(time.Minute),
		"tombstone":   into().Set(all...).Version("at").Tombstone("gone"),
		"if not null": into().SetIfNotNull("price", "doc", "raw").Set("n", "tags", "day", "active", "gone").Version("at"),
		"predicate": upsert.Into[captive]("app.things").OnConflict("id").Where("active").Set("n", "price", "tags", "doc",
			"raw", "day", "gone", "active", "at").LastWins(),
		"expression": upsert.Into[captive]("app.things").OnConflict("(pg_catalog.lower(id))").
			Set(append(all, "gone")...).SetOnInsert("id").Version("at"),
	}
}

// captiveTable makes the table of a statement.
func captiveTable(name string) string {
	key := "ALTER TABLE app.things ADD PRIMARY KEY (id)"
	switch name {
	case "predicate":
		key = "CREATE UNIQUE INDEX things_key ON app.things (id) WHERE active"
	case "expression":
		key = "CREATE UNIQUE INDEX things_key ON app.things (pg_catalog.lower(id))"
	}
	return "DROP TABLE IF EXISTS app.things; CREATE TABLE app.things (" + captiveColumns + "); " + key
}

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever writes.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for name, stmt := range captives() {
		for _, path := range pgtest.ShadowPaths() {
			t.Run(path+"/"+name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Shadowed(t, path)
				exec(t, pool, captiveTable(name), pgx.QueryExecModeSimpleProtocol)
				captureStatement(t, pool, stmt.MustBuild(), func(sql string, args ...any) error {
					_, err := pool.Exec(t.Context(), sql, append([]any{pgx.QueryExecModeCacheStatement}, args...)...)
					return err
				})
				require.Greater(t, pgtest.Captured(t, pool), 3)
			})
		}
	}
}

// The same through database/sql.
func TestNothingIsCapturedSQL(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		for _, path := range pgtest.ShadowPaths() {
			t.Run(driver+"/"+path, func(t *testing.T) {
				t.Parallel()
				db := pgtest.ShadowedSQL(t, path, func(dsn string) (*sql.DB, error) { return sql.Open(driver, dsn) })
				for name, stmt := range captives() {
					_, err := db.ExecContext(t.Context(), captiveTable(name))
					require.NoError(t, err, name)
					captureStatement(t, upsert.SQL(db), stmt.MustBuild(), func(sql string, args ...any) error {
						for i, arg := range args {
							if tags, ok := arg.([]string); ok {
								args[i] = pq.StringArray(tags)
							}
						}
						_, err := db.ExecContext(t.Context(), sql, args...)
						return err
					})
				}
			})
		}
	}
}

func captureStatement(
	t *testing.T, db upsert.DB, stmt *upsert.Stmt[captive], plain func(sql string, args ...any) error,
) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, upsert.Verify(ctx, db, stmt))
	row := func(id string, age time.Duration) captive {
		price, doc := "1.50", `{"a": 1}`
		return captive{
			ID: id, N: 1, Price: &price, Tags: []string{"x"}, Doc: &doc, Raw: []byte("r"), Day: &noon,
			At: noon.Add(-age), Active: true,
		}
	}
	for _, r := range []captive{row("1", 0), row("1", 0), row("1", time.Hour), row("1", -time.Hour), row("2", 0)} {
		_, err := stmt.Exec(ctx, db, r)
		require.NoError(t, err)
	}
	for _, rows := range [][]captive{
		{row("3", 0), row("4", 0)},
		{row("1", 0), row("3", -time.Hour), row("5", 0)},
		{row("6", 0), row("6", -time.Hour)},
	} {
		for _, each := range []func(int, upsert.Result[captive]){
			nil,
			func(_ int, r upsert.Result[captive]) { require.NoError(t, r.Err) },
		} {
			_, err := stmt.ExecMany(ctx, db, slices.Values(rows), each)
			require.NoError(t, err)
		}
	}
	sql, columns := stmt.SQL()
	args := []any{}
	values := map[string]any{
		"id": "9", "n": int64(1), "price": "1", "tags": []string{"x"}, "doc": `{}`, "raw": []byte("r"), "day": noon,
		"at": noon, "gone": nil, "active": true,
	}
	for _, c := range columns {
		args = append(args, values[c])
	}
	for range 2 {
		require.NoError(t, plain(sql, args...))
	}
	require.NotContains(t, strings.ToLower(sql), "evil")
}
