package conformance

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// returning holds what a value adds to Do and Run.
func returning(t *testing.T, door Door) {
	receipt := Receipt{"r \x00\u00e9\\1", 10}
	give := func(v Receipt, err error) func(context.Context, Tx) (Receipt, error) {
		return func(ctx context.Context, tx Tx) (Receipt, error) {
			if err := effect("a")(ctx, tx); err != nil {
				return Receipt{}, err
			}
			return v, err
		}
	}
	never := func(k kit) func(context.Context, Tx) (Receipt, error) {
		return func(context.Context, Tx) (Receipt, error) {
			k.Error("fn was called")
			return Receipt{}, nil
		}
	}
	type call func(Settings, idem.Key, func(context.Context, Tx) (Receipt, error)) (Receipt, idem.Outcome, error)

	t.Run("Values", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		v, out, err := tx.DoReturning(k.ctx, Settings{}, scope.Key("do"), give(receipt, nil))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, receipt, v)
		require.NoError(t, tx.Commit(k.ctx))
		v, out, err = k.db.RunReturning(k.ctx, Settings{}, scope.Key("run").WithPayload([]byte("body")), give(receipt, nil))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, receipt, v)
		k.wantEffects("a", 2)
		k.once(scope.Key("plain"), idem.Executed)

		tx = k.begin("")
		for _, again := range []call{
			func(s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error)) (Receipt, idem.Outcome, error) {
				return k.db.RunReturning(k.ctx, s, key, fn)
			},
			func(s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error)) (Receipt, idem.Outcome, error) {
				return tx.DoReturning(k.ctx, s, key, fn)
			},
		} {
			for _, id := range []string{"do", "run"} {
				v, out, err := again(Settings{}, scope.Key(id), never(k))
				require.NoError(t, err)
				require.Equal(t, idem.Duplicate, out)
				require.Equal(t, receipt, v)
			}
			_, _, err := again(Settings{}, scope.Key("run").WithPayload([]byte("other")), never(k))
			require.ErrorIs(t, err, idem.ErrPayloadMismatch, "storing the value has cost the payload's hash")
			v, out, err := again(Settings{}, scope.Key("plain"), never(k))
			require.Zero(t, v)
			require.Zero(t, out)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, "value", own.Stage)
		}
		k.wantUsable(tx, "after")
	})

	// Whatever keeps the value from being stored undoes key and effect, too.
	t.Run("Failures", func(t *testing.T) {
		k := open(t, door)
		for name, c := range map[string]struct {
			fn    func(context.Context, Tx) (Receipt, error)
			stage string
		}{
			"fn fails":          {give(receipt, errBusiness), ""},
			"cannot be encoded": {give(Receipt{"r1", math.Inf(1)}, nil), "value"},
			"too large":         {give(Receipt{strings.Repeat("x", dedup.MaxValueBytes), 1}, nil), "value"},
			"swallowed error": {func(ctx context.Context, tx Tx) (Receipt, error) {
				_ = tx.Exec(ctx, `SELECT * FROM no_such_table`)
				return receipt, nil
			}, "fn"},
		} {
			check := func(v Receipt, out idem.Outcome, err error) {
				require.Zero(t, v, name)
				require.Zero(t, out, name)
				if c.stage == "" {
					require.Same(t, errBusiness, err, name)
					return
				}
				var own *idem.Error
				require.ErrorAs(t, err, &own, name)
				require.Equal(t, c.stage, own.Stage, name)
				require.NotContains(t, err.Error(), "r1")
			}
			tx := k.begin("")
			check(tx.DoReturning(k.ctx, Settings{}, scope.Key("do"), c.fn))
			k.wantFailed(tx)
			check(k.db.RunReturning(k.ctx, Settings{}, scope.Key("run"), c.fn))
		}
		k.wantKeys(0)
		k.wantEffects("a", 0)
	})
}

func (k kit) reserve(id string) Reservation {
	k.Helper()
	r, out, err := k.db.Reserve(k.ctx, Settings{}, scope.Key(id), time.Hour)
	require.NoError(k, err)
	require.Equal(k, idem.Executed, out)
	return r
}

