package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
)

// Messages of one key are handled one at a time, in order, by any number of workers, while some of them fail; those of
// other keys, and without one, do not wait for them.
func TestOrder(t *testing.T) {
	t.Parallel()
	const keys, each = 3, 40
	pool := migrated(t)
	var all []inbox.Message
	want := map[string][]string{}
	for k := range keys {
		messages, ids := numbered(fmt.Sprint("k", k), each)
		all, want[fmt.Sprint("k", k)] = append(all, messages...), ids
	}
	slices.SortStableFunc(all, func(a, b inbox.Message) int { return int(a.ID[3]) - int(b.ID[3]) })
	slices.SortStableFunc(all, func(a, b inbox.Message) int { return int(a.ID[len(a.ID)-1]) - int(b.ID[len(b.ID)-1]) })
	slices.SortStableFunc(all, func(a, b inbox.Message) int { return int(a.ID[len(a.ID)-2]) - int(b.ID[len(b.ID)-2]) })
	store(t, pool, all[:len(all)/2]...)
	ctx, stop := context.WithCancel(t.Context())
	var o order
	var running [keys]atomic.Int32
	var handled, together atomic.Int32
	w := quick()
	w.Workers, w.Poll = 6, time.Millisecond
	w.MaxAttempts = 100
	ended := make(chan error)
	go func() {
		ended <- w.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			r := &running[m.Key[1]-'0']
			if r.Add(1) > 1 {
				together.Add(1)
			}
			defer r.Add(-1)
			if err := insert(ctx, tx, m); err != nil {
				return err
			}
			if rand.N(4) == 0 {
				return errors.New("fails")
			}
			o.add(m)
			if handled.Add(1) == keys*each {
				stop()
			}
			return nil
		})
	}()
	store(t, pool, all[len(all)/2:]...)
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d were handled: %+v", handled.Load(), keys*each, depth(t, pool))
	}
	require.Equal(t, want, o.ids)
	require.Zero(t, together.Load())
	require.Equal(t, keys*each, count(t, pool, `SELECT count(*) FROM effects`))
	require.Zero(t, depth(t, pool))
}

// A message that waits for its next attempt, and a dead one, hold up their key and no other. Replay and Discard let it
// go on.
func TestDeadHoldsItsKey(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		pool := migrated(t)
		a, ids := numbered("a", 4)
		b, others := numbered("b", 4)
		store(t, pool, append(a, b...)...)
		var o order
		bad := true
		h := func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
			if m.ID == ids[1] && bad {
				return errors.New("fails")
			}
			o.add(m)
			return nil
		}
		_, err := inbox.Worker{MinRetry: time.Hour, MaxAttempts: 2}.Drain(t.Context(), pool, h)
		require.ErrorContains(t, err, "fails")
		require.Equal(t, map[string][]string{"a": ids[:1], "b": others}, o.ids)
		require.EqualValues(t, 3, depth(t, pool).Waiting)
		require.EqualValues(t, 2, depth(t, pool).Behind)
		execSQL(t, pool, `UPDATE inbox SET due_at = now() WHERE due_at < 'infinity'`)
		s, err := inbox.Worker{MaxAttempts: 2}.Drain(t.Context(), pool, h)
		require.ErrorContains(t, err, "fails")
		require.EqualValues(t, 1, s.Dead)
		d := depth(t, pool)
		require.Positive(t, d.Oldest)
		d.Oldest = 0
		require.Equal(t, inbox.Depth{Waiting: 2, Behind: 2, Dead: 1}, d)
		require.Zero(t, drain(t, pool, h), "the key is held")
		if discard {
			n, err := inbox.Table{}.Discard(t.Context(), pool, inbox.Filter{IDs: []string{ids[1], "nothing"}})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		} else {
			bad = false
			n, err := inbox.Table{}.Replay(t.Context(), pool, inbox.Filter{})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		}
		drain(t, pool, h)
		want := ids
		if discard {
			want = append([]string{ids[0]}, ids[2:]...)
		}
		require.Equal(t, want, o.ids["a"])
		require.Zero(t, depth(t, pool))
	}
}

// A message whose COMMIT comes behind those of later ones comes next, and never beside one of them.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	all, ids := numbered("k", 3)
	late, err := pool.Begin(ctx)
	require.NoError(t, err)
	store(t, late, all[0])
	store(t, pool, all[1], all[2])
	var o order
	begun, goOn := make(chan struct{}), make(chan struct{})
	first := make(chan error)
	go func() {
		w := inbox.Worker{}
		_, err := w.Drain(ctx, pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
			if m.ID == ids[1] {
				close(begun)
				<-goOn
			}
			o.add(m)
			return nil
		})
		first <- err
	}()
	<-begun
	require.NoError(t, late.Commit(ctx))
	for range 3 {
		require.Zero(t, drain(t, pool, func(context.Context, pgx.Tx, inbox.Message) error {
			return errors.New("beside another one of its key")
		}))
	}
	require.Zero(t, count(t, pool, `SELECT attempt FROM inbox WHERE message_id = $1`, ids[0]))
	close(goOn)
	require.NoError(t, <-first)
	require.Eventually(t, func() bool {
		drain(t, pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error { o.add(m); return nil })
		return count(t, pool, `SELECT count(*) FROM inbox WHERE state = 2`) == 3
	}, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, []string{ids[1], ids[0], ids[2]}, o.ids["k"])
}

// A key's first message that was deleted by hand does not hold it up for ever: Purge finds that.
func TestHeal(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	all, ids := numbered("k", 3)
	store(t, pool, all...)
	_, err := inbox.Worker{MaxAttempts: 1}.Drain(t.Context(), pool,
		func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
			return errors.New("fails")
		})
	require.Error(t, err)
	execSQL(t, pool, `DELETE FROM inbox WHERE message_id = $1`, ids[0])
	require.Zero(t, drain(t, pool, insert))
	_, err = inbox.Table{}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 2, drain(t, pool, insert).Handled)
}
