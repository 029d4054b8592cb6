package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
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

func TestManyOfOneKey(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "orders", orderColumns)
		_, err := orders.Exec(ctx, pool, order{"3", "stored", noon, 5})
		require.NoError(t, err)
		rows := []order{
			{"1", "second", noon, 2}, // 0: not the newest
			{"1", "newest", noon, 3}, // 1
			{"1", "newest", noon, 3}, // 2: the same event again
			{"1", "other", noon, 3},  // 3: another event of the same version
			{"2", "first", noon, 1},  // 4: two events of one version, the first by position stays
			{"2", "second", noon, 1}, // 5
			{"3", "stored", noon, 5}, // 6: what is stored
			{"3", "other", noon, 5},  // 7: in conflict with what is stored
			{"3", "older", noon, 4},  // 8
			{"3", "newer", noon, 6},  // 9
			{"4", "no version", time.Time{}, 1},
		}
		want := []string{
			"stale newest", "inserted newest", "unchanged newest", "no outcome newest", "inserted first", "no outcome first",
			"unchanged stored", "no outcome stored", "stale stored", "updated newer", "no outcome ",
		}
		got := make([]string, len(rows))
		var refused []int
		sum, err := orders.ExecMany(ctx, pool, slices.Values(rows), func(i int, r upsert.Result[order]) {
			got[i] = r.Outcome.String() + " " + r.Stored.Status
			if r.Err != nil {
				refused = append(refused, i)
				var row *upsert.RowError
				require.ErrorAs(t, r.Err, &row)
				require.Equal(t, i, row.Index)
			}
		})
		require.Equal(t, want, got)
		slices.Sort(refused)
		require.Equal(t, []int{3, 5, 7, 10}, refused)
		require.Equal(t, upsert.Summary{Inserted: 2, Updated: 1, Stale: 2, Unchanged: 2, Failed: 4}, sum)
		require.ErrorIs(t, err, upsert.ErrVersionConflict)
		require.ErrorIs(t, err, upsert.ErrInvalidRow)
		require.NotErrorIs(t, err, upsert.ErrVersionAhead)
		require.ErrorContains(t, err, "4 of 11 rows were not applied")
		require.Equal(t, "1newest 2first 3newer",
			get[string](t, pool, "SELECT string_agg(id || status, ' ' ORDER BY id) FROM orders"))
	})
}

// each may use the transaction, and every row is told exactly once, however many statements it takes.
func TestManyTellsEveryRow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "hash", "orders", orderColumns)
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	const n = 4321
	rows := func(yield func(order) bool) {
		for i := range n {
			// Reading while the rows come is possible too.
			if i%1000 == 0 {
				exec(t, tx, "SELECT 1")
			}
			if !yield(order{fmt.Sprint(i * 7919 % 3000), "s", noon, i}) {
				return
			}
		}
	}
	told := map[int]upsert.Outcome{}
	sum, err := orders.ExecMany(ctx, tx, rows, func(i int, r upsert.Result[order]) {
		require.Zero(t, told[i], "told twice")
		told[i] = r.Outcome
		if len(told)%1000 == 0 {
			exec(t, tx, "SELECT 1")
		}
	})
	require.NoError(t, err)
	require.Len(t, told, n)
	require.Equal(t, upsert.Summary{Inserted: 3000, Stale: n - 3000}, sum)
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, 3000, get[int](t, pool, "SELECT count(*) FROM orders WHERE rank >= 1321"))
}

func TestManyOfNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	sum, err := orders.ExecMany(ctx, pool, slices.Values([]order{}), nil)
	require.NoError(t, err)
	require.Zero(t, sum)
}

// A server's error stops the call, and a done context does too; a panic of the caller's functions leaves the
// connection usable.
func TestManyStops(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns+", CHECK (rank < 1500)")
	rows := func(yield func(order) bool) {
		for i := range 3000 {
			if !yield(order{fmt.Sprintf("%05d", i), "s", noon, i}) {
				return
			}
		}
	}
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	sum, err := orders.ExecMany(ctx, tx, rows, nil)
	require.ErrorContains(t, err, "23514")
	require.Equal(t, upsert.Summary{Inserted: 1000}, sum, "what was applied before it; the transaction has failed")
	require.NoError(t, tx.Rollback(ctx))

	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = orders.ExecMany(done, pool, rows, nil)
	require.ErrorIs(t, err, context.Canceled)

	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	one := slices.Values([]order{{"1", "s", noon, 1}})
	require.PanicsWithValue(t, "told", func() {
		_, _ = orders.ExecMany(ctx, conn, one, func(int, upsert.Result[order]) { panic("told") })
	})
	require.PanicsWithValue(t, "rows", func() {
		_, _ = orders.ExecMany(ctx, conn, func(func(order) bool) { panic("rows") }, nil)
	})
	exec(t, conn, "SELECT 1")
}

// Two workers with the same keys in opposite order, alone in their transactions, neither deadlock nor meet a row twice.
func TestOppositeOrders(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		create(t, pool, kind, "orders", orderColumns)
		var forth []order
		for i := range 40 {
			forth = append(forth, order{fmt.Sprint(i * 37 % 40), "s", noon, 0})
		}
		opposite(t, pool, orders, forth, 200, func(o order, v int) order { o.Rank = v; return o })
	})
}

