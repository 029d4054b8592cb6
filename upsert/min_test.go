package upsert_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pgtest"
)

func TestMin(t *testing.T) {
	pool := pgtest.Pool(t)
	ctx := context.Background()
	create(t, pool, "plain", "orders", orderColumns)
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	auto, intx, bulk, upd := time.Hour, time.Hour, time.Hour, time.Hour
	rows := make([]order, 1000)
	pid := conn.Conn().PgConn().PID()
	cpu := func() (float64, float64) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		require.NoError(t, err)
		var ns, a, c int64
		fmt.Sscan(string(b), &ns, &a, &c)
		var ru syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
		return float64(ns) / 1e6, float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e6
	}
	var tb, tbc, ta, tac, ti, tic float64
	mark := func(s, c *float64) func() {
		a, b := cpu()
		return func() { x, y := cpu(); *s += x - a; *c += y - b }
	}
	for round := range 15 {
		for i := range rows {
			rows[i] = order{fmt.Sprintf("sub_%d_%d", i, round), "active", noon.Add(time.Duration(round) * time.Second), 1}
		}
		m := mark(&tb, &tbc)
		begin := time.Now()
		_, err := orders.ExecMany(ctx, conn, slices.Values(rows), nil)
		require.NoError(t, err)
		bulk = min(bulk, time.Since(begin))
		m()
		for i := range rows {
			rows[i].Rank++
		}
		begin = time.Now()
		_, err = orders.ExecMany(ctx, conn, slices.Values(rows), nil)
		require.NoError(t, err)
		upd = min(upd, time.Since(begin))
		m = mark(&ta, &tac)
		begin = time.Now()
		for i := range rows {
			rows[i].ID += "a"
			_, err := orders.Exec(ctx, conn, rows[i])
			require.NoError(t, err)
		}
		auto = min(auto, time.Since(begin))
		m()
		m = mark(&ti, &tic)
		begin = time.Now()
		tx, err := conn.Begin(ctx)
		for i := range rows {
			rows[i].ID += "a"
			_, err := orders.Exec(ctx, tx, rows[i])
			require.NoError(t, err)
		}
		require.NoError(t, tx.Commit(ctx))
		intx = min(intx, time.Since(begin))
		m()
	}
	fmt.Println("cpu ms per 1000: bulk", tb/15, tbc/15, "auto", ta/15, tac/15, "intx", ti/15, tic/15)
	fmt.Println("auto", auto, "intx", intx, "bulk", bulk, upd, "ratios", float64(auto)/float64(bulk), float64(intx)/float64(bulk))
}
