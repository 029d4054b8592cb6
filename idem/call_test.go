package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// The form of an external key never changes: a provider that has seen one must not be shown another for the same
// effect.
func TestExternalIsStable(t *testing.T) {
	raw, err := os.ReadFile("testdata/external.json")
	require.NoError(t, err)
	var golden []struct {
		Source, Operation string
		Parts, Derived    []string
		Hashed            bool
		External          string
	}
	require.NoError(t, json.Unmarshal(raw, &golden))
	seen := map[string]bool{}
	for _, g := range golden {
		s := idem.Scope{Source: g.Source, Operation: g.Operation}
		key := s.Key(g.Parts...)
		if g.Hashed {
			key = s.HashedKey(g.Parts...)
		}
		if len(g.Derived) > 0 {
			key = key.Derive(g.Derived[0], g.Derived[1:]...)
		}
		require.NoError(t, key.Validate())
		got := key.External()
		require.Equal(t, g.External, got, "%v", key)
		require.Equal(t, got, key.WithPayload([]byte("x")).OccurredAt(time.Now()).External())
		require.LessOrEqual(t, len(got), 255)
		for _, r := range got {
			require.True(t, r > ' ' && r < 0x7f)
		}
		require.False(t, seen[got], "two keys share an external key")
		seen[got] = true
		for _, p := range g.Parts {
			require.False(t, len(p) > 3 && strings.Contains(got, p))
		}
	}
	require.Empty(t, idem.Key{}.External())
}

func TestDerive(t *testing.T) {
	charge := idem.Scope{Source: "shop", Operation: "charge"}.Key("order", "1").WithPayload([]byte("x"))
	refund := charge.Derive("refund", "r/1")
	require.Equal(t, "order/1//r%2F1", refund.ID())
	require.Equal(t, idem.Scope{Source: "shop", Operation: "refund"}, refund.Scope())
	seen := map[string]bool{}
	shop := idem.Scope{Source: "shop", Operation: "charge"}
	for _, k := range []idem.Key{
		shop.Key("a").Derive("x", "b", "c"), shop.Key("a", "b").Derive("x", "c"),
		shop.Key("a").Derive("x", "b").Derive("x", "c"),
		shop.Key("a", "b", "c").Derive("x"), shop.Key("a/b").Derive("x", "c"), shop.Key("a").Derive("x", "b/c"),
	} {
		require.NoError(t, k.Validate())
		require.False(t, seen[k.ID()], "two derived keys share the id %s", k.ID())
		seen[k.ID()] = true
	}
	require.Equal(t, idem.Scope{Source: "shop", Operation: "refund"}.Key("order", "1"), charge.Derive("refund"))
	hashed := idem.Scope{Source: "shop", Operation: "charge"}.HashedKey("secret").Derive("refund", "1")
	require.NoError(t, hashed.Validate())
	require.NotContains(t, hashed.String(), "secret")
	for name, key := range map[string]idem.Key{
		"of a faulty key": idem.Key{}.Derive("refund"),
		"no operation":    charge.Derive(""),
		"empty part":      charge.Derive("refund", ""),
		"NUL":             charge.Derive("refund", "\x00"),
		"too long":        charge.Derive("refund", strings.Repeat("x", dedup.MaxKeyBytes)),
	} {
		var bad *idem.KeyError
		require.ErrorAs(t, key.Validate(), &bad, name)
		require.Empty(t, key.External(), name)
	}
}

type receipt struct {
	ID     string
	Amount int
}

