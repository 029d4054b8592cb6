package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

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
		all, err := k.db.Pending(k.ctx, Settings{}, idem.Scope{}, 10)
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
		require.Equal(t, idem.StageValue, own.Stage)

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
		require.Equal(t, idem.StageFn, own.Stage, "Apply swallowed an error")
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
