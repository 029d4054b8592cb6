package upsert_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// Stale and Unchanged write nothing: no row version, no transaction id, no WAL.
func TestNoWrite(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		orders := ownOrders()
		create(t, pool, kind, "orders", orderColumns)
		var stored, again []order
		for i := range 50 {
			stored = append(stored, order{fmt.Sprint(i), "s", noon, 5})
			again = append(again, order{fmt.Sprint(i), "s", noon, 4 + i%2})
		}
		_, err := orders.ExecMany(ctx, pool, slices.Values(stored), nil)
		require.NoError(t, err)
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		// What the backend did before is in there until it is reported.
		const writtenSQL = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_xact_user_tables"
		tuples := get[int](t, tx, writtenSQL)
		for range 10 {
			for i, row := range again {
				res, err := orders.Exec(ctx, tx, row)
				require.NoError(t, err)
				require.Equal(t, []upsert.Outcome{upsert.Stale, upsert.Unchanged}[i%2], res.Outcome)
			}
			sum, err := orders.ExecMany(ctx, tx, slices.Values(again), nil)
			require.NoError(t, err)
			require.Equal(t, upsert.Summary{Stale: 25, Unchanged: 25}, sum)
			sum, err = orders.ExecMany(ctx, tx, slices.Values(again), func(int, upsert.Result[order]) {})
			require.NoError(t, err)
			require.Equal(t, upsert.Summary{Stale: 25, Unchanged: 25}, sum)
		}
		require.True(t, get[bool](t, tx, "SELECT pg_current_xact_id_if_assigned() IS NULL"), "the transaction has written")
		require.Equal(t, tuples, get[int](t, tx, writtenSQL))

		one, many := upsert.Texts(orders)
		for i := range 2 {
			require.Zero(t, walRecords(t, tx, one, again[i].ID, "s", "2026-03-01 12:00Z", fmt.Sprint(again[i].Rank)))
			for _, distinct := range []bool{false, true} {
				for _, listed := range []bool{false, true} {
					require.Zero(t, walRecords(t, tx, many(listed, distinct), "{0}", "{"+again[i].ID+"}", "{s}",
						"{2026-03-01 12:00Z}", fmt.Sprintf("{%d}", again[i].Rank)))
				}
			}
		}
		require.NotZero(t, walRecords(t, tx, one, "0", "s", "2026-03-01 12:00Z", "6"), "what writes is seen to")
	})
}

// walRecords runs a statement, and returns how many records of WAL it made.
func walRecords(t *testing.T, tx pgx.Tx, sql string, args ...any) int {
	t.Helper()
	var plan []struct {
		Plan struct {
			Records int `json:"WAL Records"`
		}
	}
	text := get[string](t, tx, "EXPLAIN (ANALYZE, WAL, FORMAT JSON) "+sql,
		append([]any{pgx.QueryExecModeExec}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(text), &plan))
	return plan[0].Plan.Records
}

// turns counts how often a connection changes from sending to receiving: the round trips.
type turns struct {
	net.Conn
	n    *atomic.Int64
	sent *atomic.Bool
}

func (c turns) Write(b []byte) (int, error) {
	c.sent.Store(true)
	return c.Conn.Write(b)
}

