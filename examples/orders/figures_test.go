package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// durableServer returns a pool on a server of its own with PostgreSQL's settings, fsync among them.
func durableServer(t testing.TB) *pgxpool.Pool {
	t.Helper()
	s, err := pgserver.Start(t.Context(), pgserver.Config{Settings: map[string]string{"autovacuum_naptime": "1s"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop() })
	pool, err := pgxpool.New(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, migrate(t.Context(), pool))
	return pool
}

var nothing = outbox.PublisherFunc(func(context.Context, []outbox.Event) error { return nil })

func fill(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	for done := 0; done < n; done += 1000 {
		events := make([]outbox.Event, min(1000, n-done))
		for i := range events {
			events[i] = outbox.Event{Topic: "t", Key: fmt.Sprint((done + i) % 1000), Payload: make([]byte, 200)}
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool,
			func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events...) }))
	}
}

// BenchmarkRelay and BenchmarkForwarder publish 20,000 events of 200 bytes, that wait already, to a publisher that does
// nothing, in batches of 100.
func BenchmarkRelay(b *testing.B) {
	pool := durableServer(b)
	for b.Loop() {
		b.StopTimer()
		fill(b, pool, events(b))
		b.StartTimer()
		begun := time.Now()
		_, err := outbox.Relay{Publisher: nothing}.Drain(b.Context(), pool)
		require.NoError(b, err)
		b.ReportMetric(float64(events(b))/time.Since(begun).Seconds(), "events/s")
	}
}

func events(testing.TB) int {
	if os.Getenv("PGONCE_LONG") != "" {
		return 20_000
	}
	return 1_000
}

type sink struct {
	n, want int64
	all     chan struct{}
}

func (s *sink) Publish(_ string, messages ...*message.Message) error {
	if atomic.AddInt64(&s.n, int64(len(messages))) == s.want {
		close(s.all)
	}
	return nil
}

func (*sink) Close() error { return nil }

// forwarded returns the rate of watermill-sql's forwarder.
func forwarded(t testing.TB, pool *pgxpool.Pool, n int) float64 {
	t.Helper()
	ctx, logger := t.Context(), watermill.NopLogger{}
	schema := wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 100}
	in, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		PollInterval: 25 * time.Millisecond,
	}, logger)
	require.NoError(t, err)
	require.NoError(t, in.SubscribeInitialize("events"))
	for done := 0; done < n; done += 1000 {
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			p, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: schema}, logger)
			if err != nil {
				return err
			}
			messages := make([]*message.Message, min(1000, n-done))
			for i := range messages {
				messages[i] = message.NewMessage(watermill.NewUUID(), make([]byte, 200))
			}
			return forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: "events"}).Publish("t", messages...)
		}))
	}
	out := &sink{want: int64(n), all: make(chan struct{})}
	f, err := forwarder.NewForwarder(in, out, logger, forwarder.Config{ForwarderTopic: "events"})
	require.NoError(t, err)
	begun := time.Now()
	go func() { _ = f.Run(ctx) }()
	<-out.all
	took := time.Since(begun)
	require.NoError(t, f.Close())
	return float64(n) / took.Seconds()
}

func BenchmarkForwarder(b *testing.B) {
	pool := durableServer(b)
	for b.Loop() {
		b.ReportMetric(forwarded(b, pool, events(b)), "events/s")
	}
}

