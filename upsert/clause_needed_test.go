package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// The guard of SQL(): an event as old as what is stored changes nothing, and a stored NULL is older than every event.
func TestPlainGuard(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	into := upsert.Into[order]("orders").OnConflict("id").Set("status")
	for _, stmt := range []*upsert.Stmt[order]{into.Version("rank").MustBuild(), into.Version("rank", "at").MustBuild()} {
		exec(t, pool, "TRUNCATE orders")
		exec(t, pool, "INSERT INTO orders VALUES ('1', 'stored', '2026-03-01 12:00Z', 1), ('2', 'stored', NULL, NULL)")
		for _, id := range []string{"1", "2"} {
			row := map[string]any{"id": id, "status": "sent", "at": noon, "rank": 1}
			require.NoError(t, byHand(t, pool, stmt, row))
		}
		require.Equal(t, "1stored 2sent",
			get[string](t, pool, "SELECT string_agg(id || status, ' ' ORDER BY id) FROM orders"))
	}
}

// A clash with another constraint is never taken for a row that is there, by FirstWins in every form.
func TestFirstWinsNamesItsTarget(t *testing.T) {
	t.Parallel()
	stmt := upsert.Into[order]("orders").OnConflict("id").SetOnInsert("status").FirstWins().MustBuild()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns+", UNIQUE (status)")
		exec(t, pool, "INSERT INTO orders VALUES ('1', 'taken', NULL, NULL)")
		_, err := run(stmt, order{ID: "2", Status: "taken"})
		require.ErrorIs(t, err, upsert.ErrOtherConstraint)
		require.ErrorContains(t, byHand(t, pool, stmt, map[string]any{"id": "2", "status": "taken"}), "23505")
	})
}

// MaxSkew is counted from the present, not from the begin of a transaction that may be old.
func TestMaxSkewInAnOldTransaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at",
		"rank").MaxSkew(time.Minute).MustBuild()
	for bulk := range 2 {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		exec(t, tx, "SELECT now(), pg_sleep(0.4)")
		row := order{"1", "s", get[time.Time](t, tx, "SELECT clock_timestamp() + interval '1 minute -0.1 seconds'"), bulk}
		if bulk == 1 {
			_, err = stmt.ExecMany(ctx, tx, slices.Values([]order{row}), nil)
		} else {
			_, err = stmt.Exec(ctx, tx, row)
		}
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(ctx))
	}
}

// A row of a batch that is refused does not take the place of a good one with its key.
func TestRefusedRowHidesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at",
		"rank").MaxSkew(time.Hour).MustBuild()
	ahead := order{"1", "ahead", time.Now().Add(1000 * time.Hour), 1}
	for i, each := range []func(int, upsert.Result[order]){nil, func(int, upsert.Result[order]) {}} {
		exec(t, pool, "TRUNCATE orders")
		rows := []order{{"1", "old", noon.Add(-time.Hour), 1}, ahead, {"1", "good", noon, 1}, ahead}
		sum, err := stmt.ExecMany(ctx, pool, slices.Values(rows), each)
		require.ErrorIs(t, err, upsert.ErrVersionAhead)
		require.Equal(t, upsert.Summary{Inserted: 1, Stale: 1, Failed: 2}, sum, i)
		require.Equal(t, "good", get[string](t, pool, "SELECT status FROM orders"))
	}
}

// The mark that a call leaves for its own rows says nothing of the next call in the same transaction.
func TestManyAfterDeleteInOneTransaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	exec(t, pool, "INSERT INTO orders VALUES ('1', 'stored', NULL, NULL)")
	for _, again := range []bool{false, true} { // a key twice takes the other form
		for _, each := range []func(int, upsert.Result[order]){nil, func(int, upsert.Result[order]) {}} {
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer tx.Rollback(ctx)
			rows := []order{{"1", "s", noon, 1}}
			want := upsert.Summary{Updated: 1}
			if again {
				rows = append(rows, order{"1", "s", noon, 0})
				want.Stale = 1
			}
			sum, err := orders.ExecMany(ctx, tx, slices.Values(rows), each)
			require.NoError(t, err)
			require.Equal(t, want, sum)
			exec(t, tx, "DELETE FROM orders")
			sum, err = orders.ExecMany(ctx, tx, slices.Values(rows), each)
			require.NoError(t, err)
			want.Inserted, want.Updated = 1, 0
			require.Equal(t, want, sum)
			require.NoError(t, tx.Rollback(ctx))
		}
	}
}

