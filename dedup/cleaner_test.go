package dedup_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pgtest"
)

type eventLog struct {
	mu     sync.Mutex
	events []dedup.Event
}

func (l *eventLog) Observe(_ context.Context, e dedup.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

func (l *eventLog) all() []dedup.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]dedup.Event(nil), l.events...)
}

// Three processes each run a Cleaner: keys that expire go, purge after purge, each once, until the context ends.
func TestCleanerRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &eventLog{}
	c := dedup.Cleaner{Batch: 50, Interval: 20 * time.Millisecond, Observer: log}
	ends := make(chan error, 3)
	for range 3 {
		go func() { ends <- c.Run(ctx, pool) }()
	}
	for round := range 3 {
		fill(t, pool, fillExpired, 500)
		require.Eventually(t, func() bool { return number(t, pool, `SELECT count(*) FROM processed_events`) == 0 }, 30*time.Second, 5*time.Millisecond, "round %d", round)
	}
	require.Eventually(t, func() bool { return len(log.all()) > 10 }, 30*time.Second, 5*time.Millisecond)
	cancel()
	for range 3 {
		require.ErrorIs(t, <-ends, context.Canceled)
	}
	var rows int64
	for _, e := range log.all() {
		require.Equal(t, "processed_events", e.Table)
		if e.What == dedup.PurgeFailed { // by the end
			continue
		}
		require.Equal(t, dedup.Purged, e.What)
		require.Positive(t, e.Held)
		rows += e.Rows
	}
	require.EqualValues(t, 1_500, rows)
}

// What fails is told, and tried again.
func TestCleanerGoesOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	exec1(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '0LP01'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON processed_events FOR EACH ROW EXECUTE FUNCTION refuse()`)
	fill(t, pool, fillExpired, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &eventLog{}
	end := make(chan error, 1)
	go func() { end <- dedup.Cleaner{Interval: 10 * time.Millisecond, Observer: log}.Run(ctx, pool) }()
	require.Eventually(t, func() bool { return len(log.all()) >= 2 }, 30*time.Second, 5*time.Millisecond)
	for _, e := range log.all()[:2] {
		require.Equal(t, dedup.PurgeFailed, e.What)
		require.Equal(t, "0LP01", e.Code)
	}
	exec1(t, pool, `DROP TRIGGER refuse ON processed_events`)
	require.Eventually(t, func() bool { return number(t, pool, `SELECT count(*) FROM processed_events`) == 0 }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-end, context.Canceled)
}