// The figures of an outbox, in one run on a server with fsync on. PGONCE_LONG=1 takes the numbers of events that the
// figures are for, and demands them; else it only runs.
func TestFigures(t *testing.T) {
	long := os.Getenv("PGONCE_LONG") != ""
	scale := func(n int) int {
		if long {
			return n
		}
		return max(2, n/100)
	}
	ctx := t.Context()
	pool := durableServer(t)

	fill(t, pool, scale(20_000))
	begun := time.Now()
	s, err := outbox.Relay{Publisher: nothing}.Drain(ctx, pool)
	require.NoError(t, err)
	alone := float64(s.Published) / time.Since(begun).Seconds()
	rival := forwarded(t, pool, scale(20_000))
	t.Logf("what waits already: relay %.0f events/s, watermill-sql's forwarder %.0f, %.1f times", alone, rival,
		alone/rival)

	// Four writers, ten events a transaction, and a stock that the relay cannot empty meanwhile.
	fill(t, pool, scale(100_000))
	run, stop := context.WithTimeout(ctx, time.Duration(scale(10_000))*time.Millisecond)
	var appended, published atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			ten := make([]outbox.Event, 10)
			for i := range ten {
				ten[i] = outbox.Event{Topic: "t", Key: fmt.Sprint(i), Payload: make([]byte, 200)}
			}
			for run.Err() == nil {
				if pgx.BeginFunc(run, pool, func(tx pgx.Tx) error { return outbox.Append(run, tx, ten...) }) == nil {
					appended.Add(10)
				}
			}
		})
	}
	begun = time.Now()
	_ = outbox.Relay{
		Publisher: nothing,
		Done:      func(_ context.Context, s outbox.Stats, _ error) { published.Add(s.Published) },
	}.Run(run, pool)
	took := time.Since(begun).Seconds()
	all.Wait()
	stop()
	busy := float64(published.Load()) / took
	t.Logf("while writers append %.0f events/s: relay %.0f events/s", float64(appended.Load())/took, busy)
	_, err = outbox.Relay{Publisher: nothing}.Drain(ctx, pool)
	require.NoError(t, err)

	p50, p99 := wakeUps(t, pool, scale(400))
	t.Logf("idle, from COMMIT to the publisher by Notify and Listen: p50 %v, p99 %v", p50, p99)

	few := claim(t, pool, 1_000, min(15, scale(300)))
	many := claim(t, pool, scale(1_000_000), min(15, scale(300)))
	t.Logf("a claim, its batch and its end, medians: %v with 1,000 waiting, %v with %d", few, many, scale(1_000_000))
	_, err = pool.Exec(ctx, `TRUNCATE outbox`)
	require.NoError(t, err)

	// Traffic of 500 a second, by count: ten minutes, and an hour.
	var sizes [2][2]int64
	for i, n := range []int{scale(300_000), scale(1_500_000)} {
		for done := 0; done < n; done += 2000 {
			fill(t, pool, 2000)
			_, err := outbox.Relay{Publisher: nothing}.Drain(ctx, pool)
			require.NoError(t, err)
		}
		require.NoError(t, pool.QueryRow(ctx, `SELECT pg_table_size('outbox'), pg_indexes_size('outbox')`).Scan(&sizes[i][0],
			&sizes[i][1]))
	}
	t.Logf("table and indexes: %d and %d kB after ten minutes' events, %d and %d kB after an hour's",
		sizes[0][0]/1024, sizes[0][1]/1024, sizes[1][0]/1024, sizes[1][1]/1024)
	if !long {
		return
	}
	require.Greater(t, busy, 5_000.0)
	require.Greater(t, alone, 3*rival)
	require.Less(t, p99, 50*time.Millisecond)
	require.Less(t, many, few*3/2)
	require.LessOrEqual(t, sizes[1][0], sizes[0][0])
	require.LessOrEqual(t, sizes[1][1], sizes[0][1])
}

func wakeUps(t *testing.T, pool *pgxpool.Pool, n int) (p50, p99 time.Duration) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	wake, got := make(chan struct{}, 1), make(chan time.Time, 1)
	var both sync.WaitGroup
	both.Go(func() { _ = outbox.Listen(ctx, conn, wake) })
	both.Go(func() {
		_ = outbox.Relay{Wake: wake, Publisher: outbox.PublisherFunc(func(context.Context, []outbox.Event) error {
			got <- time.Now()
			return nil
		})}.Run(ctx, pool)
	})
	var took []time.Duration
	for range n {
		time.Sleep(30 * time.Millisecond)
		fill(t, pool, 1)
		committed := time.Now()
		require.NoError(t, outbox.Notify(ctx, pool))
		took = append(took, max(0, (<-got).Sub(committed)))
	}
	stop()
	both.Wait()
	slices.Sort(took)
	return took[n/2], took[n*99/100]
}

// claim measures a step of a relay with so many events waiting: the publisher is away, so that nothing changes.
func claim(t *testing.T, pool *pgxpool.Pool, waiting, rounds int) time.Duration {
	ctx := t.Context()
	_, err := pool.Exec(ctx, `TRUNCATE outbox`)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `
		INSERT INTO outbox (lane, id, topic, key, payload)
		SELECT n % 32, gen_random_uuid(), 't', 'k' || n % 1000, decode(repeat('00', 200), 'hex') FROM generate_series(1, $1::int) AS n`, waiting)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `VACUUM ANALYZE outbox`)
	require.NoError(t, err)
	away := outbox.Relay{
		Batch:     20,
		Publisher: outbox.PublisherFunc(func(context.Context, []outbox.Event) error { return outbox.ErrUnavailable }),
	}
	var took []time.Duration
	for range rounds {
		_, err := pool.Exec(ctx, `UPDATE outbox_lanes SET lease_until = '-infinity'`)
		require.NoError(t, err)
		begun := time.Now()
		_, err = away.Drain(ctx, pool)
		require.ErrorIs(t, err, outbox.ErrUnavailable)
		took = append(took, time.Since(begun)/33)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
