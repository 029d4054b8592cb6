package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// source returns a random source and prints how to have it again.
func source(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if *seedFlag != 0 {
		seed = *seedFlag
	}
	t.Logf("again with: go test ./upsert -run '%s' -upsert.seed=%d", t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// tagged is a row that says which event it came from.
type tagged struct {
	ID    string `db:"id"`
	Event string `db:"event"`
	V     int    `db:"v"`
	E     int    `db:"e"`
}

// Any order, any duplicates, any number of workers, alone or in batches: the newest event of each entity stays.
func TestPermutationsConverge(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "things", "id text, event text, v int, e int")
		stmt := upsert.Into[tagged]("things").OnConflict("id").Set("event").Version("v", "e").MustBuild()
		rng := source(t)
		var events []tagged
		want := map[string]tagged{}
		for k := range 30 {
			for n := range 1 + rng.IntN(6) {
				e := tagged{fmt.Sprint(k), fmt.Sprintf("%d-%d", k, n), n / 2, n % 2}
				want[e.ID] = e
				for range 1 + rng.IntN(4) {
					events = append(events, e)
				}
			}
		}
		rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		var wg sync.WaitGroup
		errs := make(chan error, len(events))
		for part := range slices.Chunk(events, len(events)/6+1) {
			wg.Go(func() {
				for chunk := range slices.Chunk(part, 3) {
					if len(chunk) == 3 && chunk[0].V%2 == 0 {
						if _, err := stmt.ExecMany(ctx, pool, slices.Values(chunk), nil); err != nil {
							errs <- err
						}
						continue
					}
					for _, e := range chunk {
						if _, err := stmt.Exec(ctx, pool, e); err != nil {
							errs <- err
						}
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		rows, err := pool.Query(ctx, "SELECT * FROM things")
		require.NoError(t, err)
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tagged])
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for _, row := range got {
			require.Equal(t, want[row.ID], row)
		}
	})
}

// auditDDL writes down what happened to rows, by event.
const auditDDL = `
CREATE TABLE audit (op text, event text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  INSERT INTO audit VALUES (TG_OP, NEW.event);
  RETURN NEW;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION audit()`

// Every outcome, one by one, is what a trigger saw happen, while writers and deleters race on few keys.
func TestOutcomesUnderRaces(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "things", "id text, event text, v int, e int")
		for stmt := range strings.SplitSeq(auditDDL, ";\nCREATE ") {
			if !strings.HasPrefix(strings.TrimSpace(stmt), "CREATE") {
				stmt = "CREATE " + stmt
			}
			exec(t, pool, stmt)
		}
		stmt := upsert.Into[tagged]("things").OnConflict("id").Set("event").Version("v", "e").MustBuild()
		rounds := 150
		if testing.Short() {
			rounds = 30
		}
		var mu sync.Mutex
		outcomes := map[string]upsert.Outcome{}
		stored := map[string][2]tagged{} // an event that was not written, and what it was told is stored
		record := func(e tagged, r upsert.Result[tagged]) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Event] = r.Outcome
			if r.Outcome == upsert.Stale || errors.Is(r.Err, upsert.ErrVersionConflict) {
				stored[e.Event] = [2]tagged{e, r.Stored}
			}
		}
		var wg sync.WaitGroup
		errs := make(chan error, 10_000)
		rng := source(t)
		for w := range 6 {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
			wg.Go(func() {
				for n := range rounds {
					if w == 0 {
						if _, err := pool.Exec(ctx, "DELETE FROM things WHERE id = $1", fmt.Sprint(rng.IntN(3))); err != nil {
							errs <- err
						}
						continue
					}
					var batch []tagged
					for i := range 1 + rng.IntN(4) {
						batch = append(batch, tagged{
							fmt.Sprint(rng.IntN(3)), fmt.Sprintf("%d-%d-%d", w, n, i), n + rng.IntN(3),
							w*10 + i,
						})
					}
					if w%2 == 0 {
						if _, err := stmt.ExecMany(ctx, pool, slices.Values(batch),
							func(i int, r upsert.Result[tagged]) { record(batch[i], r) }); err != nil && !errors.Is(err,
							upsert.ErrVersionConflict) {
							errs <- err
						}
						continue
					}
					r, err := stmt.Exec(ctx, pool, batch[0])
					record(batch[0], r)
					if err != nil && !errors.Is(err, upsert.ErrVersionConflict) {
						errs <- err
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		rows, err := pool.Query(ctx, "SELECT event, string_agg(op, ' ') FROM audit GROUP BY event")
		require.NoError(t, err)
		did := map[string]string{}
		var event, ops string
		_, err = pgx.ForEachRow(rows, []any{&event, &ops}, func() error { did[event] = ops; return nil })
		require.NoError(t, err)
		count := map[upsert.Outcome]int{}
		for event, o := range outcomes {
			count[o]++
			require.Equal(t, map[upsert.Outcome]string{upsert.Inserted: "INSERT", upsert.Updated: "UPDATE"}[o], did[event],
				"event %s was reported as %s", event, o)
		}
		for _, s := range stored {
			e, by := s[0], s[1]
			if outcomes[e.Event] == upsert.Stale {
				require.True(t, by.V > e.V || by.V == e.V && by.E > e.E, "%+v is stale because of %+v", e, by)
			} else {
				require.True(t, by.V == e.V && by.E == e.E && by.Event != e.Event, "%+v is in conflict with %+v", e, by)
			}
		}
		t.Log(count)
		for _, o := range []upsert.Outcome{upsert.Inserted, upsert.Updated, upsert.Stale} {
			require.NotZero(t, count[o], "the race never ended as %s", o)
		}
	})
}

// What a rival's open transaction does to the row decides, once it ends.
func TestRivalTransaction(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO orders VALUES ('1', 'rival', '2026-03-01 13:00Z', 1)"
	tests := []struct {
		name          string
		before, rival string
		commit        bool
		want          upsert.Outcome
		err           error
		code          string // at REPEATABLE READ
	}{
		{"inserts newer", "", insert, true, upsert.Stale, nil, "40001"},
		{"inserts newer, rolls back", "", insert, false, upsert.Inserted, nil, ""},
		{"inserts older", "", strings.Replace(insert, "13:00", "11:00", 1), true, upsert.Updated, nil, "40001"},
		{
			"inserts the same", "", strings.NewReplacer("13:00", "12:00", "rival", "mine").Replace(insert), true,
			upsert.Unchanged, nil, "40001",
		},
		{"inserts a conflict", "", strings.Replace(insert, "13:00", "12:00", 1), true, 0, upsert.ErrVersionConflict, "40001"},
		{
			"updates to newer", strings.Replace(insert, "13:00", "11:00", 1),
			"UPDATE orders SET status = 'rival', at = '2026-03-01 13:00Z'", true, upsert.Stale, nil, "40001",
		},
		{
			"updates, rolls back", strings.Replace(insert, "13:00", "11:00", 1), "UPDATE orders SET at = '2026-03-01 13:00Z'",
			false, upsert.Updated, nil, "",
		},
		{"deletes", strings.Replace(insert, "13:00", "11:00", 1), "DELETE FROM orders", true, upsert.Inserted, nil, ""},
		{
			"deletes and inserts newer", strings.Replace(insert, "13:00", "11:00", 1), "DELETE FROM orders; " + insert, true,
			upsert.Stale, nil, "40001",
		},
	}
	for _, kind := range kinds {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			for _, bulk := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/bulk %v", kind, level, bulk), func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Pool(t)
					create(t, pool, kind, "orders", orderColumns)
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_, err := orders.Exec(ctx, pool, order{"9", "warm", noon, 1})
					require.NoError(t, err)
					for _, tt := range tests {
						exec(t, pool, "DELETE FROM orders")
						if tt.before != "" {
							exec(t, pool, tt.before)
						}
						rival, err := pool.Begin(ctx)
						require.NoError(t, err)
						for s := range strings.SplitSeq(tt.rival, "; ") {
							exec(t, rival, s)
						}
						tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
						require.NoError(t, err)
						exec(t, tx, "SELECT 1")
						pid := tx.Conn().PgConn().PID()
						type answer struct {
							res upsert.Result[order]
							err error
						}
						done := make(chan answer, 1)
						go func() {
							var a answer
							mine := order{"1", "mine", noon, 1}
							if bulk {
								_, a.err = orders.ExecMany(ctx, tx, slices.Values([]order{mine}),
									func(_ int, r upsert.Result[order]) { a.res = r })
							} else {
								a.res, a.err = orders.Exec(ctx, tx, mine)
							}
							done <- a
						}()
						waitForLock(t, pool, pid)
						if tt.commit {
							require.NoError(t, rival.Commit(ctx))
						} else {
							require.NoError(t, rival.Rollback(ctx))
						}
						a := <-done
						if level != pgx.ReadCommitted && tt.code != "" {
							var pgErr *pgconn.PgError
							require.ErrorAs(t, a.err, &pgErr, tt.name)
							require.Equal(t, tt.code, pgErr.Code, tt.name)
							require.NoError(t, tx.Rollback(ctx))
							continue
						}
						require.True(t, errors.Is(a.err, tt.err), "%s: %v", tt.name, a.err)
						require.Equal(t, tt.want, a.res.Outcome, tt.name)
						require.NoError(t, tx.Commit(ctx))
						if a.res.Outcome == upsert.Stale {
							require.Equal(t, "rival", a.res.Stored.Status, tt.name)
						}
						require.Equal(t, a.res.Stored.Status, get[string](t, pool, "SELECT status FROM orders"), tt.name)
					}
				})
			}
		}
	}
}

// waitForLock waits until the backend waits for a lock.
func waitForLock(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if get[bool](t, pool, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'",
			int32(pid)) {
			return
		}
	}
	t.Fatal("the call never waited for its rival")
}