// The same where a call takes several statements: the rows are sorted before they are spread over them.
func TestOppositeOrdersInSeveralStatements(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "numbers", "id int, v int")
	type number struct {
		ID int `db:"id"`
		V  int `db:"v"`
	}
	stmt := upsert.Into[number]("numbers").OnConflict("id").Version("v").MustBuild()
	var forth []number
	for i := range 2500 {
		forth = append(forth, number{i*1237%2500 - 1000, 0})
	}
	opposite(t, pool, stmt, forth, 8, func(n number, v int) number { n.V = v; return n })
	require.Equal(t, 2500, get[int](t, pool, "SELECT count(*) FROM numbers"))
	_, err := stmt.ExecMany(ctx, pool, slices.Values(forth), nil)
	require.NoError(t, err)
}

func opposite[T any](
	t *testing.T, pool *pgxpool.Pool, stmt *upsert.Stmt[T], forth []T, rounds int, version func(T, int) T,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	back := slices.Clone(forth)
	slices.Reverse(back)
	for round := range rounds {
		errs := make([]error, 2)
		var start, end sync.WaitGroup
		start.Add(2)
		for i, rows := range [][]T{forth, back} {
			end.Go(func() {
				start.Done()
				start.Wait()
				errs[i] = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := stmt.ExecMany(ctx, tx, versioned(rows, 2*round+i, version), nil)
					return err
				})
			})
		}
		end.Wait()
		require.NoError(t, errors.Join(errs...), "round %d", round)
	}
}

func versioned[T any](rows []T, v int, version func(T, int) T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, r := range rows {
			if !yield(version(r, v)) {
				return
			}
		}
	}
}

// Statements that name the key's columns in different orders lock rows in the same one.
func TestLockOrderIsTheKeys(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE accounts (tenant text, email text, name text, deleted_at timestamptz, v int, PRIMARY "+
		"KEY (tenant, email))")
	seen := map[string]bool{}
	for _, target := range [][]string{{"tenant", "email"}, {"email", "tenant"}} {
		stmt := upsert.Into[account]("accounts").OnConflict(target...).Set("name").Version("v").MustBuild()
		exec(t, pool, "TRUNCATE accounts")
		rows := []account{
			{Tenant: "a", Email: "z", V: 1},
			{Tenant: "b", Email: "y", V: 1},
			{Tenant: "C", Email: "y", V: 1},
			{Tenant: "c", Email: "x", V: 1},
		}
		_, err := stmt.ExecMany(ctx, pool, slices.Values(rows), nil)
		require.NoError(t, err)
		seen[get[string](t, pool, "SELECT string_agg(email || tenant, ' ' ORDER BY ctid) FROM accounts")] = true
	}
	require.Equal(t, []string{"xc yC yb za"}, slices.Collect(maps.Keys(seen)))
}

// Rows are written in the order of their keys: the statement sorts them, and where no key is there twice it keeps the
// order in which it gets them, whatever the planner thinks of the table.
func TestOrderOfWriting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		create(t, pool, kind, "orders", orderColumns)
		orders := ownOrders()
		_, err := orders.ExecMany(ctx, pool, slices.Values([]order{}), nil)
		require.NoError(t, err)
		exec(t, pool, "CREATE TABLE log (n serial, id text)")
		exec(t, pool, "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO log (id) VALUES "+
			"(new.id); RETURN new; END$$")
		exec(t, pool, "CREATE TRIGGER note BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note()")
		_, many := upsert.Texts(orders)
		for _, stored := range []int{0, 1, 20_000} {
			exec(t, pool, "TRUNCATE orders")
			exec(t, pool, "INSERT INTO orders (id, at) SELECT 'c' || n, '2026-01-01' FROM generate_series(1, $1::int) AS n",
				stored)
			exec(t, pool, "ANALYZE orders")
			for _, withRows := range []bool{false, true} {
				for _, distinct := range []bool{false, true} {
					exec(t, pool, "TRUNCATE log")
					tx, err := pool.Begin(ctx)
					require.NoError(t, err)
					exec(t, tx, many(withRows, distinct), pgx.QueryExecModeExec,
						"{0,1,2,3}", "{c1,a,d,b}", "{s,s,s,s}", "{2026-03-01,2026-03-01,2026-03-01,2026-03-01}", "{1,1,1,1}")
					want := "a b c1 d"
					if distinct {
						want = "c1 a d b"
					}
					require.Equal(t, want, get[string](t, tx, "SELECT string_agg(id, ' ' ORDER BY n) FROM log"))
					require.NoError(t, tx.Rollback(ctx))
				}
			}
		}
	})
}

// A column that may not be NULL, left out by the event, keeps what a rival has put there in the meantime, also in a
// batch.
func TestAbsentValueUnderRace(t *testing.T) {
	t.Parallel()
	type partial struct {
		ID string  `db:"id"`
		N  *string `db:"n"`
		V  int     `db:"v"`
	}
	stmt := upsert.Into[partial]("partials").OnConflict("id").SetIfNotNull("n").Version("v").MustBuild()
	eachWay(t, func(t *testing.T, pool *pgxpool.Pool,
		run func(*upsert.Stmt[partial], partial) (upsert.Result[partial], error),
	) {
		ctx := context.Background()
		exec(t, pool, "CREATE TABLE partials (id text PRIMARY KEY, n text NOT NULL, v int)")
		_, err := run(stmt, partial{"1", ptr("first"), 1})
		require.NoError(t, err)
		rival, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer rival.Rollback(ctx)
		exec(t, rival, "UPDATE partials SET n = 'rival', v = 2")
		done := make(chan error, 1)
		go func() {
			_, err := run(stmt, partial{"1", nil, 3})
			done <- err
		}()
		for end := time.Now().Add(30 * time.Second); !get[bool](t, pool,
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"); {
			require.True(t, time.Now().Before(end))
		}
		require.NoError(t, rival.Commit(ctx))
		require.NoError(t, <-done)
		require.Equal(t, "rival 3", get[string](t, pool, "SELECT n || ' ' || v FROM partials"))
	})
}