// confirm confirms in a transaction with an effect, and commits it, whatever Confirm says.
func (k kit) confirm(r Reservation, what string) error {
	k.Helper()
	tx := k.begin("")
	k.exec(tx, `INSERT INTO effects (what) VALUES ($1)`, what)
	err := tx.Confirm(k.ctx, r, []byte("v\x00\xff"))
	if end := tx.Commit(k.ctx); err == nil || end == nil {
		require.NoError(k, err)
		require.NoError(k, end)
	}
	return err
}

// expire ends every lease, as time would.
func (k kit) expire() {
	k.Helper()
	k.exec(k.db, `UPDATE processed_events SET lease_until = clock_timestamp() WHERE lease_until > clock_timestamp()`)
}

func (k kit) wantState(id string, want idem.State) {
	k.Helper()
	rec, err := k.db.Lookup(k.ctx, Settings{}, scope.Key(id))
	if want == 0 {
		require.ErrorIs(k, err, idem.ErrNotFound)
		return
	}
	require.NoError(k, err)
	require.Equal(k, want, rec.State, id)
}

func reserving(t *testing.T, door Door) {
	t.Run("Moves", func(t *testing.T) {
		k := open(t, door)
		r := k.reserve("a")
		require.Equal(t, 1, r.Attempt)
		k.wantState("a", idem.Reserved)
		_, out, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("a"), time.Hour)
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.Zero(t, out)
		_, err = k.db.Run(k.ctx, Settings{}, scope.Key("a"), k.never())
		require.ErrorIs(t, err, idem.ErrInProgress)
		k.expire()
		k.wantState("a", idem.Unfinished)
		require.NoError(t, k.db.Move(k.ctx, r, Move{Name: "extend", Lease: time.Hour}))
		k.wantState("a", idem.Reserved)
		k.expire()
		require.NoError(t, k.confirm(r, "a"), "late, but nobody took over")
		dup, out, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("a"), time.Hour)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		require.Equal(t, "v\x00\xff", string(dup.Value))
		require.ErrorIs(t, k.confirm(r, "b"), idem.ErrLostLease, "a second time")
		k.wantEffects("b", 0)
		var own *idem.Error
		require.ErrorAs(t, k.db.Move(k.ctx, dup, Move{Name: "void"}), &own, "a duplicate holds nothing")

		require.NoError(t, k.db.Move(k.ctx, k.reserve("f"), Move{Name: "fail", Value: []byte("declined")}))
		_, _, err = k.db.Reserve(k.ctx, Settings{}, scope.Key("f"), time.Hour)
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "declined", string(final.Value))

		// Moves in a transaction of the caller's.
		tx := k.begin("")
		require.NoError(t, tx.Move(k.ctx, k.reserve("r"), Move{Name: "release"}))
		require.NoError(t, tx.Commit(k.ctx))
		k.wantState("r", 0)
		k.reserve("r")
		k.expire()
		require.NoError(t, k.db.Move(k.ctx, k.reserve("r"), Move{Name: "release"}))
		k.wantState("r", idem.Unfinished)
		again := k.reserve("r")
		require.Equal(t, 4, again.Attempt, "the first attempt may have sent")

		all, err := k.db.Open(k.ctx, Settings{}, scope, 10)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, idem.Reserved, all[0].State)
		require.Equal(t, door.key(scope.Key("r")), all[0].Key)
		require.NoError(t, k.db.Move(k.ctx, again, Move{Name: "void"}))
		k.wantState("r", 0)

		_, _, err = k.db.Reserve(k.ctx, Settings{}, scope.Key("x"), 0)
		require.ErrorAs(t, err, &own)
		require.Equal(t, "reserve", own.Stage)
		big := Move{Name: "fail", Value: make([]byte, dedup.MaxValueBytes+1)}
		require.ErrorAs(t, k.db.Move(k.ctx, k.reserve("big"), big), &own)
		require.Equal(t, "value", own.Stage)
	})

	// After a take-over every move of the old holder fails and changes nothing; nor can it commit what it wrote.
	t.Run("Fenced", func(t *testing.T) {
		k := open(t, door)
		old := k.reserve("a")
		k.expire()
		current := k.reserve("a")
		require.Equal(t, 2, current.Attempt)
		for _, name := range []string{"extend", "release", "fail", "void"} {
			require.ErrorIs(t, k.db.Move(k.ctx, old, Move{Name: name, Lease: time.Hour}), idem.ErrLostLease, name)
		}
		require.ErrorIs(t, k.confirm(old, "a"), idem.ErrLostLease)
		k.wantEffects("a", 0)
		k.wantState("a", idem.Reserved)
		require.NoError(t, k.confirm(current, "a"))
		k.wantEffects("a", 1)
	})

	// A transaction that holds the key is waited for, no longer than MaxWait; with a MaxWait and without a holder, too.
	t.Run("Waits", func(t *testing.T) {
		k := open(t, door)
		s := Settings{MaxWait: 20 * time.Millisecond}
		_, _, err := k.db.Reserve(k.ctx, s, scope.Key("free"), time.Hour)
		require.NoError(t, err)
		tx := k.begin("")
		_, err = tx.Do(k.ctx, Settings{}, scope.Key("a"), effect("a"))
		require.NoError(t, err)
		_, _, err = k.db.Reserve(k.ctx, s, scope.Key("a"), time.Hour)
		require.ErrorIs(t, err, idem.ErrInProgress)
		waiting := async(func() (idem.Outcome, error) {
			_, out, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("a"), time.Hour)
			return out, err
		})
		k.untilBlocked(1)
		require.NoError(t, tx.Commit(k.ctx))
		got := k.await(waiting)
		require.NoError(t, got.err)
		require.Equal(t, idem.Duplicate, got.out)
	})
}

