package idem_test

import (
	"context"
	"fmt"
	"os"
	"slices"
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

// What a message costs on a cluster beside plain PostgreSQL, by Run with one effect, one message after the other:
// medians and lowest times. Turns are short and change places, so that what else the machine does falls on all alike;
// plain PostgreSQL is there twice. PGONCE_LONG=1 runs it.
func TestCostOnCitus(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; what it measures is tested elsewhere
	}
	type place struct {
		name  string
		pool  *pgxpool.Pool
		once  idem.Once
		table string // of effects
	}
	pool := func(dsn string, sqls ...string) *pgxpool.Pool {
		p, err := pgxpool.New(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		for _, sql := range sqls {
			_, err := p.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
		return p
	}
	const effects = `CREATE TABLE effects (tenant int NOT NULL, what text COLLATE "C" NOT NULL)`
	cluster := pgtest.Cluster(t)
	plain := pool(pgtest.DSN(t), effects)
	require.NoError(t, dedup.Migrate(t.Context(), plain))
	spread := pool(cluster[0], `CREATE SCHEMA tenant`)
	byKey := dedup.Table{Name: "by_key", Spread: "key"}
	inSchema := dedup.Table{Name: "tenant.processed_events", Spread: "schema"}
	require.NoError(t, dedup.Migrate(t.Context(), spread, byKey, inSchema))
	for _, sql := range []string{
		`CREATE TABLE beside (tenant int NOT NULL, what text COLLATE "C" NOT NULL)`,
		`SELECT create_distributed_table('beside', 'what', colocate_with => 'by_key')`,
		`CREATE TABLE by_tenant (tenant int NOT NULL, what text COLLATE "C" NOT NULL)`,
		`SELECT create_distributed_table('by_tenant', 'tenant', colocate_with => 'none')`,
		`CREATE TABLE tenant.effects (tenant int NOT NULL, what text COLLATE "C" NOT NULL)`,
	} {
		_, err := spread.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	worker := pool(cluster[1])
	places := []place{
		{"plain PostgreSQL", plain, idem.Once{}, "effects"},
		{"plain PostgreSQL, again", plain, idem.Once{}, "effects"},
		{"by key, effects beside", spread, idem.Once{Table: byKey}, "beside"},
		{"the same, through a worker", worker, idem.Once{Table: byKey}, "beside"},
		{"by key, effects by tenant", spread, idem.Once{Table: byKey}, "by_tenant"},
		{"a schema for each tenant", spread, idem.Once{Table: inSchema}, "tenant.effects"},
	}
	kinds := []string{"new", "duplicate", "lookup", "timed new", "timed duplicate"}
	now := time.Now() // of the events
	times := map[string][]time.Duration{}
	const turns, each = 15, 8
	for turn := range turns {
		for n := range places {
			n = (n + turn) % len(places)
			p := places[n]
			fn := func(what string) func(context.Context, pgx.Tx) error {
				return func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO `+p.table+` (tenant, what) VALUES ($1, $2)`, turn, what)
					return err
				}
			}
			for _, kind := range kinds {
				for i := range each {
					what := fmt.Sprintf("%d %d %d", n, turn, i)
					key := stripe.Key(what)
					if strings.HasPrefix(kind, "timed") {
						key = stripe.Key(what, "timed").OccurredAt(now)
					}
					begun := time.Now()
					if kind == "lookup" { // of a duplicate, where the caller expects one
						r, err := p.once.Lookup(t.Context(), p.pool, key)
						times[p.name+kind] = append(times[p.name+kind], time.Since(begun))
						require.NoError(t, err)
						require.Equal(t, idem.Done, r.State)
						continue
					}
					out, err := p.once.Run(t.Context(), p.pool, key, fn(key.ID()))
					took := time.Since(begun)
					require.NoError(t, err)
					require.Equal(t, strings.HasSuffix(kind, "duplicate"), out == idem.Duplicate)
					if turn > 0 { // sessions, and what Citus learns once
						times[p.name+kind] = append(times[p.name+kind], took)
					}
				}
			}
		}
	}
	for _, p := range places {
		line := "| " + p.name + " |"
		for _, kind := range kinds {
			all := times[p.name+kind]
			slices.Sort(all)
			line += fmt.Sprintf(" %.1f (%.1f) |", float64(all[len(all)/2].Microseconds())/1e3,
				float64(all[0].Microseconds())/1e3)
		}
		t.Log(line)
	}
}
