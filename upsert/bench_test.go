package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
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

// benchRows returns n rows whose keys no other round has.
func benchRows(n, round int) []order {
	rows := make([]order, n)
	for i := range rows {
		rows[i] = order{fmt.Sprintf("sub_%d_%d", i, round), "active", noon.Add(time.Duration(round) * time.Second), 1}
	}
	return rows
}

// BenchmarkExec applies one row, in a transaction of its own; hand is the plain statement, which does not say what it
// did.
func BenchmarkExec(b *testing.B) {
	ctx := context.Background()
	events := map[string]func(i int) order{
		"inserted":  func(i int) order { return order{fmt.Sprint("new_", i), "s", noon, 1} },
		"updated":   func(i int) order { return order{"one", "s", noon.Add(time.Duration(i+1) * time.Second), 1} },
		"stale":     func(int) order { return order{"one", "s", noon.Add(-time.Hour), 1} },
		"unchanged": func(int) order { return order{"one", "s", noon, 1} },
	}
	for _, name := range []string{"inserted", "updated", "stale", "unchanged"} {
		event := events[name]
		b.Run(name, func(b *testing.B) {
			conn := benchConn(b)
			_, err := orders.Exec(ctx, conn, order{"one", "s", noon, 1})
			require.NoError(b, err)
			for i := 0; b.Loop(); i++ {
				_, err := orders.Exec(ctx, conn, event(i))
				require.NoError(b, err)
			}
		})
		b.Run(name+" by hand", func(b *testing.B) {
			conn := benchConn(b)
			sql, _ := orders.SQL()
			exec(b, conn, sql, "one", "s", noon, 1)
			for i := 0; b.Loop(); i++ {
				row := event(i)
				_, err := conn.Exec(ctx, sql, row.ID, row.Status, row.At, row.Rank)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkThousand applies 1,000 new rows, in one call and one by one; and by the statement that one would write by
// hand, which has the same guard, does not say what it did, and writes a stale row's lock.
func BenchmarkThousand(b *testing.B) {
	ctx := context.Background()
	singles := func(db upsert.DB, rows []order) error {
		for _, row := range rows {
			if _, err := orders.Exec(ctx, db, row); err != nil {
				return err
			}
		}
		return nil
	}
	for _, way := range []struct {
		name string
		run  func(conn *pgxpool.Conn, rows []order) error
	}{
		{"many", func(conn *pgxpool.Conn, rows []order) error {
			_, err := orders.ExecMany(ctx, conn, slices.Values(rows), nil)
			return err
		}},
		{"many, told", func(conn *pgxpool.Conn, rows []order) error {
			_, err := orders.ExecMany(ctx, conn, slices.Values(rows), func(int, upsert.Result[order]) {})
			return err
		}},
		{"in one transaction", func(conn *pgxpool.Conn, rows []order) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return singles(tx, rows) })
		}},
		{"autocommit", func(conn *pgxpool.Conn, rows []order) error { return singles(conn, rows) }},
		{"by hand", func(conn *pgxpool.Conn, rows []order) error {
			ids, states, ats, ranks := make([]string, len(rows)), make([]string, len(rows)), make([]time.Time, len(rows)),
				make([]int, len(rows))
			for i, r := range rows {
				ids[i], states[i], ats[i], ranks[i] = r.ID, r.Status, r.At, r.Rank
			}
			_, err := conn.Exec(ctx, `
				INSERT INTO orders AS t (id, status, at, rank)
				SELECT id, status, at, rank FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::int[]) AS e (id, status, at, rank)
				ON CONFLICT (id) DO UPDATE SET status = excluded.status, at = excluded.at, rank = excluded.rank
				 WHERE (t.at, t.rank) < (excluded.at, excluded.rank)`, ids, states, ats, ranks)
			return err
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			conn := benchConn(b)
			b.ReportAllocs()
			for round := 0; b.Loop(); round++ {
				require.NoError(b, way.run(conn, benchRows(1000, round)))
			}
		})
	}
}
