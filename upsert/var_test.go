package upsert_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

func TestVar(t *testing.T) {
	pool := pgtest.Pool(t)
	ctx := context.Background()
	create(t, pool, "plain", "orders", orderColumns)
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	_, err = orders.Exec(ctx, conn, order{"x", "y", noon, 1})
	require.NoError(t, err)
	many := upsert.Bare(orders)
	exec(t, pool, "insert into orders select 'old_'||g, 'a', now(), 1 from generate_series(1,60000) g")
	exec(t, pool, "analyze orders")
	pid := conn.Conn().PgConn().PID()
	cpu := func() float64 {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		var ns, a, c int64
		fmt.Sscan(string(b), &ns, &a, &c)
		return float64(ns) / 1e6
	}
	must := func(s string, pairs ...string) string {
		for i := 0; i < len(pairs); i += 2 {
			require.Contains(t, s, pairs[i])
			s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
		}
		return s
	}
	plain := `INSERT INTO "orders" AS t ("id", "status", "at", "rank") SELECT c1, c2, c3::timestamptz, c4::int FROM unnest($1::int8[], $2::text[], $3::text[], $4::text[], $5::text[]) AS u (pgonce_pos, c1, c2, c3, c4) ORDER BY c1 COLLATE "C"
	ON CONFLICT (id) DO UPDATE SET status=excluded.status, at=excluded.at, rank=excluded.rank WHERE ((t."at", t."rank") >= (excluded."at", excluded."rank")) IS NOT TRUE RETURNING 1`
	unnestOnly := `SELECT count(*), count(c1), count(c2), max(c3::timestamptz), max(c4::int) FROM unnest($1::int8[], $2::text[], $3::text[], $4::text[], $5::text[]) AS u (pgonce_pos, c1, c2, c3, c4)`
	i := strings.Index(many, ", applied AS")
	judged := many[:i] + " SELECT count(*) from judged"
	j := strings.Index(many, ", judged AS")
	event := many[:j] + " SELECT count(*) from event"
	k := strings.Index(many, "\nSELECT dense_rank")
	applied := many[:k] + " SELECT count(*) from applied"
	norank := must(many, `rank() OVER (PARTITION BY q."id" COLLATE "C" ORDER BY q."at" DESC, q."rank" DESC) AS`, "1::int8 AS")
	nomark := must(many, `set_config('pgonce.hit', ROW(t."id")::text, true) IS NOT NULL
     AND `, "", `current_setting('pgonce.hit', true) IS DISTINCT FROM ROW(t."id")::text AS pgonce_new`, "true AS pgonce_new", `, set_config('pgonce.hit', '', true)`, "")
	nosort := must(many, "\n   ORDER BY e.\"id\" COLLATE \"C\"", "")
	type variant struct {
		name, sql string
		sums      []float64
	}
	vs := []*variant{{name: "plain", sql: plain}, {name: "unnest", sql: unnestOnly}, {name: "event", sql: event}, {name: "judged", sql: judged}, {name: "applied", sql: applied}, {name: "now", sql: many}, {name: "norank", sql: norank}, {name: "nomark", sql: nomark}, {name: "nosort", sql: nosort}}
	entries, _ := os.ReadDir("/tmp/variants")
	for _, e := range entries {
		b, _ := os.ReadFile("/tmp/variants/" + e.Name())
		vs = append(vs, &variant{name: e.Name(), sql: string(b)})
	}
	os.WriteFile("/tmp/now.sql", []byte(many), 0o644)
	for _, upd := range []bool{false, true} {
		for _, v := range vs {
			v.sums = nil
		}
		for round := range 30 {
			for _, v := range vs {
				cols := make([][]string, 5)
				for i := range 1000 {
					id := fmt.Sprintf("%s_%d_%d", v.name, i, round)
					if upd {
						id = fmt.Sprintf("%s_%d_%d", v.name, i, 0)
					}
					for j, x := range []string{fmt.Sprint(i), id, "active", noon.AddDate(0, round+1, 0).Format("2006-01-02 15:04:05.000000+00"), "1"} {
						cols[j] = append(cols[j], x)
					}
				}
				args := []any{pgx.QueryExecModeExec}
				for _, c := range cols {
					args = append(args, "{"+strings.Join(c, ",")+"}")
				}
				a := cpu()
				rows, err := conn.Query(ctx, v.sql, args...)
				require.NoError(t, err)
				rows.Close()
				require.NoError(t, rows.Err(), v.name)
				v.sums = append(v.sums, cpu()-a)
			}
		}
		for _, v := range vs {
			slices.Sort(v.sums)
			fmt.Printf("%s upd=%v min %.2f p25 %.2f med %.2f\n", v.name, upd, v.sums[0], v.sums[7], v.sums[15])
		}
	}
}
