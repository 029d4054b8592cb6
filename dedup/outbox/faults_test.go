package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// watched returns a pool of one connection to the database of pool that s watches.
func watched(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) *pgxpool.Pool {
	cfg := pool.Config().Copy()
	cfg.MaxConns = 1
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would be counted
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.ConnConfig.RuntimeParams["application_name"] = "watched"
	s.Attach(&cfg.ConnConfig.Config)
	return pgtest.PoolConfig(t, cfg)
}

// A relay whose connection is cut at any message of the protocol, in either direction, before or behind it, loses no
// event and changes no order; another relay goes on when the lease is over. The same with events that fail in
// between.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()
	const keys, each = 2, 3
	pool := pgtest.Pool(t)
	tables := 0
	prepared := func(t *testing.T) (outbox.Relay, *broker) {
		tables++
		table := outbox.Table{Name: fmt.Sprint("o", tables)}
		require.NoError(t, outbox.Migrate(t.Context(), pool, table))
		var events []outbox.Event
		for n := 1; n <= each; n++ {
			for k := range keys {
				events = append(events, ev(fmt.Sprint("k", k), n))
			}
		}
		addTo(t, pool, table, events...)
		failed := false
		b := &broker{fail: func(e outbox.Event) error {
			if e.Key == "k1" && string(e.Payload) == "2" && !failed {
				failed = true
				return errors.New("once")
			}
			return nil
		}}
		r := quick(b)
		r.Table = table
		return r, b
	}
	counted := &faultconn.Script{}
	drain := func(r outbox.Relay, pool *pgxpool.Pool) {
		for range 3 {
			_, _ = r.Drain(context.Background(), pool)
		}
	}
	r, b := prepared(t)
	drain(r, watched(t, pool, counted))
	require.Len(t, b.payloads(), keys*each)
	type cut struct {
		from faultconn.Side
		n    int
		mode faultconn.Mode
	}
	var cuts []cut
	for _, from := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
		for n := 1; n <= counted.Count(from); n++ {
			cuts = append(cuts, cut{from, n, faultconn.DropBefore})
			if from == faultconn.Frontend {
				cuts = append(cuts, cut{from, n, faultconn.DropReply})
			}
		}
	}
	t.Logf("%d cuts", len(cuts))
	again := 0
	for _, c := range pgtest.Sample(cuts, 7) {
		t.Run(fmt.Sprintf("%v %d %v", c.from, c.n, c.mode), func(t *testing.T) {
			r, b := prepared(t)
			s := &faultconn.Script{From: c.from, N: c.n, Mode: c.mode}
			drain(r, watched(t, pool, s))
			require.Equal(t, 1, s.Hits(), "%v", s)
			require.Eventually(t, func() bool {
				// The leases of the broken one run out.
				_, err := pool.Exec(t.Context(), `UPDATE `+r.Table.Name+`_lanes SET lease_until = '-infinity'`)
				require.NoError(t, err)
				_, _ = r.Drain(t.Context(), pool)
				return count(t, pool, `SELECT count(*) FROM `+r.Table.Name) == 0
			}, 20*time.Second, 5*time.Millisecond, "%v", s)
			inOrder(t, b, keys, each)
			_, n := b.firsts()
			again += n
		})
	}
	require.Positive(t, again, "where nothing is published again, nothing was cut behind the publisher")
}

// A relay that stalls beyond its lease can mark nothing and frees nothing: another one has the lane.
func TestStaleRelay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, fails := range []bool{false, true} {
		pool := migrated(t)
		add(t, pool, ev("k", 1), ev("k", 2))
		stalls, goOn := make(chan struct{}), make(chan struct{})
		relay := func(b *broker, lease time.Duration, reached, goOn chan struct{}, err error) outbox.Relay {
			return outbox.Relay{
				Lease: lease,
				Publisher: outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
					if reached != nil {
						close(reached)
						reached = nil
						<-goOn
					}
					return errors.Join(b.Publish(ctx, events), err)
				}),
			}
		}
		var each error
		if fails {
			each = outbox.EventErrors{errors.New("failed"), errors.New("failed")}
		}
		stale := make(chan outbox.Stats)
		go func() {
			s, _ := relay(&broker{}, 200*time.Millisecond, stalls, goOn, each).Drain(ctx, pool)
			stale <- s
		}()
		<-stalls
		require.Eventually(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM outbox_lanes WHERE lease_until > now()`) == 0
		}, 20*time.Second, 10*time.Millisecond)
		second := &broker{}
		holds, release := make(chan struct{}), make(chan struct{})
		other := make(chan outbox.Stats)
		go func() {
			s, _ := relay(second, time.Hour, holds, release, nil).Drain(ctx, pool)
			other <- s
		}()
		<-holds
		close(goOn)
		s := <-stale
		require.Equal(t, outbox.Stats{Again: s.Again}, s)
		if !fails {
			require.EqualValues(t, 2, s.Again)
		}
		require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM outbox WHERE lane >= 0 AND attempts = 0`),
			"the stale one has marked nothing")
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox_lanes WHERE token <> 0`), "and has freed nothing")
		close(release)
		require.EqualValues(t, 2, (<-other).Published)
		require.Equal(t, []string{"k:1", "k:2"}, second.payloads())
		require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox`))
	}
}

