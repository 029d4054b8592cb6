package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// BenchmarkRelay is a relay of one worker, with a publisher that does nothing, of 1,000 keys.
func BenchmarkRelay(b *testing.B) {
	pool := migrated(b)
	events := make([]outbox.Event, 1000)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Key: fmt.Sprint(i), Payload: make([]byte, 200)}
	}
	const rounds = 20
	for range rounds {
		add(b, pool, events...)
	}
	none := outbox.PublisherFunc(func(context.Context, []outbox.Event) error { return nil })
	b.ResetTimer()
	begun := time.Now()
	s := drain(b, pool, outbox.Relay{Publisher: none})
	require.EqualValues(b, rounds*len(events), s.Published)
	b.ReportMetric(float64(s.Published)/time.Since(begun).Seconds(), "events/s")
}

// BenchmarkAppend shows why a transaction should not notify: with more than one writer their COMMITs wait for each
// other.
func BenchmarkAppend(b *testing.B) {
	for _, notify := range []bool{false, true} {
		b.Run(fmt.Sprintf("notify=%v", notify), func(b *testing.B) {
			ctx := b.Context()
			pool := migrated(b)
			b.SetParallelism(4)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
						if err := outbox.Append(ctx, tx, ev("k", 1)); err != nil || !notify {
							return err
						}
						return outbox.Notify(ctx, tx)
					})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
