package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// A transaction that began earlier, took a lower number and is committed later, is published: by a relay that has
// published everything else again and again meanwhile, so that its low mark has moved as far as it may.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	_, err := pool.Exec(ctx, `CREATE TABLE orders (id int)`)
	require.NoError(t, err)
	b := &broker{}
	run, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = outbox.Relay{Publisher: b, Poll: time.Millisecond}.Run(run, pool)
	}()
	defer func() { stop(); <-done }()
	published := func(n int) {
		// marks are believed for longer
		require.Eventually(t, func() bool { return len(b.payloads()) == n }, 6*time.Second, time.Millisecond, "%v",
			b.payloads())
	}
	n := 0
	for round := range 5 {
		// The one with the higher transaction id takes the lower number. Nothing has ended in between, so that a
		// snapshot's xmax does not know it.
		early, err := pool.Begin(ctx)
		require.NoError(t, err)
		_, err = early.Exec(ctx, `INSERT INTO orders (id) VALUES (1)`)
		require.NoError(t, err)
		late, err := pool.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, outbox.Append(ctx, late, ev("k", -round)))
		require.NoError(t, outbox.Append(ctx, early, ev("k", round)))
		require.NoError(t, early.Commit(ctx))
		n++
		published(n)
		for range 5 {
			add(t, pool, ev("k", 100))
			n++
			published(n)
		}
		require.NoError(t, late.Commit(ctx))
		n++
		published(n)
	}
	require.Eventually(t, func() bool { return count(t, pool, `SELECT count(*) FROM outbox`) == 0 }, 20*time.Second,
		time.Millisecond)
}

// In the number of each event of ours, the transaction's id comes first: the low mark rests on it.
func TestIDBeforeNumber(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	// A default takes the place of the identity, and fails where no id has been assigned yet.
	_, err := pool.Exec(ctx, `
		CREATE FUNCTION number() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
		  IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE 'no id'; END IF;
		  RETURN 1;
		END $$;
		ALTER TABLE outbox ALTER COLUMN seq DROP IDENTITY;
		ALTER TABLE outbox ALTER COLUMN seq SET DEFAULT number()`)
	require.NoError(t, err)
	add(t, pool, ev("k", 1))
	_, err = pool.Exec(ctx, `INSERT INTO outbox (lane, id, topic, key, payload) VALUES (1, gen_random_uuid(), 't', 'k', '')`)
	require.Error(t, err, "the test would find it")
}

// Four relays and eight writers, of which some roll back, with a lock of each key: everything is published, once as
// no lease is lost, and each key in its order.
func TestOrderPerKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	const keys, each = 40, 25
	_, err := pool.Exec(ctx, `CREATE TABLE accounts (id text PRIMARY KEY, n int NOT NULL DEFAULT 0)`)
	require.NoError(t, err)
	for k := range keys {
		_, err := pool.Exec(ctx, `INSERT INTO accounts (id) VALUES ($1)`, fmt.Sprint("k", k))
		require.NoError(t, err)
	}
	b := &broker{}
	run, stop := context.WithCancel(ctx)
	var relays sync.WaitGroup
	var mu sync.Mutex
	var total outbox.Stats
	for range 2 {
		relays.Go(func() {
			_ = outbox.Relay{
				Publisher: b, Batch: 7, Workers: 2, Poll: time.Millisecond,
				Done: func(_ context.Context, s outbox.Stats, err error) {
					mu.Lock()
					defer mu.Unlock()
					total.Published += s.Published
					total.Again += s.Again
					if err != nil && run.Err() == nil {
						t.Error(err)
					}
				},
			}.Run(run, pool)
		})
	}
	errRollback := errors.New("roll back")
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range keys * each / 8 {
				key := fmt.Sprint("k", (i*8+w)%keys)
				for try := 0; ; try++ {
					err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
						var n int
						if err := tx.QueryRow(ctx, `UPDATE accounts SET n = n + 1 WHERE id = $1 RETURNING n`, key).Scan(&n); err != nil {
							return err
						}
						if err := outbox.Append(ctx, tx, ev(key, n)); err != nil {
							return err
						}
						if (i+try)%5 == 0 {
							return errRollback
						}
						return nil
					})
					if err == nil {
						break
					}
					if !errors.Is(err, errRollback) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	require.Eventually(t, func() bool { return len(b.payloads()) >= keys*each }, 30*time.Second, 5*time.Millisecond)
	require.Eventually(t, func() bool { return count(t, pool, `SELECT count(*) FROM outbox`) == 0 }, 30*time.Second,
		5*time.Millisecond)
	stop()
	relays.Wait()
	_, again := b.firsts()
	require.Zero(t, again)
	require.Equal(t, outbox.Stats{Published: keys * each}, total)
	inOrder(t, b, keys, each)
}

