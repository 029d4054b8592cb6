package upsert_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// What a key's type takes for equal is one row, alone and in a batch, though it was written differently.
func TestKeyTypes(t *testing.T) {
	t.Parallel()
	type row struct {
		K any `db:"k"`
		V int `db:"v"`
	}
	stmt := func() *upsert.Stmt[row] { return upsert.Into[row]("keys").OnConflict("k").Version("v").MustBuild() }
	for _, tt := range []struct {
		typ, before string
		keys        []any
		distinct    int
	}{
		{"text", "", []any{"a", "A", "", " ", "a"}, 4},
		{"text COLLATE anycase", "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)", []any{"a", "A", "b"}, 2},
		{"citext", "CREATE EXTENSION citext", []any{"a", "A", "b"}, 2},
		{"char(3)", "", []any{"a", "a ", "a  "}, 1},
		{"mood", "CREATE TYPE mood AS ENUM ('sad', 'happy')", []any{"happy", "sad", "happy"}, 2},
		{"amount", "CREATE DOMAIN amount AS numeric(6,2)", []any{"1.0", "1.00", "1.001", "1.006"}, 2},
		{"pair", "CREATE TYPE pair AS (a int, b text)", []any{"(1,a)", "( 1,a)"}, 1},
		{"int", "", []any{1, "1", " 1", "+1", "01", -1}, 2},
		{"int[]", "", []any{[]int{1, 2}, "{1, 2}", []int{2}}, 2},
		{"float8", "", []any{0.0, math.Copysign(0, -1), math.NaN()}, 2},
		{"jsonb", "", []any{`{"a": 1, "b": 2}`, `{"b":2,"a":1.0}`}, 1},
		{"uuid", "", []any{"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc999c0b4ef8bb6d6bb9bd380a11"}, 1},
		{"boolean", "", []any{true, "t", "yes", false}, 2},
		{"bytea", "", []any{[]byte("x"), `\x78`, []byte{}}, 2},
		{"timestamptz", "", []any{noon, noon.In(time.FixedZone("", 3600)), "2026-03-01 12:00:00Z"}, 1},
		{"timestamptz(0)", "", []any{noon, noon.Add(time.Millisecond)}, 1},
		{"date", "", []any{noon, noon.Add(time.Hour), noon.AddDate(-3000, 0, 0)}, 2},
		{"interval", "", []any{"1 day", 24 * time.Hour}, 1},
		{"inet", "", []any{"10.0.0.1", "10.0.0.1/32"}, 1},
		{"int4range", "", []any{"[1,3)", "[1,2]"}, 1},
	} {
		t.Run(tt.typ, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := pgtest.Pool(t)
			if tt.before != "" {
				if _, err := pool.Exec(ctx, tt.before); err != nil &&
					(strings.Contains(tt.before, "icu") || strings.Contains(tt.before, "EXTENSION")) {
					t.Skipf("this server was built without it: %v", err)
				} else {
					require.NoError(t, err)
				}
			}
			exec(t, pool, "CREATE TABLE keys (k "+tt.typ+" PRIMARY KEY, v int)")
			var rows []row
			for i, k := range tt.keys {
				rows = append(rows, row{k, i})
			}
			s := stmt()
			want := upsert.Summary{Inserted: tt.distinct, Stale: len(rows) - tt.distinct}
			for _, each := range []func(int, upsert.Result[row]){nil, func(int, upsert.Result[row]) {}} {
				exec(t, pool, "TRUNCATE keys")
				sum, err := s.ExecMany(ctx, pool, slices.Values(rows), each)
				require.NoError(t, err)
				require.Equal(t, want, sum)
				stored := get[string](t, pool, "SELECT string_agg(v::text, ' ' ORDER BY v) FROM keys")
				sum, err = s.ExecMany(ctx, pool, slices.Values(rows), each)
				require.NoError(t, err)
				require.Equal(t, upsert.Summary{Unchanged: tt.distinct, Stale: len(rows) - tt.distinct}, sum)

				exec(t, pool, "TRUNCATE keys")
				for i, r := range rows {
					res, err := s.Exec(ctx, pool, r)
					require.NoError(t, err)
					require.Contains(t, []upsert.Outcome{upsert.Inserted, upsert.Updated}, res.Outcome, i)
				}
				require.Equal(t, stored, get[string](t, pool, "SELECT string_agg(v::text, ' ' ORDER BY v) FROM keys"))
			}
			require.NoError(t, upsert.Verify(ctx, pool, s))
		})
	}
}

