package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestProgram(t *testing.T) {
	require.NoError(t, run(t.Context(), pgtest.DSN(t), ""))
}

// wires are the open connections of a process, and what ends them.
type wires struct {
	mu   sync.Mutex
	open map[net.Conn]bool
	dead bool
}

var errDead = errors.New("the process is dead")

func (w *wires) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		_ = c.Close()
		return nil, errDead
	}
	if w.open == nil {
		w.open = map[net.Conn]bool{}
	}
	w.open[c] = true
	return c, nil
}

// Dial is what NATS wants.
func (w *wires) Dial(network, address string) (net.Conn, error) {
	return w.DialContext(context.Background(), network, address)
}

// cut ends the connections that there are; with dead there will be no other.
func (w *wires) cut(dead bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		_ = c.Close()
		delete(w.open, c)
	}
	w.dead = w.dead || dead
}

// chaos is what the processes of a test share.
type chaos struct {
	dsn, url string
	running  context.Context
	calm     atomic.Bool // nothing is broken any more

	relayKills, consumerKills, brokerCuts, backends, publishesLost, acksLost atomic.Int64
	published, again, executed, duplicates, failures                         atomic.Int64
}

// process runs work in a process of its own, with connections of its own, until those are cut, again and again.
func (c *chaos) process(
	kills *atomic.Int64, work func(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream),
) {
	for c.running.Err() == nil {
		ctx, cancel := context.WithCancel(c.running)
		db, broker := &wires{}, &wires{}
		cfg, err := pgxpool.ParseConfig(c.dsn)
		if err != nil {
			panic(err)
		}
		cfg.ConnConfig.DialFunc, cfg.MaxConns = db.DialContext, 3
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			panic(err)
		}
		nc, err := nats.Connect(c.url, nats.SetCustomDialer(broker), nats.RetryOnFailedConnect(true),
			nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
		if err != nil {
			panic(err)
		}
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(500*time.Millisecond),
			jetstream.WithDefaultTimeout(time.Second))
		if err != nil {
			panic(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); work(ctx, pool, js) }()
		for life := 200 + rand.IntN(600); life > 0 || c.calm.Load(); life -= 20 {
			time.Sleep(20 * time.Millisecond)
			if c.running.Err() != nil {
				break
			}
			if !c.calm.Load() && rand.IntN(15) == 0 {
				broker.cut(false)
				c.brokerCuts.Add(1)
			}
		}
		if c.running.Err() == nil {
			kills.Add(1)
		}
		// As with SIGKILL: first nothing gets out any more, and then there is nobody.
		db.cut(true)
		broker.cut(true)
		cancel()
		<-done
		pool.Close()
		nc.Close()
	}
}

func (c *chaos) relay(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream) {
	lossy := outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
		err := publisher{js}.Publish(ctx, events)
		if !c.calm.Load() && rand.IntN(10) == 0 {
			c.publishesLost.Add(1)
			return fmt.Errorf("%w: the answer was lost", outbox.ErrUnavailable)
		}
		return err
	})
	_ = outbox.Relay{
		Publisher: lossy, Batch: 20, Workers: 2, Lease: time.Second, MinRetry: 10 * time.Millisecond,
		MaxRetry: 100 * time.Millisecond,
		Done: func(_ context.Context, s outbox.Stats, _ error) {
			c.published.Add(s.Published)
			c.again.Add(s.Again)
		},
	}.Run(ctx, pool)
}

// consumer loses acknowledgements: its context ends between the effect and the acknowledgement.
func (c *chaos) consumer(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream) {
	var wg sync.WaitGroup
	for p := range partitions {
		wg.Go(func() {
			for ctx.Err() == nil {
				one, lose := context.WithCancel(ctx)
				_ = consume(one, js, pool, p, func(outcome idem.Outcome, err error) {
					switch {
					case err != nil:
						c.failures.Add(1)
					case outcome == idem.Executed:
						c.executed.Add(1)
					default:
						c.duplicates.Add(1)
					}
					if err == nil && !c.calm.Load() && rand.IntN(10) == 0 {
						c.acksLost.Add(1)
						lose()
					}
				})
				lose()
			}
		})
	}
	wg.Wait()
}

