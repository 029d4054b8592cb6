package conformance

import (
	"context"
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
			require.Equal(t, idem.StageValue, own.Stage)
		}
		k.wantUsable(tx, "after")
	})

	// Whatever keeps the value from being stored undoes key and effect, too.
	t.Run("Failures", func(t *testing.T) {
		k := open(t, door)
		for name, c := range map[string]struct {
			fn    func(context.Context, Tx) (Receipt, error)
			stage idem.Stage
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
	k.exec(k.db, `UPDATE processed_events SET lease_until = statement_timestamp() WHERE lease_until > statement_timestamp()`)
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

		all, err := k.db.Pending(k.ctx, Settings{}, scope, 10)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, idem.Reserved, all[0].State)
		require.Equal(t, door.key(scope.Key("r")), all[0].Key)
		require.NoError(t, k.db.Move(k.ctx, again, Move{Name: "void"}))
		k.wantState("r", 0)

		_, _, err = k.db.Reserve(k.ctx, Settings{}, scope.Key("x"), 0)
		require.ErrorAs(t, err, &own)
		require.Equal(t, idem.StageReserve, own.Stage)
		big := Move{Name: "fail", Value: make([]byte, dedup.MaxValueBytes+1)}
		require.ErrorAs(t, k.db.Move(k.ctx, k.reserve("big"), big), &own)
		require.Equal(t, idem.StageValue, own.Stage)
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
