package upsert_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// From PostgreSQL 17 on, the bytes of the least and of the greatest interval mean the infinite ones. What was stored by
// somebody else comes back too, with the outcome Stale, in each way and inside of other types.
func TestIntervalsAtTheEnds(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	least, greatest := "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808",
		"178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"
	if get[int](t, pool, "SELECT current_setting('server_version_num')::int") >= 170000 {
		least, greatest = "-infinity", "infinity"
	}
	exec(t, pool, "CREATE DOMAIN span AS interval")
	exec(t, pool, "CREATE TYPE inside AS (i span)")
	exec(t, pool, "CREATE TABLE spans (id text PRIMARY KEY, i interval, d span, a interval[], c inside, p interval, q "+
		"interval, n int)")
	type row struct {
		ID string          `db:"id"`
		I  string          `db:"i"`
		D  string          `db:"d"`
		A  string          `db:"a"`
		C  string          `db:"c"`
		P  pgtype.Interval `db:"p"`
		Q  any             `db:"q"`
		N  int             `db:"n"`
	}
	stmt := upsert.Into[row]("spans").OnConflict("id").Set("i", "d", "a", "c", "p", "q").Version("n").MustBuild()
	for end, binary := range map[string]pgtype.Interval{
		least:    {Months: math.MinInt32, Days: math.MinInt32, Microseconds: math.MinInt64, Valid: true},
		greatest: {Months: math.MaxInt32, Days: math.MaxInt32, Microseconds: math.MaxInt64, Valid: true},
	} {
		exec(t, pool, "INSERT INTO spans SELECT $1::text, i, i, ARRAY[i], ROW(i)::inside, i, i, 2 FROM (SELECT "+
			"$2::interval) AS v (i)", end, binary)
		quoted := end
		if end != "infinity" && end != "-infinity" {
			quoted = `"` + end + `"`
		}
		want := row{end, end, end, "{" + quoted + "}", "(" + quoted + ")", binary, binary, 2}
		for _, d := range drivers(t, cfg) {
			old := row{ID: end, I: "1 day", D: "1 day", A: "{}", C: "(1)", P: pgtype.Interval{Valid: true}, N: 1}
			res, err := stmt.Exec(t.Context(), d.db, old)
			require.NoError(t, err, d.name)
			require.Equal(t, upsert.Stale, res.Outcome, d.name)
			require.Equal(t, want, res.Stored, d.name)
			_, err = stmt.ExecMany(t.Context(), d.db, slices.Values([]row{old}), func(_ int, r upsert.Result[row]) { res = r })
			require.NoError(t, err, d.name)
			require.Equal(t, want, res.Stored, fmt.Sprint(d.name, " many"))
		}
	}
}