// When ctx ends while the publisher works, what it has published is deleted, what it has not is not, no attempt is
// counted, and the lane is free at once.
func TestCancel(t *testing.T) {
	t.Parallel()
	for _, published := range []bool{true, false} {
		pool := migrated(t)
		add(t, pool, ev("k", 1))
		ctx, cancel := context.WithCancel(t.Context())
		err := outbox.Relay{Publisher: outbox.PublisherFunc(func(ctx context.Context, _ []outbox.Event) error {
			cancel()
			<-ctx.Done()
			if published {
				return nil
			}
			return ctx.Err()
		})}.Run(ctx, pool)
		require.ErrorIs(t, err, context.Canceled)
		left := map[bool]int{true: 0, false: 1}[published]
		require.Equal(t, left, count(t, pool, `SELECT count(*) FROM outbox`))
		b := &broker{}
		require.EqualValues(t, left, drain(t, pool, outbox.Relay{Publisher: b}).Published)
		for _, e := range b.got {
			require.Equal(t, 1, e.Attempt)
		}
	}
}

// A broker that is away parks nothing, whatever the number of attempts; then everything is published in order.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	var away atomic.Bool
	var calls atomic.Int64
	away.Store(true)
	b := &broker{}
	r := quick(outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
		if away.Load() {
			calls.Add(1)
			return fmt.Errorf("dial: %w", outbox.ErrUnavailable)
		}
		return b.Publish(ctx, events)
	}))
	r.MaxAttempts = 1
	for n := range 5 {
		add(t, pool, ev("k", n), ev("l", n))
	}
	require.Eventually(t, func() bool { // a lane rests for a while after each try
		if _, err := r.Drain(t.Context(), pool); err != nil && !errors.Is(err, outbox.ErrUnavailable) {
			t.Error(err)
		}
		return calls.Load() >= 6
	}, 20*time.Second, 5*time.Millisecond)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox WHERE attempts > 0 OR lane < 0`))
	away.Store(false)
	require.Eventually(t, func() bool { drain(t, pool, r); return len(b.payloads()) == 10 }, 20*time.Second,
		20*time.Millisecond)
	require.Equal(t, []string{"k:0", "k:1", "k:2", "k:3", "k:4"}, b.payloads("k"))
}

// One event that hangs until its time is over does not keep the others of its lane for ever.
func TestHangingEvent(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	b := &broker{}
	r := outbox.Relay{
		Lease: 200 * time.Millisecond, Batch: 8, MinRetry: time.Hour,
		Publisher: outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
			for _, e := range events {
				if string(e.Payload) == "3" {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			return b.Publish(ctx, events)
		}),
	}
	r.Workers = 2
	var events []outbox.Event
	for n := range 20 {
		e := ev("", n)
		if n == 3 {
			e.Key = "hangs"
		}
		events = append(events, e)
	}
	add(t, pool, events...)
	_, err := pool.Exec(t.Context(), `UPDATE outbox SET lane = 7`)
	require.NoError(t, err)
	run, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(run, pool) }()
	require.Eventually(t, func() bool { return len(unique(b.payloads())) == 19 }, 30*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM outbox WHERE lane < 0 AND attempts = 1`) == 1
	}, 10*time.Second, 10*time.Millisecond)
	stop()
	<-done
}

// COMMIT of the writer is not answered: the events are there if and only if it was.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	for mode, want := range map[faultconn.Mode]int{faultconn.DropBefore: 0, faultconn.DropReply: 1} {
		pool := migrated(t)
		s := &faultconn.Script{When: faultconn.Commit, Mode: mode}
		writer := watched(t, pool, s)
		err := pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, ev("k", 1)) })
		require.Error(t, err)
		require.Equal(t, 1, s.Hits())
		b := &broker{}
		require.Eventually(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) == 0
		}, 10*time.Second, 5*time.Millisecond)
		require.EqualValues(t, want, drain(t, pool, outbox.Relay{Publisher: b}).Published)
	}
}

// A database that comes back from a dump, under a relay that goes on: its numbers begin again, and events are
// delivered.
func TestRestored(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	b := &broker{}
	run, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = outbox.Relay{Publisher: b, Poll: time.Millisecond}.Run(run, pool)
	}()
	for n := range 50 {
		add(t, pool, ev("k", n))
		require.Eventually(t, func() bool { return len(b.payloads()) == n+1 }, 20*time.Second, time.Millisecond)
	}
	// A restore into a database of its own ends the relay's session, which makes it forget its marks at once. This
	// is the worse case: nothing tells the relay.
	_, err := pool.Exec(t.Context(), `TRUNCATE outbox RESTART IDENTITY`)
	require.NoError(t, err)
	add(t, pool, ev("k", 50))
	require.Eventually(t, func() bool { return len(b.payloads()) == 51 }, 40*time.Second, time.Millisecond)
	stop()
	<-done
}