func (c turns) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.sent.Swap(false) {
		c.n.Add(1)
	}
	return n, err
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Config(t)
			var n atomic.Int64
			dial := cfg.ConnConfig.DialFunc
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return turns{conn, &n, new(atomic.Bool)}, err
			}
			pool := pgtest.PoolConfig(t, cfg)
			create(t, pool, "plain", "orders", orderColumns)
			conn, err := pool.Acquire(ctx)
			require.NoError(t, err)
			defer conn.Release()
			count := func(want int64, what string, call func()) {
				t.Helper()
				before := n.Load()
				call()
				require.Equal(t, want, n.Load()-before, what)
			}
			stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
			one := func(row order) func() {
				return func() {
					_, err := stmt.Exec(ctx, conn, row)
					require.NoError(t, err)
				}
			}
			many := func(rows ...order) func() {
				return func() {
					_, err := stmt.ExecMany(ctx, conn, slices.Values(rows), nil)
					require.NoError(t, err)
				}
			}
			// Where statements are described first, that is a trip of its own: each time, or once.
			describe, cached := int64(0), int64(0)
			switch mode {
			case pgx.QueryExecModeDescribeExec:
				describe = 1
			case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
				cached = 1
			}
			a := order{"1", "s", noon, 1}
			count(2+2*(describe+cached), "the first use reads the catalog", one(a))
			count(1+describe, "unchanged", one(a))
			count(1+describe, "stale", one(order{"1", "s", noon, 0}))
			count(1+describe, "updated", one(order{"1", "s", noon, 2}))
			count(1+describe, "inserted", one(order{"2", "s", noon, 2}))
			count(1, "many", many(a, order{"2", "s", noon, 3}, order{"3", "s", noon, 3}))
			count(1, "many of one key", many(order{"4", "s", noon, 1}, order{"4", "s", noon, 2}))
			count(2, "many of one version", many(order{"5", "s", noon, 1}, order{"5", "s", noon, 1}))
			count(3, "2,500 rows", many(benchRows(2500, 1)...))
			count(0, "none", many())
		})
	}
}

// On a table of many partitions the bulk statement stays too cheap, in the planner's eyes, to be compiled just in
// time: with 16 that took a second for each 1,000 rows.
func TestManyIsNotCompiled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE orders ("+orderColumns+", PRIMARY KEY (id)) PARTITION BY HASH (id)")
	for i := range 32 {
		exec(t, pool, fmt.Sprintf("CREATE TABLE orders_%d PARTITION OF orders FOR VALUES WITH (MODULUS 32, REMAINDER %[1]d)",
			i))
	}
	orders := ownOrders()
	_, err := orders.ExecMany(ctx, pool, slices.Values([]order{}), nil)
	require.NoError(t, err)
	_, many := upsert.Texts(orders)
	array := func(element string) string { return "{" + strings.Repeat(element+",", 999) + element + "}" }
	for _, distinct := range []bool{false, true} {
		for _, withRows := range []bool{false, true} {
			var plans []struct {
				Plan struct {
					Cost float64 `json:"Total Cost"`
				}
			}
			require.NoError(t, pool.QueryRow(ctx, "EXPLAIN (FORMAT JSON) "+many(withRows, distinct), pgx.QueryExecModeExec,
				array("1"), array("a"), array("s"), array("2026-03-01"), array("1")).Scan(&plans))
			require.NotZero(t, plans[0].Plan.Cost)
			require.Less(t, plans[0].Plan.Cost, 50_000.0, "jit_above_cost is 100,000 where nobody has changed it")
		}
	}
}

// What 100,000 rows in one call need at the peak, measured in the size of the rows as they lie in a slice, with all
// that they point to. Of rows that come one by one and that nobody else keeps, the heap of the whole process is at
// most three times as large: the values that wait, the statements, and the garbage that waits for collection. Where
// the caller holds the rows in a slice, as much again is his; the call adds at most two and a half times their size
// (with the rows it is about three times).
func TestManyMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 100,000 rows")
	}
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	const n = 100_000
	row := func(i int) order {
		return order{
			fmt.Sprintf("order_%08d_%s", i*7919%n, strings.Repeat("k", 20)),
			fmt.Sprintf("status %d %s", i, strings.Repeat("x", 60)), noon, i,
		}
	}
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	// The first call's buffers stay with the connection.
	_, err := orders.ExecMany(ctx, pool, slices.Values(benchRows(1000, 0)), nil)
	require.NoError(t, err)
	empty := live()
	rows := make([]order, n)
	for i := range rows {
		rows[i] = row(i)
	}
	size := live() - empty

	call := func(what string, seq iter.Seq[order], want upsert.Summary, before uint64, limit float64) {
		t.Helper()
		var peak atomic.Uint64
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			var m runtime.MemStats
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-stop:
					tick.Stop()
					return
				case <-tick.C:
					runtime.ReadMemStats(&m)
					peak.Store(max(peak.Load(), m.HeapAlloc))
				}
			}
		}()
		begin := time.Now()
		sum, err := orders.ExecMany(ctx, pool, seq, nil)
		took := time.Since(begin)
		close(stop)
		<-stopped
		require.NoError(t, err)
		require.Equal(t, want, sum)
		require.Greater(t, peak.Load(), before)
		ratio := float64(peak.Load()-before) / float64(size)
		t.Logf("%s: %d rows of %d MiB in %s, %d MiB more at the peak, %.2f times their size", what, n, size>>20,
			took.Round(time.Millisecond),
			(peak.Load()-before)>>20, ratio)
		require.LessOrEqual(t, ratio, limit)
	}
	call("held by the caller", slices.Values(rows), upsert.Summary{Inserted: n}, live(), 2.5)
	runtime.KeepAlive(rows)
	call("streamed", func(yield func(order) bool) {
		for i := range n {
			if !yield(row(i)) {
				return
			}
		}
	}, upsert.Summary{Unchanged: n}, live(), 3)
}

