package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// firsts keeps the events of each key in the order in which they came first, and how often each came.
type firsts struct {
	mu    sync.Mutex
	order map[string][]string
	times map[string]int
	fail  map[string]int // how often an event of this payload is still to fail
}

var errRefused = errors.New("refused")

func (f *firsts) Publish(_ context.Context, events []outbox.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs := make(outbox.EventErrors, len(events))
	refused := map[string]bool{}
	for i, e := range events {
		p := string(e.Payload)
		if refused[e.Key] || f.fail[p] > 0 {
			f.fail[p]--
			refused[e.Key], errs[i] = true, errRefused
			continue
		}
		if f.times[e.ID]++; f.times[e.ID] == 1 {
			f.order[e.Key] = append(f.order[e.Key], p)
		}
	}
	return errs.Err()
}

func (f *firsts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.times)
}

// A server that crashes loses what relays have committed last, for that does not wait for the disk: leases,
// deletions, and what failed. Nothing that was appended is lost or comes too early; what was published comes again;
// and a relay that goes on running deletes it then.
func TestServerCrashes(t *testing.T) {
	t.Parallel()
	const rounds, keys, each = 4, 3, 20
	ctx := t.Context()
	settings := pgserver.FastAndUnsafe()
	settings["wal_writer_delay"] = "10s" // or it would save at once what nobody waits for
	server, err := pgserver.Start(ctx, pgserver.Config{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Stop() })
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, outbox.Migrate(ctx, pool))

	f := &firsts{order: map[string][]string{}, times: map[string]int{}, fail: map[string]int{}}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error)
	relay := outbox.Relay{
		Publisher: f, Poll: time.Millisecond, MinRetry: time.Millisecond, MaxRetry: time.Millisecond,
		Lease: time.Second,
	}
	go func() { ended <- relay.Run(run, pool) }()
	want := map[string][]string{}
	for round := range rounds {
		f.mu.Lock()
		f.fail[fmt.Sprint(round*each+each/2)] = 2
		f.mu.Unlock()
		for n := range each {
			var events []outbox.Event
			for k := range keys {
				e := ev(fmt.Sprint("k", k), round*each+n)
				events = append(events, e)
				want[e.Key] = append(want[e.Key], string(e.Payload))
			}
			require.Eventually(t, func() bool { return appendOnce(ctx, pool, events) == nil }, 20*time.Second,
				50*time.Millisecond)
		}
		require.Eventually(t, func() bool { return f.count() == (round+1)*each*keys }, 20*time.Second, time.Millisecond)
		time.Sleep(20 * time.Millisecond) // the relay commits that it has deleted them
		require.NoError(t, server.Kill())
		require.NoError(t, server.Restart(ctx))
	}
	require.Eventually(t, func() bool {
		var left int
		return pool.QueryRow(ctx, `SELECT count(*) FROM outbox`).Scan(&left) == nil && left == 0
	}, 30*time.Second, 20*time.Millisecond)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, want, f.order)
	require.Len(t, f.times, rounds*each*keys)
	again := 0
	for n := range maps.Values(f.times) {
		again += n - 1
	}
	t.Logf("%d events; published again: %d; the most often: %d times", len(f.times), again,
		slices.Max(slices.Collect(maps.Values(f.times))))
	require.Positive(t, again, "no crash lost anything: nothing was shown")
}

// appendOnce appends events in one transaction, which is not tried again here.
func appendOnce(ctx context.Context, pool *pgxpool.Pool, events []outbox.Event) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if err := outbox.Append(ctx, tx, events...); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