func TestReturning(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var r idem.Returning[receipt]
	key := stripe.Key("1").WithPayload([]byte("body"))
	fn := func(context.Context, pgx.Tx) (receipt, error) { return receipt{"r1", 10}, nil }
	never := func(context.Context, pgx.Tx) (receipt, error) { t.Error("fn was called"); return receipt{}, nil }

	v, out, err := r.Run(s.ctx, s.sound, key, fn)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
	require.Equal(t, receipt{"r1", 10}, v)
	v, out, err = r.Run(s.ctx, s.sound, key, never)
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
	require.Equal(t, receipt{"r1", 10}, v)
	require.NoError(t, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
		v, out, err := r.Do(s.ctx, tx, key, never)
		require.Equal(t, idem.Duplicate, out)
		require.Equal(t, receipt{"r1", 10}, v)
		return err
	}))
	rec, err := idem.Once{}.Lookup(s.ctx, s.sound, key)
	require.NoError(t, err)
	require.Len(t, rec.PayloadHash, 32, "storing the value has cost the payload's hash")
	_, _, err = r.Run(s.ctx, s.sound, stripe.Key("1").WithPayload([]byte("other")), never)
	require.ErrorIs(t, err, idem.ErrPayloadMismatch)

	t.Run("cannot be decoded", func(t *testing.T) {
		_, out, err := idem.Returning[int]{}.Run(s.ctx, s.sound, key, func(context.Context, pgx.Tx) (int, error) {
			t.Error("fn was called")
			return 0, nil
		})
		require.Zero(t, out)
		require.ErrorContains(t, err, "stripe")
		require.ErrorContains(t, err, "int")
		require.NotContains(t, err.Error(), "r1")
	})
	t.Run("no value", func(t *testing.T) {
		s.deliver(stripe.Key("plain"), idem.Executed)
		_, _, err := r.Run(s.ctx, s.sound, stripe.Key("plain"), never)
		require.ErrorContains(t, err, "no value")
	})
	t.Run("too large", func(t *testing.T) {
		_, out, err := idem.Returning[string]{}.Run(s.ctx, s.sound, stripe.Key("large"),
			func(context.Context, pgx.Tx) (string, error) {
				return strings.Repeat("x", dedup.MaxValueBytes), nil
			})
		require.Zero(t, out)
		require.ErrorContains(t, err, "larger than")
		_, err = idem.Once{}.Lookup(s.ctx, s.sound, stripe.Key("large"))
		require.ErrorIs(t, err, idem.ErrNotFound)
	})
	t.Run("fn fails", func(t *testing.T) {
		own := errors.New("own")
		v, out, err := r.Run(s.ctx, s.sound, stripe.Key("fails"),
			func(context.Context, pgx.Tx) (receipt, error) { return receipt{"half", 1}, own })
		require.Same(t, own, err)
		require.Zero(t, out)
		require.Zero(t, v)
	})
	t.Run("swallowed error", func(t *testing.T) {
		_, _, err := r.Run(s.ctx, s.sound, stripe.Key("swallows"), func(ctx context.Context, tx pgx.Tx) (receipt, error) {
			_, _ = tx.Exec(ctx, `SELECT * FROM no_such_table`)
			return receipt{}, nil
		})
		var e *idem.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, idem.StageFn, e.Stage)
	})
}

