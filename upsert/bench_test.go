package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pgtest"
)

func benchConn(b *testing.B) *pgxpool.Conn {
	b.Helper()
	pool := pgtest.Pool(b)
	create(b, pool, "plain", "orders", orderColumns)
	conn, err := pool.Acquire(context.Background())
	require.NoError(b, err)
	b.Cleanup(conn.Release)
	return conn
}

func benchRows(n, round int) []order {
	rows := make([]order, n)
	for i := range rows {
		rows[i] = order{fmt.Sprintf("sub_%d_%d", i, round), "active", noon.Add(time.Duration(round) * time.Second), 1}
	}
	return rows
}

// BenchmarkMany applies 1,000 new rows in one call.
func BenchmarkMany(b *testing.B) {
	ctx := context.Background()
	conn := benchConn(b)
	round := 0
	for b.Loop() {
		rows := benchRows(1000, round)
		round++
		_, err := orders.ExecMany(ctx, conn, slices.Values(rows), nil)
		require.NoError(b, err)
	}
}