// Strings are locked in the order of their bytes, whatever the column's own: rows are spread over statements by that
// order. And the statement says so itself, where a key may be there twice, for the planner may find a way to rank
// rows without a sort.
func TestLockOrderIsByBytes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	if get[int](t, pool, "SELECT count(*) FROM pg_collation WHERE collname = 'en-x-icu'") == 0 {
		exec(t, pool, `CREATE COLLATION "en-x-icu" (provider = libc, locale = 'en_US.utf8')`)
	}
	exec(t, pool, `CREATE TABLE orders (id text COLLATE "en-x-icu" PRIMARY KEY, status text, at timestamptz, rank int)`)
	require.True(t, get[bool](t, pool, `SELECT 'a' < 'B' COLLATE "en-x-icu"`))
	stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
	for _, again := range []bool{false, true} {
		exec(t, pool, "TRUNCATE orders")
		rows := []order{
			{"b", "s", noon, 1},
			{"a", "s", noon, 1},
			{"B", "s", noon, 1},
			{"_", "s", noon, 1},
			{"A", "s", noon, 1},
		}
		if again {
			rows = append(rows, rows[0])
		}
		_, err := stmt.ExecMany(ctx, pool, slices.Values(rows), nil)
		require.NoError(t, err)
		require.Equal(t, "A B _ a b", get[string](t, pool, "SELECT string_agg(id, ' ' ORDER BY ctid) FROM orders"), again)
	}
	_, many := upsert.Texts(stmt)
	for _, withRows := range []bool{false, true} {
		insert, _, _ := strings.Cut(many(withRows, false), "ON CONFLICT")
		require.True(t, strings.HasSuffix(strings.TrimSpace(insert), `ORDER BY e."id" COLLATE pg_catalog."C"`), insert)
	}
}

// Two events of one version whose values the type takes for equal, and which differ, are a conflict, and not the same
// event.
func TestFuzzyContentDiffers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE EXTENSION citext")
	type held struct {
		ID string `db:"id"`
		C  string `db:"c"`
		V  int    `db:"v"`
	}
	types := [][3]string{
		{"citext", "a", "A"},
		{"citext[]", "{a}", "{A}"},
		{"interval", "24 hours", "1 day"},
		{"box", "(1,1),(0,0)", "(2,1),(1,0)"},
		{"json", `{"a":1}`, `{"a": 1}`},
	}
	if get[int](t, pool, "SELECT count(*) FROM pg_collation WHERE collprovider = 'i'") > 0 {
		exec(t, pool, "CREATE COLLATION fuzzy (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
		types = append(types, [3]string{"text COLLATE fuzzy", "a", "A"})
	}
	for i, c := range types {
		table := fmt.Sprintf("held_%d", i)
		exec(t, pool, "CREATE TABLE "+table+" (id text PRIMARY KEY, c "+c[0]+", v int)")
		build := upsert.Into[held](table).OnConflict("id").Set("c")
		stmt, last := build.Version("v").MustBuild(), build.LastWins()
		res, err := stmt.Exec(ctx, pool, held{"1", c[1], 1})
		require.NoError(t, err, c[0])
		require.Equal(t, upsert.Inserted, res.Outcome)
		_, err = stmt.Exec(ctx, pool, held{"1", c[2], 1})
		require.ErrorIs(t, err, upsert.ErrVersionConflict, c[0])
		_, err = stmt.ExecMany(ctx, pool, slices.Values([]held{{"1", c[2], 1}}), nil)
		require.ErrorIs(t, err, upsert.ErrVersionConflict, c[0])
		res, err = stmt.Exec(ctx, pool, held{"1", c[1], 1})
		require.NoError(t, err, c[0])
		require.Equal(t, upsert.Unchanged, res.Outcome, c[0])
		res, err = last.SetOnInsert("v").MustBuild().Exec(ctx, pool, held{"1", c[2], 1})
		require.NoError(t, err, c[0])
		require.Equal(t, upsert.Updated, res.Outcome, c[0])
	}
}

// A sequence value goes with every row that is proposed, of which an update keeps none: Inserted and Updated draw
// one, and so does a call whose rival came first. Stale and Unchanged draw none.
func TestSequenceValues(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		for _, kind := range []string{"bigserial", "bigint GENERATED ALWAYS AS IDENTITY"} {
			exec(t, pool, "DROP TABLE IF EXISTS orders")
			create(t, pool, "plain", "orders", orderColumns+", n "+kind)
			stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
			for i, s := range []struct {
				rank  int
				want  upsert.Outcome
				drawn int
			}{
				{1, upsert.Inserted, 1},
				{1, upsert.Unchanged, 1},
				{2, upsert.Updated, 2},
				{1, upsert.Stale, 2},
				{3, upsert.Updated, 3},
			} {
				res, err := run(stmt, order{"1", "s", noon, s.rank})
				require.NoError(t, err)
				require.Equal(t, s.want, res.Outcome, i)
				require.Equal(t, s.drawn, get[int](t, pool, "SELECT last_value FROM orders_n_seq"), "%s, after %s", kind, s.want)
			}
			require.Equal(t, 1, get[int](t, pool, "SELECT n FROM orders"), "the row keeps its number")
		}
	})
}
