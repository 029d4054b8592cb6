package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// Very many events that the broker refuses, which are due again all the time, hold up no event of another key: neither
// one of their own lane nor one of another lane, though there is but one worker.
func TestManyFailing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		each     bool // the publisher says which event is refused
		lane     int  // of the good events
		late     bool // they come when the others have failed already
		hangs    bool // one of the refused does not even return
		failing  int
		allLanes bool
	}{
		"same lane, after":        {lane: 3, late: true, failing: 30},
		"same lane, behind":       {lane: 3, failing: 100},
		"same lane, each":         {lane: 3, late: true, each: true, failing: 300},
		"same lane, hanging":      {lane: 3, late: true, failing: 3, hangs: true},
		"another lane":            {lane: 4, late: true, failing: 300},
		"another lane, each":      {lane: 4, late: true, each: true, failing: 300},
		"all lanes are failing":   {lane: 4, late: true, failing: 600, allLanes: true},
		"all lanes are, and each": {lane: 4, late: true, each: true, failing: 600, allLanes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := migrated(t)
			good := make(chan string, 100)
			publish := func(ctx context.Context, events []outbox.Event) error {
				errs := make(outbox.EventErrors, len(events))
				for i, e := range events {
					if e.Topic != "bad" {
						continue
					}
					time.Sleep(2 * time.Millisecond)
					if tc.hangs && string(e.Payload) == "0" {
						<-ctx.Done()
						return ctx.Err()
					}
					if errs[i] = errors.New("refused"); !tc.each {
						return errs[i]
					}
				}
				for _, e := range events {
					if e.Topic != "bad" {
						good <- string(e.Payload)
					}
				}
				return errs.Err()
			}
			r := outbox.Relay{
				Publisher: outbox.PublisherFunc(publish), Lease: 2 * time.Second, MaxAttempts: 1 << 30,
				MinRetry: 10 * time.Millisecond, MaxRetry: 10 * time.Millisecond,
			}
			put := func(lane, n int, topic string, payload int) {
				_, err := pool.Exec(ctx, `
					INSERT INTO outbox (lane, id, topic, key, payload)
					SELECT CASE WHEN $5 THEN n % 32 ELSE $1 END, gen_random_uuid(), $2, CASE WHEN $2 = 'bad' THEN '' ELSE 'good' END, $3::text::bytea
					  FROM generate_series(1, $4::int) AS n`, lane, topic, fmt.Sprint(payload), n, tc.allLanes && topic == "bad")
				require.NoError(t, err)
			}
			put(3, 1, "bad", 0)
			put(3, tc.failing-1, "bad", 1)
			run, stop := context.WithCancel(ctx)
			done := make(chan struct{})
			if !tc.late {
				put(tc.lane, 1, "good", 7)
			}
			go func() { defer close(done); _ = r.Run(run, pool) }()
			if tc.late {
				require.Eventually(t, func() bool {
					return count(t, pool, `SELECT count(*) FROM outbox WHERE attempts > 0`) >= min(10, tc.failing-1)
				}, 15*time.Second, 5*time.Millisecond)
				put(tc.lane, 1, "good", 7)
			}
			begun := time.Now()
			select {
			case p := <-good:
				require.Equal(t, "7", p)
				t.Logf("published after %v", time.Since(begun))
			case <-time.After(15 * time.Second):
				t.Error("not published")
			}
			stop()
			<-done
		})
	}
}

// A publisher that takes longer than the lease for a whole batch, and returns when it likes: batches become smaller,
// and everything is published in the end, though other workers take the lanes over meanwhile.
func TestSlowPublisher(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	b := &broker{}
	var events []outbox.Event
	const each = 60
	for n := 1; n <= each; n++ {
		events = append(events, ev("k", n))
	}
	add(t, pool, events...)
	r := outbox.Relay{
		Lease: 200 * time.Millisecond, Workers: 3,
		Publisher: outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
			time.Sleep(time.Duration(len(events)) * 5 * time.Millisecond)
			return b.Publish(ctx, events)
		}),
	}
	run, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(run, pool) }()
	require.Eventually(t, func() bool { return count(t, pool, `SELECT count(*) FROM outbox`) == 0 }, 15*time.Second,
		10*time.Millisecond)
	stop()
	<-done
	inOrder(t, b, 1, each)
}

// A row that somebody else has written, with headers that are none, is parked with its key. It stalls no other.
func TestForeignRow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	add(t, pool, ev("foreign", 1), ev("foreign", 2))
	_, err := pool.Exec(ctx, `
		UPDATE outbox SET headers = '{"a": 1}' WHERE payload = '1';
		INSERT INTO outbox (lane, id, topic, key, headers, payload) VALUES (9, gen_random_uuid(), 't', '', '["a"]', '');
		INSERT INTO outbox (lane, id, topic, key, payload) SELECT lane, gen_random_uuid(), 't', 'good', '1' FROM outbox`,
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	b := &broker{}
	r := quick(b)
	r.MaxAttempts = 1
	s, err := r.Drain(ctx, pool)
	require.ErrorContains(t, err, "headers")
	require.Equal(t, outbox.Stats{Published: 3, Failed: 2, Parked: 2}, s)
	require.Equal(t, []string{"good:1", "good:1", "good:1"}, b.payloads())
	parked, err := outbox.Table{}.Parked(ctx, pool, 10)
	require.NoError(t, err)
	require.Len(t, parked, 2)
	require.Contains(t, parked[0].LastError, "headers")
}
