package dedup_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
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
		require.Eventually(t, func() bool { return number(t, pool, `SELECT count(*) FROM processed_events`) == 0 },
			30*time.Second, 5*time.Millisecond, "round %d", round)
	}
	// A purge is told of at its end. One that cancel ends early may have deleted keys, and not know of it.
	deleted := func() (rows int64) {
		for _, e := range log.all() {
			rows += e.Rows
		}
		return rows
	}
	require.Eventually(t, func() bool { return deleted() == 1_500 && len(log.all()) > 10 }, 30*time.Second,
		5*time.Millisecond)
	cancel()
	for range 3 {
		require.ErrorIs(t, <-ends, context.Canceled)
	}
	for _, e := range log.all() {
		require.Equal(t, "processed_events", e.Table)
		if e.Outcome == dedup.PurgeFailed { // by the end
			continue
		}
		require.Equal(t, dedup.Purged, e.Outcome)
		require.Positive(t, e.Held)
	}
	require.EqualValues(t, 1_500, deleted())
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
		require.Equal(t, dedup.PurgeFailed, e.Outcome)
		require.Equal(t, "0LP01", e.Code)
	}
	exec1(t, pool, `DROP TRIGGER refuse ON processed_events`)
	require.Eventually(t, func() bool { return number(t, pool, `SELECT count(*) FROM processed_events`) == 0 },
		30*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-end, context.Canceled)
}

// downDB is a database that cannot be reached.
type downDB struct{ dedup.DB }

var errDown = errors.New("down")

func (downDB) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return downResults{} }

type downResults struct{ pgx.BatchResults }

func (downResults) Tx() pgx.Tx   { return nil }
func (downResults) Close() error { return errDown }

// Of many processes that start at one moment each cleans at times of its own: first within a minute, then every
// Interval, give or take a tenth.
func TestCleanerKeepsItsOwnTime(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{0, time.Hour, 10 * time.Second, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun := time.Now()
			var mu sync.Mutex
			var firsts, pauses []time.Duration
			for range 20 {
				last := begun
				c := dedup.Cleaner{Interval: interval, Done: func(_ context.Context, _ dedup.Stats, err error) {
					assert.ErrorIs(t, err, errDown)
					mu.Lock()
					defer mu.Unlock()
					if last.Equal(begun) {
						firsts = append(firsts, time.Since(last))
					} else {
						pauses = append(pauses, time.Since(last))
					}
					last = time.Now()
				}}
				go func() { _ = c.Run(ctx, downDB{}) }()
			}
			every := interval
			if interval == 0 {
				every = time.Hour
			}
			within := func(all []time.Duration, n int, from, to time.Duration) {
				t.Helper()
				require.GreaterOrEqual(t, len(all), n)
				slices.Sort(all)
				require.GreaterOrEqual(t, all[0], from)
				require.LessOrEqual(t, all[len(all)-1], to)
				require.Greater(t, all[len(all)-1]-all[0], (to-from)/3, "spread over all of it")
			}
			time.Sleep(min(every, time.Minute)) // in a bubble: no time passes
			synctest.Wait()
			mu.Lock()
			within(firsts, 20, 0, min(every, time.Minute))
			mu.Unlock()
			if every > 24*time.Hour {
				return // the next is a century away
			}
			time.Sleep(every * 12 / 10)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			within(pauses, 20, every*9/10, every*11/10)
		})
	}
}

// What an event has no room for: which partitions were kept, and all of an error.
func TestCleanerIsDone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	put(t, pool, "unfinished", -5, "lease_until='-infinity'")
	kept, _, _ := monday(t, pool, -5)
	type done struct {
		stats dedup.Stats
		err   error
	}
	all := make(chan done)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 1)
	c := dedup.Cleaner{
		Table: shorter, Interval: 10 * time.Millisecond,
		Done: func(ctx context.Context, s dedup.Stats, err error) {
			select {
			case all <- done{s, err}:
			case <-ctx.Done():
			}
		},
	}
	go func() { end <- c.Run(ctx, pool) }()
	first := <-all
	require.NoError(t, first.err)
	require.Len(t, first.stats.Made, 6)
	require.NotEmpty(t, first.stats.Dropped)
	require.Equal(t, []string{"public." + kept}, first.stats.Kept)
	require.Equal(t, []string{"public." + kept}, (<-all).stats.Kept, "again, as long as it is so")
	exec1(t, pool, `ALTER TABLE processed_events RENAME TO elsewhere`)
	require.Eventually(t, func() bool {
		d := <-all
		return d.err != nil && strings.Contains(d.err.Error(), "dedup.Migrate makes it")
	}, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-end, context.Canceled)
}
