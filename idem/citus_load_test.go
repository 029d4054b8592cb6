package idem_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// How much of a processor a message takes on the node that is asked, and on all others together: where one
// coordinator is full, whatever else the machine does. PGONCE_LONG=1 runs it.
func TestLoadOnCitus(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; what it measures is tested elsewhere
	}
	// used is the time that the sessions of a database have taken; those that Citus opens stay.
	used := func(pool *pgxpool.Pool) (d time.Duration) {
		rows, err := pool.Query(t.Context(), `
			SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
		require.NoError(t, err)
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			require.NoError(t, err)
			fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+2:]))
			for _, f := range fields[11:13] { // utime and stime, in ticks of 10 ms
				ticks, err := strconv.Atoi(f)
				require.NoError(t, err)
				d += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
		return d
	}
	open := func(dsns ...string) (pools []*pgxpool.Pool) {
		for _, dsn := range dsns {
			cfg, err := pgxpool.ParseConfig(dsn)
			require.NoError(t, err)
			cfg.MaxConns = 1
			p, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(p.Close)
			pools = append(pools, p)
		}
		return pools
	}
	plain, nodes := open(pgtest.DSN(t)), open(pgtest.Cluster(t)...)
	once := idem.Once{Table: dedup.Table{Spread: "key"}}
	require.NoError(t, dedup.Migrate(t.Context(), plain[0]))
	require.NoError(t, dedup.Migrate(t.Context(), nodes[0], once.Table))
	for _, p := range []*pgxpool.Pool{plain[0], nodes[0]} {
		_, err := p.Exec(t.Context(), `CREATE TABLE effects (what text COLLATE "C" NOT NULL)`)
		require.NoError(t, err)
	}
	_, err := nodes[0].Exec(t.Context(),
		`SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events')`)
	require.NoError(t, err)
	const messages = 400
	for _, place := range []struct {
		name   string
		asked  *pgxpool.Pool
		others []*pgxpool.Pool
	}{
		{"plain PostgreSQL", plain[0], nil},
		{"the coordinator", nodes[0], nodes[1:]},
		{"a worker", nodes[1], []*pgxpool.Pool{nodes[0], nodes[2], nodes[3]}},
	} {
		line := "| " + place.name + " |"
		for _, kind := range []string{"warm up", "new", "duplicate", "lookup"} {
			others := func() (d time.Duration) {
				for _, p := range place.others {
					d += used(p)
				}
				return d
			}
			own, rest := used(place.asked), others()
			for i := range messages {
				key := stripe.Key(fmt.Sprint(place.name, " ", i))
				switch kind {
				case "warm up":
					key = stripe.Key(fmt.Sprint(place.name, " warm ", i))
				case "lookup":
					_, err := once.Lookup(t.Context(), place.asked, key)
					require.NoError(t, err)
					continue
				}
				_, err := once.Run(t.Context(), place.asked, key, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, key.ID())
					return err
				})
				require.NoError(t, err)
			}
			if kind != "warm up" {
				line += fmt.Sprintf(" %d + %d |", (used(place.asked)-own).Microseconds()/messages,
					(others()-rest).Microseconds()/messages)
			}
		}
		t.Log(line)
	}
}