// inOrder demands that the first publication of each event came in the order of its key.
func inOrder(t testing.TB, b *broker, keys, each int) {
	t.Helper()
	last := map[string]int{}
	events, _ := b.firsts()
	for _, e := range events {
		n, err := strconv.Atoi(string(e.Payload))
		require.NoError(t, err)
		require.Equal(t, last[e.Key]+1, n, "key %s", e.Key)
		last[e.Key] = n
	}
	require.Len(t, last, keys)
	for key, n := range last {
		require.Equal(t, each, n, key)
	}
}

// A bad event is tried again, later each time, and parked: its key waits behind it, in order, and all the others go
// on. Then it is made due again, or given up.
func TestPoison(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"each", "whole", "panic"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := migrated(t)
			bad := true
			b := &broker{fail: func(e outbox.Event) error {
				if bad && string(e.Payload) == "2" && (e.Key == "bad" || e.Key == "") {
					return errors.New("poison\x00\xff")
				}
				return nil
			}}
			publish := outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
				for _, e := range events {
					if how != "each" && b.fail(e) != nil {
						if how == "panic" {
							panic("poison")
						}
						return errors.New("something is wrong with one of them\x00\xff")
					}
				}
				return b.Publish(ctx, events)
			})
			// keys of all lanes, that of the bad one among them
			var events []outbox.Event
			for n := range 6 {
				for k := range 100 {
					events = append(events, ev(fmt.Sprint(k), n))
				}
				events = append(events, ev("bad", n), ev("", n))
			}
			add(t, pool, events...)
			r := quick(publish)
			r.MaxAttempts = 3
			s, err := r.Drain(ctx, pool)
			require.Error(t, err)
			for s.Parked < 2 { // those that rest, because nothing of their lane was published
				time.Sleep(50 * time.Millisecond) // between two looks
				more, _ := r.Drain(ctx, pool)
				s.Failed += more.Failed
				s.Parked += more.Parked
			}
			require.EqualValues(t, 6, s.Failed)
			require.EqualValues(t, 2, s.Parked)
			require.Eventually(t, func() bool {
				_, _ = r.Drain(ctx, pool)
				return count(t, pool, `SELECT count(*) FROM outbox`) == 5
			}, 20*time.Second, 50*time.Millisecond, "the key of the bad one, from it on, and the bad one without a key")
			require.Equal(t, []string{"bad:0", "bad:1"}, slices.Compact(b.payloads("bad")))
			for k := range 100 {
				firsts := []string{}
				for n := range 6 {
					firsts = append(firsts, fmt.Sprint(k, ":", n))
				}
				require.Equal(t, firsts, unique(b.payloads(fmt.Sprint(k))))
			}

			// What comes later of the key waits, too.
			add(t, pool, ev("bad", 6), ev("good", 1))
			require.Eventually(t, func() bool { drain(t, pool, r); return len(b.payloads("good")) == 1 }, 10*time.Second,
				20*time.Millisecond)
			lag, err := outbox.Table{}.Lag(ctx, pool)
			require.NoError(t, err)
			require.EqualValues(t, []int64{6, 6, 2}, []int64{lag.Waiting, lag.Held, lag.Parked})
			require.Positive(t, lag.Oldest)
			parked, err := outbox.Table{}.Parked(ctx, pool, 10)
			require.NoError(t, err)
			require.Len(t, parked, 2)
			require.Equal(t, 3, parked[0].Attempt)
			require.NotEmpty(t, parked[0].LastError)
			if how == "panic" {
				require.ErrorIs(t, errors.Join(err, panicked(ctx, r, pool)), outbox.ErrPanic)
			}

			// Again, and it fails again; then given up, and the key goes on.
			n, err := outbox.Table{}.Retry(ctx, pool, parked[0].ID, outbox.NewID())
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			bad = false
			if how == "whole" {
				n, err = outbox.Table{}.Discard(ctx, pool, parked[1].ID)
				require.NoError(t, err)
				require.EqualValues(t, 1, n)
			} else {
				n, err = outbox.Table{}.Retry(ctx, pool)
				require.NoError(t, err)
				require.EqualValues(t, 1, n)
			}
			require.Eventually(t, func() bool {
				_, _ = r.Drain(ctx, pool)
				return count(t, pool, `SELECT count(*) FROM outbox`) == 0
			}, 20*time.Second, 20*time.Millisecond)
			got := unique(b.payloads("bad"))
			require.Equal(t, []string{"bad:0", "bad:1"}, got[:2])
			want := []string{"bad:2", "bad:3", "bad:4", "bad:5", "bad:6"}
			if len(got) == 6 {
				want = want[1:] // it was the one that was given up
			}
			require.Equal(t, want, got[2:])
		})
	}
}

