package idem_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// BenchmarkBatches compares Apply and DoMany with the same by hand: begin, insert the key, effect, commit, for each
// message. What is compared runs operation by operation in turn; the figures are medians, and by hand runs twice.
func BenchmarkBatches(b *testing.B) {
	ctx := b.Context()
	pool := migrated(b, pgtest.Pool(b))
	const effect = `INSERT INTO effects (what) VALUES ('a')`
	n := 0
	next := func() idem.Key { n++; return stripe.Key(fmt.Sprintf("evt_%d", n)) }
	byHand := func() error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				INSERT INTO processed_events (source, operation, key) VALUES ($1, $2, $3)
				ON CONFLICT (key, operation, source) DO NOTHING`, "stripe", "activate", next().ID())
			if err == nil {
				_, err = tx.Exec(ctx, effect)
			}
			return err
		})
	}
	apply := func(key idem.Key) error {
		effects := &pgx.Batch{}
		effects.Queue(effect)
		_, err := idem.Once{}.Apply(ctx, pool, key, effects)
		return err
	}
	many := func(size int) func() error {
		return func() error {
			keys := make([]idem.Key, size)
			for i := range keys {
				keys[i] = next()
			}
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := idem.Once{}.DoMany(ctx, tx, keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
					effects := &pgx.Batch{}
					for range fresh {
						effects.Queue(effect)
					}
					return tx.SendBatch(ctx, effects).Close()
				})
				return err
			})
		}
	}
	seen := next()
	ways := []struct {
		name     string
		messages int
		call     func() error
		took     []time.Duration
	}{
		{name: "byhand", messages: 1, call: byHand},
		{name: "control", messages: 1, call: byHand},
		{name: "apply", messages: 1, call: func() error { return apply(next()) }},
		{name: "applyduplicate", messages: 1, call: func() error { return apply(seen) }},
		{name: "many100", messages: 100, call: many(100)},
		{name: "many1000", messages: 1000, call: many(1000)},
	}
	for b.Loop() {
		for i := range ways {
			begun := time.Now()
			if err := ways[i].call(); err != nil {
				b.Fatal(err)
			}
			ways[i].took = append(ways[i].took, time.Since(begun)/time.Duration(ways[i].messages))
		}
	}
	median := func(i int) float64 {
		slices.Sort(ways[i].took)
		return float64(ways[i].took[len(ways[i].took)/2])
	}
	for i := range ways {
		b.ReportMetric(median(0)/median(i), ways[i].name+"/byhand")
	}
	b.ReportMetric(median(0), "byhand-ns/msg")
}
