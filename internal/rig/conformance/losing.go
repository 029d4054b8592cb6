package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// kill ends the session of tx, and waits until the server has none of it.
func (k kit) kill(tx Tx) error {
	pid, err := tx.Int(k.ctx, `SELECT pg_backend_pid()`)
	if err != nil {
		return err
	}
	if err := k.db.Exec(k.ctx, `SELECT pg_terminate_backend($1::int4)`, pid); err != nil {
		return err
	}
	k.until("the backend is gone", func() bool {
		n, err := k.db.Int(k.ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int4`, pid)
		return err == nil && n == 0
	})
	return nil
}

// losing holds what becomes of a call whose connection is lost while nobody uses it: fn works on something else, or has
// sent its last statement, and returns nil.
func losing(t *testing.T, door Door) {
	// unlucky returns an fn whose session is ended behind it, in its first calls.
	unlucky := func(k kit, calls *int, times int) func(context.Context, Tx) error {
		return func(ctx context.Context, tx Tx) error {
			if err := effect("a")(ctx, tx); err != nil {
				return err
			}
			if *calls++; *calls <= times {
				return k.kill(tx)
			}
			return nil
		}
	}

	t.Run("Run", func(t *testing.T) {
		k := open(t, door)
		var calls int
		out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), unlucky(k, &calls, 1))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, 2, calls)
		k.wantEffects("a", 1)
	})

	t.Run("Run/each try", func(t *testing.T) {
		k := open(t, door)
		var calls int
		_, err := k.db.Run(k.ctx, Settings{Tries: 2}, scope.Key("evt_1"), unlucky(k, &calls, 2))
		require.Error(t, err)
		require.True(t, idem.Retryable(err), "%v", err)
		require.Equal(t, 2, calls)
		k.wantEffects("a", 0)
		k.once(scope.Key("evt_1"), idem.Executed)
	})

	t.Run("RunReturning", func(t *testing.T) {
		k := open(t, door)
		var calls int
		fn := unlucky(k, &calls, 1)
		v, out, err := k.db.RunReturning(k.ctx, Settings{}, scope.Key("evt_1"),
			func(ctx context.Context, tx Tx) (Receipt, error) {
				return Receipt{ID: "a"}, fn(ctx, tx)
			})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, Receipt{ID: "a"}, v)
		require.Equal(t, 2, calls)
		k.wantEffects("a", 1)
	})

	// The transaction is the caller's: the delivery must come again.
	t.Run("Do", func(t *testing.T) {
		k := open(t, door)
		var calls int
		tx := k.begin("")
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), unlucky(k, &calls, 1))
		if err != nil { // pgx learns of it at COMMIT
			require.True(t, idem.Retryable(err), "%v", err)
			require.False(t, pgerr.CommitUnknown(err), "%v", err)
		}
		require.Error(t, tx.Commit(k.ctx))
		k.wantKeys(0)
		k.once(scope.Key("evt_1"), idem.Executed)
	})

	// An answer that the provider would not give again is applied all the same.
	t.Run("Call", func(t *testing.T) {
		k := open(t, door)
		var calls, sent int
		apply := unlucky(k, &calls, 1)
		v, out, err := k.db.Call(k.ctx, Call{
			Lease: time.Minute,
			Send:  func(context.Context, string) (Receipt, error) { sent++; return Receipt{ID: "charge"}, nil },
			Apply: func(ctx context.Context, tx Tx, _ Receipt) error { return apply(ctx, tx) },
		}, scope.Key("evt_1"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, Receipt{ID: "charge"}, v)
		require.Equal(t, []int{2, 1}, []int{calls, sent})
		k.wantEffects("a", 1)
	})
}

// ending holds what becomes of a Do whose context ends while fn runs, as a consumer's does that shuts down. The
// context is also that of the transaction, which database/sql rolls back then, behind fn.
func ending(t *testing.T, door Door) {
	for _, c := range []struct {
		name string
		end  func(ctx context.Context, tx Tx) error // after the context has ended
	}{
		{"fn uses it", func(ctx context.Context, tx Tx) error { return effect("b")(ctx, tx) }},
		{"fn uses it under another context", func(ctx context.Context, tx Tx) error {
			return effect("b")(context.WithoutCancel(ctx), tx)
		}},
		{"fn returns its error", func(ctx context.Context, _ Tx) error { return ctx.Err() }},
		{"fn does not look", func(context.Context, Tx) error { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := open(t, door)
			ctx, cancel := context.WithCancel(k.ctx)
			defer cancel()
			tx, err := k.db.Begin(ctx, "")
			require.NoError(t, err)
			_, err = tx.Do(ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				if err := effect("a")(ctx, tx); err != nil {
					return err
				}
				cancel()
				// database/sql rolls back in a goroutine of its own.
				time.Sleep(20 * time.Millisecond)
				return c.end(ctx, tx)
			})
			if err != nil {
				require.True(t, idem.Retryable(err), "%v", err)
			} else {
				require.Error(t, tx.Commit(ctx))
			}
			_ = tx.Rollback(k.ctx)
			k.wantKeys(0)
			k.once(scope.Key("evt_1"), idem.Executed)
		})
	}
}