func calling(t *testing.T, door Door) {
	timeout := errors.New("time-out")
	// shop returns a call whose Send gives *answer and keeps the external keys, and whose Apply leaves an effect.
	shop := func(answer *error, sent *[]string) Call {
		return Call{
			Lease: time.Hour, Remembers: 23 * time.Hour,
			Send: func(ctx context.Context, external string) (Receipt, error) {
				if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Hour {
					t.Error("Send's context does not end with the lease")
				}
				*sent = append(*sent, external)
				return Receipt{"charge", 10}, *answer
			},
			Apply: func(ctx context.Context, tx Tx, v Receipt) error { return effect(v.ID)(ctx, tx) },
		}
	}

	t.Run("Outcomes", func(t *testing.T) {
		k := open(t, door)
		var answer error
		var sent []string
		c := shop(&answer, &sent)
		want := func(id string, want idem.Outcome) {
			v, out, err := k.db.Call(k.ctx, c, scope.Key(id))
			require.NoError(t, err)
			require.Equal(t, want, out)
			require.Equal(t, Receipt{"charge", 10}, v)
		}
		want("1", idem.Executed)
		want("1", idem.Duplicate)
		require.Equal(t, []string{scope.Key("1").External()}, sent)
		k.wantEffects("charge", 1)

		// No answer: another attempt, with the same key.
		answer = timeout
		_, out, err := k.db.Call(k.ctx, c, scope.Key("2"))
		require.ErrorIs(t, err, timeout)
		require.EqualError(t, err, timeout.Error())
		require.True(t, idem.Retryable(err), "the next delivery tries again")
		require.Zero(t, out)
		k.wantState("2", idem.Unfinished)
		answer = nil
		want("2", idem.Executed)
		require.Len(t, sent, 3)
		require.Equal(t, sent[1], sent[2])

		// Final, told to duplicates, too.
		declined := errors.New("card declined")
		answer = idem.Final(declined)
		_, _, err = k.db.Call(k.ctx, c, scope.Key("3"))
		require.ErrorIs(t, err, declined)
		answer = nil
		_, _, err = k.db.Call(k.ctx, c, scope.Key("3"))
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "card declined", string(final.Value))
		require.False(t, idem.Retryable(err))

		// A provider that remembers nothing: sent or not is the question.
		c.Remembers = 0
		answer = idem.Unsent(timeout)
		_, _, err = k.db.Call(k.ctx, c, scope.Key("4"))
		require.ErrorIs(t, err, timeout)
		require.True(t, idem.Retryable(err), "the next delivery begins anew")
		k.wantState("4", 0)
		answer = nil
		want("4", idem.Executed)
		answer = timeout
		_, _, err = k.db.Call(k.ctx, c, scope.Key("5"))
		require.ErrorIs(t, err, timeout)
		require.False(t, idem.Retryable(err), "the next delivery is ErrUnknown")
		answer = nil
		_, _, err = k.db.Call(k.ctx, c, scope.Key("5"))
		require.ErrorIs(t, err, idem.ErrUnknown)
		all, err := k.db.Open(k.ctx, Settings{}, idem.Scope{}, 10)
		require.NoError(t, err)
		require.Len(t, all, 1)
		tx := k.begin("")
		require.NoError(t, tx.Confirm(k.ctx, k.reserve("5"), []byte(`{"ID":"charge","Amount":10}`)))
		require.NoError(t, tx.Commit(k.ctx))
		want("5", idem.Duplicate)

		// Settled without an answer.
		k.once(scope.Key("plain"), idem.Executed)
		v, out, err := k.db.Call(k.ctx, c, scope.Key("plain"))
		require.Zero(t, v)
		require.Zero(t, out)
		var own *idem.Error
		require.ErrorAs(t, err, &own)
		require.Equal(t, "value", own.Stage)

		// Nothing to apply; and an Apply that fails, whose answer is had again.
		c.Remembers, c.Apply = 23*time.Hour, nil
		want("6", idem.Executed)
		c.Apply = func(context.Context, Tx, Receipt) error { return errBusiness }
		_, _, err = k.db.Call(k.ctx, c, scope.Key("7"))
		require.Same(t, errBusiness, err)
		c.Apply = nil
		want("7", idem.Executed)
		c.Apply = func(ctx context.Context, tx Tx, _ Receipt) error {
			_ = tx.Exec(ctx, `SELECT * FROM no_such_table`)
			return nil
		}
		_, _, err = k.db.Call(k.ctx, c, scope.Key("8"))
		require.ErrorAs(t, err, &own)
		require.Equal(t, "fn", own.Stage, "Apply swallowed an error")
		k.wantState("8", idem.Unfinished)
	})

	// What can never end well is refused before anything is reserved.
	t.Run("Refused", func(t *testing.T) {
		k := open(t, door)
		var answer error
		var sent []string
		for name, spoil := range map[string]func(*Call){
			"no Send":                        func(c *Call) { c.Send = nil },
			"negative Tries":                 func(c *Call) { c.Tries = -1 },
			"no Lease":                       func(c *Call) { c.Lease = 0 },
			"a Lease longer than the memory": func(c *Call) { c.Lease, c.Remembers = time.Minute+1, time.Minute },
		} {
			c := shop(&answer, &sent)
			spoil(&c)
			_, out, err := k.db.Call(k.ctx, c, scope.Key("1"))
			var own *idem.Error
			require.ErrorAs(t, err, &own, name)
			require.False(t, idem.Retryable(err), name)
			require.Zero(t, out, name)
		}
		require.Empty(t, sent)
		k.wantKeys(0)
		_, err := k.db.Run(k.ctx, Settings{Tries: -1}, scope.Key("1"), k.never())
		var own *idem.Error
		require.ErrorAs(t, err, &own)
		c := shop(&answer, &sent)
		c.Remembers = c.Lease
		_, out, err := k.db.Call(k.ctx, c, scope.Key("1"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})

	// While one attempt sends, others are told to wait; and one that outlives its lease cannot commit.
	t.Run("TakeOver", func(t *testing.T) {
		k := open(t, door)
		var answer error
		var sent []string
		c := shop(&answer, &sent)
		late := c
		late.Send = func(context.Context, string) (Receipt, error) {
			_, _, err := k.db.Call(k.ctx, c, scope.Key("1"))
			require.ErrorIs(t, err, idem.ErrInProgress)
			require.Empty(t, sent)
			k.expire()
			_, out, err := k.db.Call(k.ctx, c, scope.Key("1"))
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			return Receipt{"late", 1}, nil
		}
		_, out, err := k.db.Call(k.ctx, late, scope.Key("1"))
		require.ErrorIs(t, err, idem.ErrLostLease)
		require.Zero(t, out)
		k.wantEffects("late", 0)
		k.wantEffects("charge", 1)
		rec, err := k.db.Lookup(k.ctx, Settings{}, scope.Key("1"))
		require.NoError(t, err)
		require.Equal(t, []any{idem.Done, 2}, []any{rec.State, rec.Attempt})
	})
}
