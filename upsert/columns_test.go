package upsert_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// PostgreSQL drops blanks beyond a varchar's length without an error: two keys would become one, and an event differ
// from itself.
func TestBlanksBeyondTheLength(t *testing.T) {
	t.Parallel()
	type code struct {
		ID string  `db:"id"`
		S  *string `db:"s"`
		V  int     `db:"v"`
	}
	for _, typ := range []string{"varchar(3)", "short"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[code], code) (upsert.Result[code], error)) {
				exec(t, pool, "CREATE DOMAIN short AS varchar(3)")
				exec(t, pool, "CREATE TABLE codes (id "+typ+" PRIMARY KEY, s "+typ+", v int)")
				stmt := upsert.Into[code]("codes").OnConflict("id").Set("s").Version("v").MustBuild()
				for _, want := range []upsert.Outcome{upsert.Inserted, upsert.Unchanged} {
					for _, c := range []code{{"abc", ptr("a  "), 1}, {"äöü", ptr("äöü"), 1}, {"", nil, 1}} {
						res, err := run(stmt, c)
						require.NoError(t, err)
						require.Equal(t, want, res.Outcome)
						require.Equal(t, c, res.Stored)
					}
				}
				for column, c := range map[string]code{"id": {"abc ", nil, 2}, "s": {"abc", ptr("äöü  "), 2}} {
					_, err := run(stmt, c)
					require.ErrorIs(t, err, upsert.ErrInvalidRow)
					require.ErrorContains(t, err, "trim it")
					var row *upsert.RowError
					require.ErrorAs(t, err, &row)
					require.Equal(t, column, row.Column)
				}
				sum, err := stmt.ExecMany(context.Background(), pool,
					slices.Values([]code{{"abc", ptr("n"), 3}, {"abc ", ptr("n"), 4}}), nil)
				require.ErrorIs(t, err, upsert.ErrInvalidRow)
				require.Equal(t, upsert.Summary{Updated: 1, Failed: 1}, sum)
				if typ != "varchar(3)" {
					return
				}
				_, err = stmt.ExecMany(context.Background(), pool, slices.Values([]code{{"x", nil, 1}}), nil) // reads the catalog
				require.NoError(t, err)
				exec(t, pool, "ALTER TABLE codes ALTER id TYPE varchar(9)")
				wide := slices.Values([]code{{"abc ", nil, 1}})
				_, err = stmt.ExecMany(context.Background(), pool, wide, nil)
				require.ErrorIs(t, err, upsert.ErrInvalidRow, "as the column was")
				sum, err = stmt.ExecMany(context.Background(), pool, wide, nil)
				require.NoError(t, err, "the refusal made it look anew")
				require.Equal(t, upsert.Summary{Inserted: 1}, sum)
			})
		})
	}
}

// In a database of another encoding, too, two calls lock the same rows in one order: one whose keys are distinct, and
// one with a key twice.
func TestOneOrderInEveryEncoding(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	for encoding, keys := range map[string][]string{
		"LATIN9": {"ÿ", "€", "z", "é"}, // by Unicode € comes last, here between z and é
		"LATIN1": {"ÿ", "é", "z", "Z"},
		"EUC_JP": {"ー", "漢", "a", "é"},
		"UTF8":   {"ÿ", "€", "\U00010000", "\ufffd"},
	} {
		t.Run(encoding, func(t *testing.T) {
			name := get[string](t, pool, "SELECT current_database()") + "_" + strings.ToLower(encoding)
			exec(t, pool, "CREATE DATABASE "+name+" ENCODING '"+encoding+"' TEMPLATE template0 LOCALE 'C'")
			defer exec(t, pool, "DROP DATABASE "+name)
			// lib/pq speaks UTF-8 to every server
			db, err := sql.Open("postgres", strings.Replace(cfg.ConnString(), cfg.ConnConfig.Database, name, 1))
			require.NoError(t, err)
			defer db.Close()
			_, err = db.ExecContext(ctx, "CREATE TABLE orders ("+orderColumns+", PRIMARY KEY (id))")
			require.NoError(t, err)
			stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
			var orders []string
			for _, twice := range []int{0, 1} {
				_, err = db.ExecContext(ctx, "TRUNCATE orders")
				require.NoError(t, err)
				var rows []order
				for _, k := range append(slices.Clone(keys), keys[:twice]...) {
					rows = append(rows, order{k, "s", noon, 1})
				}
				sum, err := stmt.ExecMany(ctx, upsert.SQL(db), slices.Values(rows), nil)
				require.NoError(t, err)
				require.Equal(t, upsert.Summary{Inserted: len(keys), Unchanged: twice}, sum)
				var written string
				require.NoError(t, db.QueryRowContext(ctx, "SELECT string_agg(id, ' ' ORDER BY ctid) FROM orders").Scan(&written))
				orders = append(orders, written)
			}
			require.Equal(t, orders[1], orders[0])
		})
	}
}

// A column whose type takes more strings for equal than it did makes one statement fail, and the next knows.
func TestKeyTypeChanges(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(ctx, "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"); err != nil {
		t.Skipf("this server was built without it: %v", err)
	}
	create(t, pool, "plain", "orders", orderColumns)
	stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
	rows := slices.Values([]order{{"a", "one", noon, 1}, {"A", "two", noon, 2}})
	sum, err := stmt.ExecMany(ctx, pool, rows, nil)
	require.NoError(t, err)
	require.Equal(t, upsert.Summary{Inserted: 2}, sum)
	exec(t, pool, "TRUNCATE orders")
	exec(t, pool, "ALTER TABLE orders ALTER id TYPE text COLLATE anycase")
	_, err = stmt.ExecMany(ctx, pool, rows, nil)
	require.ErrorContains(t, err, "21000")
	sum, err = stmt.ExecMany(ctx, pool, rows, nil)
	require.NoError(t, err)
	require.Equal(t, upsert.Summary{Inserted: 1, Stale: 1}, sum)
}
