package idem_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What a first delivery, with an effect of nothing, costs on each layout, at several sizes: rates of 8 workers, in
// turns of two seconds each, so that what else the machine does falls on all alike. PGONCE_LONG=1 runs it;
// PGONCE_ROWS="100000 1000000" are its sizes, and with PGONCE_KEYS=ascending new keys follow each other, as those
// that begin with a time do, and all meet at one end of the index.
func TestLayoutRates(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; what it measures is tested elsewhere
	}
	cfg := pgtest.Config(t)
	cfg.MaxConns = 8
	pool := pgtest.PoolConfig(t, cfg)
	sizes := os.Getenv("PGONCE_ROWS")
	if sizes == "" {
		sizes = "100000 1000000"
	}
	for _, rows := range strings.Fields(sizes) {
		n, err := strconv.Atoi(rows)
		require.NoError(t, err)
		measureRates(t, pool, n)
	}
}

func measureRates(t *testing.T, pool *pgxpool.Pool, rows int) {
	ctx := t.Context()
	tables := []dedup.Table{
		{Name: "plain"},
		{Name: "hash8", Layout: dedup.Hash(8)},
		{Name: "hash32", Layout: dedup.Hash(32)},
		{Name: "weekly", Layout: dedup.Weekly},
	}
	for _, table := range tables {
		_, err := pool.Exec(ctx, `DROP TABLE IF EXISTS `+table.Name)
		require.NoError(t, err)
		require.NoError(t, dedup.Migrate(ctx, pool, table))
		columns, values := "", ""
		if table.Layout == dedup.Weekly {
			columns, values = ", event_time, bucket", ", t, date_trunc('week', t AT TIME ZONE 'UTC')::date"
		}
		_, err = pool.Exec(ctx, `
			INSERT INTO `+table.Name+` (source, operation, key`+columns+`)
			SELECT 'stripe', 'activate', gen_random_uuid()::text`+values+`
			  FROM generate_series(1, $1::int) AS n, LATERAL (SELECT now() - n % 30 * interval '1 day') AS x (t)`, rows)
		require.NoError(t, err)
		_, err = pool.Exec(ctx, `VACUUM ANALYZE `+table.Name)
		require.NoError(t, err)
	}
	_, err := pool.Exec(ctx, `CHECKPOINT`)
	require.NoError(t, err)
	const turns, each = 9, 2 * time.Second
	rates := make([][]float64, len(tables))
	for turn := range turns {
		for i := range tables {
			i = (i + turn) % len(tables) // no layout always runs after the same other one
			rates[i] = append(rates[i], claimsPerSecond(t, pool, tables[i], each))
		}
	}
	for i, table := range tables {
		ratios := make([]float64, turns)
		for n := range ratios {
			ratios[n] = rates[i][n] / rates[0][n]
		}
		slices.Sort(ratios)
		slices.Sort(rates[i])
		var size string
		require.NoError(t, pool.QueryRow(ctx, `
			SELECT pg_size_pretty(sum(pg_table_size(relid))) || ' and ' || pg_size_pretty(sum(pg_indexes_size(relid)))
			  FROM (SELECT $1::text::regclass UNION SELECT relid FROM pg_partition_tree($1::text::regclass) WHERE isleaf) AS parts (relid)`, table.Name).Scan(&size))
		t.Logf("%d rows, %s: %.0f claims/s, %.2f (%.2f to %.2f) of plain's; table and index %s",
			rows, table.Name, rates[i][turns/2], ratios[turns/2], ratios[0], ratios[turns-1], size)
	}
}

func claimsPerSecond(t *testing.T, pool *pgxpool.Pool, table dedup.Table, d time.Duration) float64 {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	once := idem.Once{Table: table}
	var done atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for w := range 8 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// scattered, as UUIDv4 are
				id := fmt.Sprintf("%x", (uint64(begun.UnixNano())+uint64(w)<<56+uint64(n))*0x9e3779b97f4a7c15)
				if os.Getenv("PGONCE_KEYS") == "ascending" {
					id = fmt.Sprintf("z%019d.%d", time.Now().UnixNano(), w)
				}
				key := stripe.Key(id)
				if table.Layout == dedup.Weekly {
					key = key.OccurredAt(begun)
				}
				if _, err := once.Run(context.WithoutCancel(ctx), pool, key, nothing); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(begun).Seconds()
}