// Orders, outbox, relays, broker, consumers and effects, with relays, consumers, broker connections and backends
// killed at random throughout, and answers lost: each event has one effect, those of an order come in order, and the
// outbox ends empty. PGONCE_LONG=1 has 10,000 events.
func TestChaos(t *testing.T) {
	orders, steps := 30, 10
	if os.Getenv("PGONCE_LONG") != "" {
		orders, steps = 200, 50
	}
	ctx := t.Context()
	s, err := broker(t.TempDir())
	require.NoError(t, err)
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	pool := pgtest.Pool(t)
	require.NoError(t, migrate(ctx, pool))
	running, stop := context.WithCancel(ctx)
	c := &chaos{dsn: pool.Config().ConnString(), url: s.ClientURL(), running: running}
	nc, err := nats.Connect(c.url)
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, prepare(ctx, js, 300*time.Millisecond))
	nc.Close()

	begun := time.Now()
	var all, writers sync.WaitGroup
	for range 3 {
		all.Go(func() { c.process(&c.relayKills, c.relay) })
	}
	for range 2 {
		all.Go(func() { c.process(&c.consumerKills, c.consumer) })
	}
	all.Go(func() { // backends, of the writers, too
		for running.Err() == nil && !c.calm.Load() {
			var n int64
			err := pool.QueryRow(ctx, `
				SELECT count(pg_terminate_backend(pid)) FROM (
				 SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				 ORDER BY random() LIMIT 1) AS one`).Scan(&n)
			if err == nil {
				c.backends.Add(n)
			}
			time.Sleep(40 * time.Millisecond)
		}
	})
	for w := range 4 {
		writers.Go(func() {
			for step := 1; step <= steps; step++ {
				for n := w; n < orders; n += 4 {
					for ctx.Err() == nil && move(ctx, pool, fmt.Sprint("order-", n), step) != nil {
						time.Sleep(5 * time.Millisecond)
					}
				}
			}
		})
	}
	writers.Wait()
	total := int64(orders * steps)
	effects := func() (n int64) {
		if pool.QueryRow(ctx, `SELECT count(*) FROM orders_shipments`).Scan(&n) != nil {
			return -1
		}
		return n
	}
	// The breaking goes on until half of the effects are there, at least; then the rest is let through.
	require.Eventually(t, func() bool { return effects() >= total/2 }, 10*time.Minute, 50*time.Millisecond)
	for range 100 {
		if effects() >= total*9/10 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.calm.Store(true)
	left := func() (n int64) {
		if pool.QueryRow(ctx, `SELECT count(*) FROM outbox`).Scan(&n) != nil {
			return -1
		}
		return n
	}
	require.Eventually(t, func() bool { return effects() == total && left() == 0 }, 5*time.Minute, 50*time.Millisecond,
		"%d of %d effects, %d events left", effects(), total, left())
	stop()
	all.Wait()
	t.Logf("%d events in %v: %d relays, %d consumers, %d broker connections and %d backends killed; %d answers to "+
		"publishers "+
		"and %d acknowledgements lost; %d published, %d of them perhaps again; %d executed, %d duplicates, %d failed "+
		"deliveries",
		total, time.Since(begun).Round(time.Millisecond), c.relayKills.Load(), c.consumerKills.Load(), c.brokerCuts.Load(),
		c.backends.Load(),
		c.publishesLost.Load(), c.acksLost.Load(), c.published.Load(), c.again.Load(), c.executed.Load(),
		c.duplicates.Load(), c.failures.Load())

	require.Equal(t, total, effects(), "each event has one effect")
	rows, err := pool.Query(ctx, `SELECT order_id, step FROM orders_shipments ORDER BY n`)
	require.NoError(t, err)
	last := map[string]int{}
	for rows.Next() {
		var order string
		var step int
		require.NoError(t, rows.Scan(&order, &step))
		require.Equal(t, last[order]+1, step, order)
		last[order] = step
	}
	require.NoError(t, rows.Err())
	require.Len(t, last, orders)
	require.Positive(t, c.duplicates.Load(), "without duplicates the test proves nothing")
	require.Positive(t, c.relayKills.Load())
	require.Positive(t, c.consumerKills.Load())
	require.Positive(t, c.backends.Load())
}
