package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// loadFigure is the insert rate of one table.
type loadFigure struct {
	layout, keys string
	rows         int
	size         string // of the table and its indexes, before the load
	rates        []loadRate
}

type loadRate struct {
	workers  int
	rate     float64 // claims a second, the median of the turns
	ratio    float64 // of the first table's, the smallest Plain one with ascending keys: the median over the turns
	p50, p99 time.Duration
}

// loadTable is one of the tables that take turns.
type loadTable struct {
	loadFigure
	table dedup.Table
	key   func() string

	turns [][]float64       // rates, by number of workers and turn
	took  [][]time.Duration // by number of workers
}

// load measures how many claims a second the server takes, each with an effect of one row and a COMMIT of its
// own: by layout, by the order of the keys, by the size of the table and by the number of workers. The tables
// take turns.
func (b *bench) load(ctx context.Context, p *page) error {
	tables, err := b.loadTables(ctx)
	if err != nil {
		return err
	}
	pools := make([]*pgxpool.Pool, len(b.cfg.loadWorks))
	for i, n := range b.cfg.loadWorks {
		if pools[i], err = b.pool(ctx, n, nil); err != nil {
			return err
		}
		defer pools[i].Close()
	}
	// What is written first after a checkpoint is written whole. A long enough warm-up has that behind it.
	if _, err := b.one.Exec(ctx, `CHECKPOINT`); err != nil {
		b.say("no CHECKPOINT before the load: %v", err)
	}
	for _, t := range tables {
		b.say("load: warm %s with %d rows, %s keys", t.layout, t.rows, t.keys)
		if _, _, err := claims(ctx, pools[len(pools)-1], *t, b.cfg.loadWorks[len(pools)-1], b.cfg.warm); err != nil {
			return err
		}
	}
	for turn := range b.cfg.turns {
		b.say("load: turn %d of %d", turn+1, b.cfg.turns)
		for n := range tables {
			t := tables[(n+turn)%len(tables)]
			for i, workers := range b.cfg.loadWorks {
				rate, took, err := claims(ctx, pools[i], *t, workers, b.cfg.turn)
				if err != nil {
					return err
				}
				t.turns[i], t.took[i] = append(t.turns[i], rate), append(t.took[i], took...)
			}
		}
	}
	for _, t := range tables {
		for i, workers := range b.cfg.loadWorks {
			ratios := make([]float64, len(t.turns[i]))
			for n := range ratios {
				ratios[n] = t.turns[i][n] / tables[0].turns[i][n]
			}
			slices.Sort(ratios)
			rates := slices.Sorted(slices.Values(t.turns[i]))
			slices.Sort(t.took[i])
			t.rates = append(t.rates, loadRate{
				workers, rates[len(rates)/2], ratios[len(ratios)/2], at(t.took[i], 0.5), at(t.took[i], 0.99),
			})
		}
		p.loads = append(p.loads, t.loadFigure)
	}
	return nil
}

// loadTables makes and fills a table of each layout, order and size. The smallest Plain one comes first.
func (b *bench) loadTables(ctx context.Context) (all []*loadTable, err error) {
	type order struct {
		name, sql string
		key       func() string
	}
	// The stored keys spread over the last 28 days, as far as they say so.
	orders := []order{
		{"UUIDv7", `lpad(to_hex(trunc(extract(epoch FROM t) * 1000)::bigint), 12, '0') || '7' ||
			substr(md5(n::text), 1, 3) || 'a' || substr(md5(n::text), 4, 15)`, ascending},
		{"random", `overlay(overlay(md5(n::text || random()::text) PLACING '4' FROM 13) PLACING 'a' FROM 17)`, scattered},
	}
	for _, rows := range b.cfg.rows {
		for _, layout := range []struct {
			name string
			dedup.Layout
		}{{"Plain", dedup.Plain}, {"Hash(8)", dedup.Hash(8)}, {"Weekly", dedup.Weekly}} {
			for _, o := range orders {
				t := &loadTable{
					loadFigure: loadFigure{layout: layout.name, keys: o.name, rows: rows}, key: o.key,
					table: dedup.Table{Name: fmt.Sprintf("bench_load_%d", len(all)), Layout: layout.Layout},
					turns: make([][]float64, len(b.cfg.loadWorks)), took: make([][]time.Duration, len(b.cfg.loadWorks)),
				}
				b.say("load: fill %s with %d rows, %s keys", t.layout, rows, t.keys)
				if err := dedup.Migrate(ctx, b.one, t.table); err != nil {
					return nil, err
				}
				columns, values := "", ""
				if layout.Layout == dedup.Weekly {
					columns = ", event_time, bucket"
					values = ", date_trunc('milliseconds', t), date_trunc('week', t AT TIME ZONE 'UTC')::date"
				}
				_, err := b.one.Exec(ctx, fmt.Sprintf(`
					INSERT INTO %s (source, operation, key%s)
					SELECT 'bench', 'book-payment', k::uuid::text%s
					  FROM generate_series(1, $1::int) AS n,
					       LATERAL (SELECT now() - ($1::int - n)::float8 / $1::int * interval '28 days') AS x (t),
					       LATERAL (SELECT %s) AS y (k)`, t.table.Name, columns, values, o.sql), rows)
				if err != nil {
					return nil, err
				}
				if _, err := b.one.Exec(ctx, `VACUUM ANALYZE `+t.table.Name); err != nil {
					return nil, err
				}
				err = b.one.QueryRow(ctx, `
					SELECT pg_size_pretty(sum(pg_table_size(relid))) || ' and ' || pg_size_pretty(sum(pg_indexes_size(relid)))
					  FROM (SELECT $1::text::regclass UNION 
					        SELECT relid FROM pg_partition_tree($1::text::regclass) WHERE isleaf) AS parts (relid)`,
					t.table.Name).Scan(&t.size)
				if err != nil {
					return nil, err
				}
				all = append(all, t)
			}
		}
	}
	return all, nil
}

// claims has workers claim new keys for a time, and returns how many a second, and the time of each.
func claims(
	ctx context.Context, db *pgxpool.Pool, t loadTable, workers int, lasts time.Duration,
) (rate float64, took []time.Duration, err error) {
	once := idem.Once{Table: t.table}
	var mu sync.Mutex
	var wg sync.WaitGroup
	begun := time.Now()
	for range workers {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(begun) < lasts || len(own) == 0 {
				m := message{id: t.key()}
				key := scope.Key(m.id)
				if t.table.Layout == dedup.Weekly && t.keys != "UUIDv7" {
					key = key.OccurredAt(time.Now())
				}
				start := time.Now()
				_, e := once.Run(ctx, db, key, m.effect)
				own = append(own, time.Since(start))
				if e != nil {
					mu.Lock()
					err = e
					mu.Unlock()
					return
				}
			}
			mu.Lock()
			took = append(took, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return float64(len(took)) / time.Since(begun).Seconds(), took, err
}