// Versions at the ends of what a type holds, in ascending order.
func TestVersionTypes(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string `db:"id"`
		V  any    `db:"v"`
	}
	bc := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	for typ, versions := range map[string][]any{
		"timestamptz": {"-infinity", bc(-100), bc(0), bc(1).Add(time.Microsecond), noon, bc(12_000)},
		"timestamp":   {pgtype.Timestamp{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, bc(-100), noon},
		"date":        {pgtype.Date{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, bc(-100), noon},
		"numeric":     {"-1e3", "999.99", "1e3", "1000.01"},
		"float8":      {math.Inf(-1), -1.5, 0.0, math.MaxFloat64},
		"bigint":      {math.MinInt64, -1, 0, uint64(math.MaxInt64)},
		"interval":    {-time.Hour, "0", 23 * time.Hour, "1 day", 25 * time.Hour},
		"uuid":        {"00000000-0000-7000-8000-000000000000", "019A0000-0000-7000-8000-000000000000"},
		"bytea":       {[]byte{}, []byte{0}, []byte{1}},
		"int[]":       {[]int{}, []int{1, 2}, []int{1, 3}},
		"pg_lsn":      {"0/0", "0/16B3748", "1/0"},
		"xid8":        {"9", "10"},
	} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := pgtest.Pool(t)
			exec(t, pool, "CREATE TABLE things (id text PRIMARY KEY, v "+typ+")")
			stmt := upsert.Into[row]("things").OnConflict("id").Version("v").AnyVersionType().MustBuild()
			many := func(v any) upsert.Outcome {
				var out upsert.Outcome
				_, err := stmt.ExecMany(ctx, pool, slices.Values([]row{{"many", v}}),
					func(_ int, r upsert.Result[row]) { out = r.Outcome })
				require.NoError(t, err, v)
				return out
			}
			one := func(v any) upsert.Outcome {
				res, err := stmt.Exec(ctx, pool, row{"one", v})
				require.NoError(t, err, v)
				return res.Outcome
			}
			for i, v := range versions {
				for _, run := range []func(any) upsert.Outcome{one, many} {
					want := upsert.Updated
					if i == 0 {
						want = upsert.Inserted
					}
					require.Equal(t, want, run(v), "%v", v)
					require.Equal(t, upsert.Unchanged, run(v), "%v", v)
					if i > 0 {
						require.Equal(t, upsert.Stale, run(versions[i-1]), "%v", v)
					}
				}
			}
			// In one call, the newest first.
			var rows []row
			for i := range versions {
				rows = append(rows, row{"all", versions[len(versions)-1-i]})
			}
			sum, err := stmt.ExecMany(ctx, pool, slices.Values(rows), nil)
			require.NoError(t, err)
			require.Equal(t, upsert.Summary{Inserted: 1, Stale: len(rows) - 1}, sum)
		})
	}
}

// More rows of one key than go into a statement end as few do.
func TestManyOfOneKeyInSeveralStatements(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	const n = 5000
	run := func(row func(i int) order) (upsert.Summary, map[int]string) {
		told := map[int]string{}
		sum, _ := orders.ExecMany(ctx, pool, func(yield func(order) bool) {
			for i := range n {
				if !yield(row(i)) {
					return
				}
			}
		}, func(i int, r upsert.Result[order]) {
			require.Zero(t, told[i], "told twice")
			told[i] = r.Outcome.String()
		})
		return sum, told
	}
	stored := func() string { return get[string](t, pool, "SELECT status FROM orders") }

	sum, told := run(func(i int) order { return order{"k", fmt.Sprint(i * 7919 % n), noon, i * 7919 % n} })
	require.Len(t, told, n)
	require.Equal(t, "4999", stored())
	require.Equal(t, 1, sum.Inserted)
	require.Equal(t, n, sum.Inserted+sum.Updated+sum.Stale)
	sum, _ = run(func(int) order { return order{"k", "same", noon, n} })
	require.Equal(t, upsert.Summary{Updated: 1, Unchanged: n - 1}, sum)
	_, told = run(func(i int) order {
		id := "k"
		if i%2 == 1 {
			id = fmt.Sprint(i * 7919 % n)
		}
		return order{id, fmt.Sprint(i), noon, n + 1}
	})
	require.Equal(t, "updated", told[0], "the first by position stays")
	require.Equal(t, "0", get[string](t, pool, "SELECT status FROM orders WHERE id = 'k'"))
}