// 1,000 new rows in one call, against as many calls of Exec: all in one transaction, and each with a commit of its
// own. All on one connection over loopback, to a server that waits for the disk at each commit; a commit is part of
// each time. The ways take turns, each with a table that is empty, and their medians are compared; the call is
// measured twice in each turn, and how far its two medians lie apart says how much the figures are worth. The bounds
// of the long form are those to be held on a quiet machine; the short form, beside other tests, notices that a part
// of the advantage is gone. The long form measures a table of 100,000 rows too.
func TestManyIsFaster(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		compareWays(t, 0, 3, 10, 4)
		return
	}
	compareWays(t, 0, 21, 20, 10)
	compareWays(t, 100_000, 21, 20, 5)
}

func compareWays(t *testing.T, stored, rounds int, overAutocommit, overInTx float64) {
	t.Helper()
	ctx := context.Background()
	pool := durable(t)
	create(t, pool, "plain", "orders", orderColumns)
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	for round := range stored / 1000 {
		_, err := orders.ExecMany(ctx, conn, slices.Values(benchRows(1000, -1-round)), nil)
		require.NoError(t, err)
	}
	if stored > 0 {
		exec(t, pool, "VACUUM ANALYZE orders")
	}
	singles := func(db upsert.DB, rows []order) error {
		for _, row := range rows {
			if _, err := orders.Exec(ctx, db, row); err != nil {
				return err
			}
		}
		return nil
	}
	many := func(rows []order) error {
		_, err := orders.ExecMany(ctx, conn, slices.Values(rows), nil)
		return err
	}
	ways := []func(rows []order) error{
		many,
		func(rows []order) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return singles(tx, rows) })
		},
		many,
		func(rows []order) error { return singles(conn, rows) },
	}
	took := make([][]time.Duration, len(ways))
	for round := range rounds + 1 {
		for i, way := range ways {
			if stored == 0 {
				// over another connection: after its own, a session would have to plan anew in the time taken
				exec(t, pool, "TRUNCATE orders")
			}
			rows := benchRows(1000, len(ways)*round+i)
			begin := time.Now()
			require.NoError(t, way(rows))
			if round > 0 { // the first warms up
				took[i] = append(took[i], time.Since(begin))
			}
		}
	}
	median := make([]float64, len(ways))
	for i, d := range took {
		slices.Sort(d)
		median[i] = float64(d[len(d)/2]) / float64(time.Millisecond)
	}
	call := (median[0] + median[2]) / 2
	inTx, autocommit := median[1]/call, median[3]/call
	t.Logf("into %d rows: one call %.1f and %.1f ms; in one transaction %.1f ms, %.1f times that; autocommit %.1f ms, "+
		"%.1f times that",
		stored, median[0], median[2], median[1], inTx, median[3], autocommit)
	require.GreaterOrEqual(t, autocommit, overAutocommit)
	require.GreaterOrEqual(t, inTx, overInTx)
}

// durable returns a server that waits for the disk, as one in production does, where one can be started.
func durable(t *testing.T) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		t.Logf("on the server of all tests, as none of its own could be started: %v", err)
		return pgtest.Pool(t)
	}
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
