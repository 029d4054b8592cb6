package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// The summary of a call that nobody is told of row by row says what a trigger saw happen, while writers and deleters
// race; and so does that of a call that is told. At REPEATABLE READ a call that met a rival has failed, and counts
// nothing.
func TestCountsUnderRaces(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
			ctx := context.Background()
			create(t, pool, kind, "things", "id text, event text, v int, e int")
			exec(t, pool, "CREATE TABLE audit (op text, event text)")
			exec(t, pool, "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO audit VALUES "+
				"(TG_OP, NEW.event); RETURN NEW; END$$")
			exec(t, pool, "CREATE TRIGGER audit AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION audit()")
			stmt := upsert.Into[tagged]("things").OnConflict("id").Set("event").Version("v", "e").MustBuild()
			rounds := 120
			if testing.Short() {
				rounds = 25
			}
			var mu sync.Mutex
			sums := map[string]upsert.Summary{}
			var wg sync.WaitGroup
			errs := make(chan error, 10_000)
			rng := source(t)
			for w := range 6 {
				rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
				wg.Go(func() {
					for n := range rounds {
						if w == 0 {
							if _, err := pool.Exec(ctx, "DELETE FROM things WHERE id = $1", fmt.Sprint(rng.IntN(4))); err != nil {
								errs <- err
							}
							continue
						}
						call := fmt.Sprintf("%d-%d", w, n)
						var batch []tagged
						for i := range 4 {
							id := i // all distinct, or some twice
							if n%2 == 0 {
								id = rng.IntN(4)
							}
							batch = append(batch, tagged{fmt.Sprint(id), call, n + rng.IntN(3), w*100_000 + n*10 + i})
						}
						var told upsert.Summary
						var each func(int, upsert.Result[tagged])
						if w%2 == 0 {
							vs := make([]verdict, len(batch))
							each = func(i int, r upsert.Result[tagged]) { vs[i].outcome = r.Outcome; told = count(vs) }
						}
						var sum upsert.Summary
						err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) (err error) {
							sum, err = stmt.ExecMany(ctx, tx, slices.Values(batch), each)
							return err
						})
						switch {
						case level != pgx.ReadCommitted && code(err) == "40001":
							if sum != (upsert.Summary{}) {
								errs <- fmt.Errorf("%s: it failed and counts %+v", call, sum)
							}
							continue
						case err != nil:
							errs <- err
						case each != nil && told != sum:
							errs <- fmt.Errorf("%s: told %+v, counted %+v", call, told, sum)
						case sum.Inserted+sum.Updated+sum.Stale+sum.Unchanged != len(batch):
							errs <- fmt.Errorf("%s: %d rows, counted %+v", call, len(batch), sum)
						}
						mu.Lock()
						sums[call] = sum
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
			rows, err := pool.Query(ctx, "SELECT op, event, count(*) FROM audit GROUP BY op, event")
			require.NoError(t, err)
			did := map[string]upsert.Summary{}
			var op, call string
			var n int
			_, err = pgx.ForEachRow(rows, []any{&op, &call, &n}, func() error {
				s := did[call]
				if op == "INSERT" {
					s.Inserted = n
				} else {
					s.Updated = n
				}
				did[call] = s
				return nil
			})
			require.NoError(t, err)
			var all upsert.Summary
			for call, sum := range sums {
				all.Inserted, all.Updated, all.Stale = all.Inserted+sum.Inserted, all.Updated+sum.Updated, all.Stale+sum.Stale
				require.Equal(t, did[call], upsert.Summary{Inserted: sum.Inserted, Updated: sum.Updated}, "%s: %+v", call, sum)
				delete(did, call)
			}
			require.Empty(t, did, "rows of calls that failed")
			t.Logf("%s: %+v", level, all)
			require.NotZero(t, all.Inserted)
			require.NotZero(t, all.Updated)
			require.NotZero(t, all.Stale)
		})
	}
}

// Calls with the same keys in opposite orders, of which some have a key twice (and are sorted by the server) and some
// do not (and come sorted), beside single calls in the order of the keys in one transaction, never deadlock.
func TestOppositeOrdersOfEveryForm(t *testing.T) {
	t.Parallel()
	type row struct {
		A string `db:"a"`
		B int    `db:"b"`
		V int    `db:"v"`
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE pairs (a text, b int, v int, PRIMARY KEY (b, a))")
	stmt := upsert.Into[row]("pairs").OnConflict("b", "a").Version("v").MustBuild()
	_, err := stmt.ExecMany(ctx, pool, slices.Values([]row{}), nil)
	require.NoError(t, err)
	var keys []row // in the order of the keys: the columns by name, strings by byte
	for _, a := range []string{"A", "B-", "B_", "Bé", "a", "b", "é"} {
		for _, b := range []int{-10, -9, 0, 9, 10, 100} {
			keys = append(keys, row{a, b, 0})
		}
	}
	rounds := 100
	if testing.Short() {
		rounds = 25
	}
	for round := range rounds {
		var wg sync.WaitGroup
		errs := make([]error, 4)
		version := func(i int, r row) row { r.V = round*10 + i; return r }
		for i := range errs {
			rows := slices.Clone(keys)
			for j := range rows {
				rows[j] = version(i, rows[j])
			}
			if i%2 == 1 {
				slices.Reverse(rows)
			}
			if i == 1 {
				rows = append(rows, rows[len(rows)/2], rows[0]) // a key twice
			}
			wg.Go(func() {
				errs[i] = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if i == 0 {
						for _, r := range rows {
							if _, err := stmt.Exec(ctx, tx, r); err != nil {
								return err
							}
						}
						return nil
					}
					var each func(int, upsert.Result[row])
					if round%2 == 0 {
						each = func(int, upsert.Result[row]) {}
					}
					_, err := stmt.ExecMany(ctx, tx, slices.Values(rows), each)
					return err
				})
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...), "round %d", round)
	}
	require.Equal(t, len(keys), get[int](t, pool, "SELECT count(*) FROM pairs WHERE v = $1", (rounds-1)*10+3))
}