// panicked returns the error of a relay whose publisher panics.
func panicked(ctx context.Context, r outbox.Relay, pool interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
},
) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return err
	}
	if err := outbox.Append(ctx, tx, outbox.Event{Topic: "t", ID: outbox.NewID()}); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	calls := 0
	r.Publisher = outbox.PublisherFunc(func(context.Context, []outbox.Event) error {
		if calls++; calls == 1 {
			panic("once")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for calls < 2 {
		if ctx.Err() != nil {
			return errors.New("it was not tried again")
		}
		_, more := r.Drain(ctx, pool)
		err = errors.Join(err, more)
		time.Sleep(2 * time.Millisecond) // between two looks
	}
	return err
}

// unique drops what was published again.
func unique(all []string) []string {
	var firsts []string
	for _, s := range all {
		if !slices.Contains(firsts, s) {
			firsts = append(firsts, s)
		}
	}
	return firsts
}

// An event that was committed late, of a key that has failed meanwhile, comes before the one that failed: that one
// does not pass it, though its time has come.
func TestLateCommitOfFailedKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	bad := map[string]bool{"1": true, "2": true}
	b := &broker{fail: func(e outbox.Event) error {
		if bad[string(e.Payload)] {
			return errors.New("bad")
		}
		return nil
	}}
	r := quick(b)
	r.MaxAttempts = 2
	late, err := pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, outbox.Append(ctx, late, ev("k", 1)))
	add(t, pool, ev("k", 2), ev("k", 3))
	r.MinRetry, r.MaxRetry = 200*time.Millisecond, 200*time.Millisecond
	_, _ = r.Drain(ctx, pool)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE retry_at IS NOT NULL`))
	require.NoError(t, late.Commit(ctx))
	r.MinRetry, r.MaxRetry = 1, 1
	_, _ = r.Drain(ctx, pool)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox WHERE retry_at = 'infinity'`),
		"the late one is parked")
	bad["2"] = false
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM outbox WHERE retry_at <= clock_timestamp() OR retry_at = 'infinity'`) ==
			count(t, pool, `SELECT count(*) FROM outbox WHERE retry_at IS NOT NULL`)
	}, 20*time.Second, 20*time.Millisecond, "the time of the other one comes")
	_, _ = r.Drain(ctx, pool)
	require.Empty(t, b.payloads())
	bad["1"] = false
	_, err = outbox.Table{}.Retry(ctx, pool)
	require.NoError(t, err)
	_, _ = r.Drain(ctx, pool)
	require.Equal(t, []string{"k:1", "k:2", "k:3"}, b.payloads())
}
