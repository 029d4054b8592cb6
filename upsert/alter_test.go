package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// A column's precision changes under a statement in use. A newer event is not taken for an old one; and where the
// statement had no reason to look, it fails once and then knows.
func TestAlteredPrecision(t *testing.T) {
	t.Parallel()
	type amount struct {
		ID string    `db:"id"`
		N  string    `db:"n"`
		At time.Time `db:"at"`
	}
	ms := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Millisecond) }
	type step struct {
		row  amount
		want upsert.Outcome
	}
	cases := []struct {
		before, after string
		errors        int
		steps         []step
	}{
		{"at timestamptz(0)", "at TYPE timestamptz(3)", 0, []step{
			{amount{"1", "2.5", ms(200)}, upsert.Updated},
			{amount{"1", "3.5", ms(400)}, upsert.Updated}, // both are noon to the second
			{amount{"1", "3.5", ms(400)}, upsert.Unchanged},
			{amount{"1", "2.5", ms(200)}, upsert.Stale},
		}},
		{"at timestamptz(3)", "at TYPE timestamptz(0)", 0, []step{
			{amount{"1", "2.5", ms(1400)}, upsert.Updated},
			{amount{"1", "2.5", ms(1400)}, upsert.Unchanged},
		}},
		{"at timestamptz", "at TYPE timestamptz(0)", 1, []step{
			{amount{"1", "2.5", ms(1400)}, upsert.Updated},
			{amount{"1", "2.5", ms(1400)}, upsert.Unchanged},
		}},
		{"at timestamptz", "n TYPE numeric(9,1)", 1, []step{
			{amount{"1", "2.55", ms(2000)}, upsert.Updated},
			{amount{"1", "2.55", ms(2000)}, upsert.Unchanged},
		}},
		{"at timestamptz", "at TYPE timestamp USING at AT TIME ZONE 'UTC'", 0, []step{
			{amount{"1", "2.5", ms(1)}, upsert.Updated},
			{amount{"1", "2.5", ms(1)}, upsert.Unchanged},
		}},
	}
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.PoolConfig(t, cfg)
			for n, c := range cases {
				for _, bulk := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s/bulk %v", c.before, c.after, bulk), func(t *testing.T) {
						table := fmt.Sprintf("amounts_%d_%v", n, bulk)
						exec(t, pool, "CREATE TABLE "+table+" (id text PRIMARY KEY, n numeric, "+c.before+")")
						stmt := upsert.Into[amount](table).OnConflict("id").Set("n").Version("at").MustBuild()
						run := func(row amount) (res upsert.Result[amount], err error) {
							if !bulk {
								return stmt.Exec(ctx, pool, row)
							}
							_, err = stmt.ExecMany(ctx, pool, slices.Values([]amount{row}), func(_ int, r upsert.Result[amount]) { res = r })
							return res, err
						}
						_, err := run(amount{"1", "1.5", noon})
						require.NoError(t, err)
						exec(t, pool, "ALTER TABLE "+table+" ALTER "+c.after)
						failed := 0
						for i, s := range c.steps {
							res, err := run(s.row)
							if err != nil {
								failed++
								res, err = run(s.row)
							}
							require.NoError(t, err, i)
							require.Equal(t, s.want, res.Outcome, i)
						}
						// A prepared statement fails once for its own reasons.
						require.LessOrEqual(t, failed, c.errors+1)
						if bulk {
							require.Equal(t, c.errors, failed)
						}
					})
				}
			}
		})
	}
}