func TestReservation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var o idem.Once
	reserve := func(id string, lease time.Duration) idem.Reservation {
		t.Helper()
		r, out, err := o.Reserve(s.ctx, s.sound, stripe.Key(id), lease)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		return r
	}
	confirm := func(r idem.Reservation) error {
		return pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error { return r.Confirm(s.ctx, tx, []byte("v")) })
	}
	state := func(id string) idem.State {
		rec, err := o.Lookup(s.ctx, s.sound, stripe.Key(id))
		if errors.Is(err, idem.ErrNotFound) {
			return 0
		}
		require.NoError(t, err)
		return rec.State
	}
	over := func(id string) {
		s.sql(`UPDATE processed_events SET lease_until = clock_timestamp() WHERE key = '` + id +
			`' AND lease_until IS NOT NULL`)
	}

	t.Run("confirmed", func(t *testing.T) {
		r := reserve("a", time.Hour)
		require.Equal(t, idem.Reserved, state("a"))
		_, _, err := o.Reserve(s.ctx, s.sound, stripe.Key("a"), time.Hour)
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.NoError(t, confirm(r))
		require.Equal(t, idem.Done, state("a"))
		dup, out, err := o.Reserve(s.ctx, s.sound, stripe.Key("a"), time.Hour)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		require.Equal(t, "v", string(dup.Value))
		require.ErrorIs(t, confirm(r), idem.ErrLostLease, "a second time")
		require.Error(t, dup.Release(s.ctx, s.sound), "a duplicate holds nothing")
	})

	// After a take-over every method of the old holder fails and changes nothing.
	t.Run("fenced", func(t *testing.T) {
		for name, use := range map[string]func(idem.Reservation) error{
			"Confirm": confirm,
			"Extend":  func(r idem.Reservation) error { return r.Extend(s.ctx, s.sound, time.Hour) },
			"Release": func(r idem.Reservation) error { return r.Release(s.ctx, s.sound) },
			"Fail":    func(r idem.Reservation) error { return r.Fail(s.ctx, s.sound, nil) },
			"Void":    func(r idem.Reservation) error { return r.Void(s.ctx, s.sound) },
		} {
			old := reserve(name, time.Hour)
			over(name)
			current := reserve(name, time.Hour)
			require.Equal(t, 2, current.Attempt)
			require.ErrorIs(t, use(old), idem.ErrLostLease, name)
			require.Equal(t, idem.Reserved, state(name), name)
			// Deleted and reserved anew, the row begins at attempt 1 again: its creation tells the two apart.
			require.NoError(t, current.Void(s.ctx, s.sound))
			anew := reserve(name, time.Hour)
			require.Equal(t, 1, anew.Attempt)
			require.ErrorIs(t, use(old), idem.ErrLostLease, name)
			require.ErrorIs(t, use(current), idem.ErrLostLease, name)
			require.NoError(t, use(anew), name)
		}
	})

	t.Run("both confirm at once", func(t *testing.T) {
		for range 20 {
			old := reserve("both", time.Hour)
			over("both")
			var good atomic.Int32
			var wg sync.WaitGroup
			current := reserve("both", time.Hour)
			for _, r := range []idem.Reservation{old, current, current} {
				wg.Go(func() {
					if err := confirm(r); err == nil {
						good.Add(1)
					} else if !errors.Is(err, idem.ErrLostLease) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 1, good.Load())
			s.sql(`DELETE FROM processed_events WHERE key = 'both'`)
		}
	})

	// A holder that lost its lease cannot commit what it wrote, even where it does not heed the error.
	t.Run("lost lease fails the transaction", func(t *testing.T) {
		old := reserve("lost", time.Hour)
		over("lost")
		reserve("lost", time.Hour)
		err := pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
			_, err := tx.Exec(s.ctx, `INSERT INTO effects (what) VALUES ('lost')`)
			require.NoError(t, err)
			_ = old.Confirm(s.ctx, tx, nil)
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.Zero(t, s.effects(stripe.Key("lost")))
	})

	t.Run("late, but not taken over", func(t *testing.T) {
		r := reserve("late", time.Hour)
		over("late")
		require.Equal(t, idem.Unfinished, state("late"))
		require.NoError(t, r.Extend(s.ctx, s.sound, time.Hour))
		require.Equal(t, idem.Reserved, state("late"))
		over("late")
		require.NoError(t, confirm(r))
	})

	t.Run("released", func(t *testing.T) {
		require.NoError(t, reserve("rel", time.Hour).Release(s.ctx, s.sound))
		require.Zero(t, state("rel"), "of a first attempt nothing stays")
		reserve("rel", time.Hour)
		over("rel")
		require.NoError(t, reserve("rel", time.Hour).Release(s.ctx, s.sound))
		require.Equal(t, idem.Unfinished, state("rel"), "the first attempt may have sent")
		require.Equal(t, 4, reserve("rel", time.Hour).Attempt)
	})

	t.Run("failed", func(t *testing.T) {
		require.NoError(t, reserve("f", time.Hour).Fail(s.ctx, s.sound, []byte("declined")))
		_, _, err := o.Reserve(s.ctx, s.sound, stripe.Key("f"), time.Hour)
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "declined", string(final.Value))
	})

	t.Run("open", func(t *testing.T) {
		open, err := o.Pending(s.ctx, s.sound, stripe, 100)
		require.NoError(t, err)
		states := map[string]idem.State{}
		for _, k := range open {
			states[k.Key.ID()] = k.State
		}
		require.Equal(t, idem.Reserved, states["lost"])
		require.NotContains(t, states, "a")
		none, err := o.Pending(s.ctx, s.sound, idem.Scope{Source: "nobody"}, 100)
		require.NoError(t, err)
		require.Empty(t, none)
	})

	t.Run("bad", func(t *testing.T) {
		_, _, err := o.Reserve(s.ctx, s.sound, stripe.Key("x"), 0)
		require.ErrorContains(t, err, "lease")
		_, _, err = o.Reserve(s.ctx, s.sound, stripe.Key(""), time.Hour)
		var bad *idem.KeyError
		require.ErrorAs(t, err, &bad)
		require.ErrorContains(t, idem.Reservation{Key: stripe.Key("x")}.Extend(s.ctx, s.sound, time.Hour), "holds nothing")
		require.ErrorContains(t, reserve("big", time.Hour).Fail(s.ctx, s.sound, make([]byte, dedup.MaxValueBytes+1)),
			"larger than")
	})
}

func TestCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var sent atomic.Int32
	var answer error
	var external sync.Map
	call := idem.Call[receipt]{
		Lease:     time.Hour,
		Remembers: 24 * time.Hour,
		Send: func(ctx context.Context, key string) (receipt, error) {
			sent.Add(1)
			external.Store(key, true)
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Hour {
				t.Error("Send's context does not end with the lease")
			}
			return receipt{"ch_1", 10}, answer
		},
		Apply: func(ctx context.Context, tx pgx.Tx, v receipt) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, v.ID)
			return err
		},
	}
	effects := func() (n int) {
		require.NoError(t, s.sound.QueryRow(s.ctx, `SELECT count(*) FROM effects WHERE what = 'ch_1'`).Scan(&n))
		return n
	}

	t.Run("first and duplicate", func(t *testing.T) {
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
			v, out, err := call.Run(s.ctx, s.sound, stripe.Key("1"))
			require.NoError(t, err)
			require.Equal(t, want, out)
			require.Equal(t, receipt{"ch_1", 10}, v)
		}
		require.EqualValues(t, 1, sent.Load())
		require.Equal(t, 1, effects())
	})

	t.Run("an error leaves the key to the next delivery", func(t *testing.T) {
		sent.Store(0)
		answer = context.DeadlineExceeded // unknown, not failed
		_, out, err := call.Run(s.ctx, s.sound, stripe.Key("2"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, out)
		answer = nil
		_, out, err = call.Run(s.ctx, s.sound, stripe.Key("2"))
		require.NoError(t, err, "the lease of a call that returned is over")
		require.Equal(t, idem.Executed, out)
		require.EqualValues(t, 2, sent.Load())
		n := 0
		external.Range(func(any, any) bool { n++; return true })
		require.Equal(t, 2, n, "every attempt passes the same key")
	})

	t.Run("final", func(t *testing.T) {
		declined := errors.New("card declined")
		answer = idem.Final(declined)
		_, _, err := call.Run(s.ctx, s.sound, stripe.Key("3"))
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.ErrorIs(t, err, declined)
		answer = nil
		_, _, err = call.Run(s.ctx, s.sound, stripe.Key("3"))
		require.ErrorAs(t, err, &final)
		require.Equal(t, "card declined", string(final.Value))
		require.False(t, idem.Retryable(err))
		require.NoError(t, idem.Final(nil))
	})

	t.Run("unsent", func(t *testing.T) {
		refused := errors.New("connection refused")
		strict := call
		strict.Remembers = 0
		answer = idem.Unsent(refused)
		_, _, err := strict.Run(s.ctx, s.sound, stripe.Key("4"))
		require.ErrorIs(t, err, refused)
		answer = nil
		_, out, err := strict.Run(s.ctx, s.sound, stripe.Key("4"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})

	t.Run("unknown, settled both ways", func(t *testing.T) {
		strict := call
		strict.Remembers = 0
		for _, id := range []string{"happened", "did not"} {
			answer = errors.New("time-out")
			_, _, err := strict.Run(s.ctx, s.sound, stripe.Key(id))
			require.EqualError(t, err, "time-out")
			answer = nil
			for range 2 {
				_, _, err = strict.Run(s.ctx, s.sound, stripe.Key(id))
				require.ErrorIs(t, err, idem.ErrUnknown)
				require.False(t, idem.Retryable(err))
			}
		}
		open, err := idem.Once{}.Pending(s.ctx, s.sound, stripe, 10)
		require.NoError(t, err)
		require.Len(t, open, 2)
		for _, k := range open {
			require.Equal(t, idem.Unfinished, k.State)
			r, _, err := idem.Once{}.Reserve(s.ctx, s.sound, k.Key, time.Minute)
			require.NoError(t, err)
			if k.Key.ID() == "happened" {
				require.NoError(t, pgx.BeginFunc(s.ctx, s.sound,
					func(tx pgx.Tx) error { return r.Confirm(s.ctx, tx, []byte(`{"ID":"ch_1"}`)) }))
			} else {
				require.NoError(t, r.Void(s.ctx, s.sound))
			}
		}
		_, out, err := strict.Run(s.ctx, s.sound, stripe.Key("happened"))
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		_, out, err = strict.Run(s.ctx, s.sound, stripe.Key("did not"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})

	t.Run("concurrent", func(t *testing.T) {
		slow := call
		gate := make(chan struct{})
		entered := make(chan struct{})
		slow.Send = func(context.Context, string) (receipt, error) { close(entered); <-gate; return receipt{"ch_5", 1}, nil }
		first := make(chan error, 1)
		go func() { _, _, err := slow.Run(s.ctx, s.sound, stripe.Key("5")); first <- err }()
		<-entered
		_, _, err := call.Run(s.ctx, s.sound, stripe.Key("5"))
		require.ErrorIs(t, err, idem.ErrInProgress)
		_, err = idem.Run(s.ctx, s.sound, stripe.Key("5"), nothing)
		require.ErrorIs(t, err, idem.ErrInProgress, "Do and Run respect a reservation")
		close(gate)
		require.NoError(t, <-first)
	})

	// An attempt that outlives its lease: the other attempt answers for the key, and this one's Apply is not committed.
	t.Run("outlived", func(t *testing.T) {
		late := call
		late.Send = func(context.Context, string) (receipt, error) {
			s.sql(`UPDATE processed_events SET lease_until = clock_timestamp() WHERE key = '6'`)
			_, out, err := call.Run(s.ctx, s.sound, stripe.Key("6"))
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			return receipt{"late", 1}, nil
		}
		_, _, err := late.Run(s.ctx, s.sound, stripe.Key("6"))
		require.ErrorIs(t, err, idem.ErrLostLease)
		require.Zero(t, s.effects(stripe.Key("late")))
	})

	t.Run("Apply fails", func(t *testing.T) {
		sent.Store(0)
		own := errors.New("own")
		bad := call
		bad.Apply = func(context.Context, pgx.Tx, receipt) error { return own }
		_, _, err := bad.Run(s.ctx, s.sound, stripe.Key("7"))
		require.Same(t, own, err)
		_, out, err := call.Run(s.ctx, s.sound, stripe.Key("7"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.EqualValues(t, 2, sent.Load())
	})

	t.Run("no lease", func(t *testing.T) {
		_, _, err := idem.Call[int]{Send: func(context.Context, string) (int, error) { return 1, nil }}.Run(s.ctx, s.sound,
			stripe.Key("8"))
		require.ErrorContains(t, err, "lease")
	})

	// What Send brought could not be confirmed in a transaction that may not write, so that nothing is sent.
	t.Run("read-only", func(t *testing.T) {
		sent.Store(0)
		bad := call
		bad.Once.TxOptions.AccessMode = pgx.ReadOnly
		_, out, err := bad.Run(s.ctx, s.sound, stripe.Key("9"))
		require.ErrorContains(t, err, "read-only")
		require.Zero(t, out)
		require.Zero(t, sent.Load())
		_, out, err = call.Run(s.ctx, s.sound, stripe.Key("9"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})
}
