package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// running holds what only Run does: it owns the transaction, and begins it anew.
func running(t *testing.T, door Door) {
	t.Run("RetriesSerializationFailure", func(t *testing.T) {
		k := open(t, door)
		var calls atomic.Int32
		out, err := k.db.Run(k.ctx, Settings{Level: "repeatable read"}, scope.Key("evt_1"),
			func(ctx context.Context, tx Tx) error {
				if calls.Add(1) <= 3 {
					// Somebody else updates what this transaction has seen, and is about to update.
					if _, err := tx.Int(ctx, `SELECT count(*) FROM business`); err != nil {
						return err
					}
					if err := k.db.Exec(ctx, `INSERT INTO business (id) VALUES ('x') ON CONFLICT (id) DO UPDATE SET id = excluded.id`); err != nil {
						return err
					}
					return tx.Exec(ctx, `INSERT INTO business (id) VALUES ('x') ON CONFLICT (id) DO UPDATE SET id = excluded.id`)
				}
				return effect("a")(ctx, tx)
			})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.EqualValues(t, 4, calls.Load())
		k.wantEffects("a", 1)
	})

	t.Run("BoundedTries", func(t *testing.T) {
		k := open(t, door)
		var calls atomic.Int32
		_, err := k.db.Run(k.ctx, Settings{Tries: 3}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			calls.Add(1)
			return tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$`)
		})
		require.True(t, pgerr.Is(err, "40001"), "%v", err)
		require.True(t, idem.Retryable(err))
		require.EqualValues(t, 3, calls.Load())
		k.wantKeys(0)
	})

	// An error of the same code that this transaction did not meet is fn's own.
	t.Run("OthersErrorIsNotRetried", func(t *testing.T) {
		k := open(t, door)
		var calls atomic.Int32
		_, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			calls.Add(1)
			return k.db.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$`)
		})
		require.True(t, pgerr.Is(err, "40001"), "%v", err)
		require.EqualValues(t, 1, calls.Load())
	})

	// A session whose prepared statements somebody has dropped, as DISCARD ALL of a pooler does.
	t.Run("StatementsAreGone", func(t *testing.T) {
		k := opened(t, door, false)
		for i := range 3 {
			out, err := k.db.Run(k.ctx, Settings{}, scope.Key(fmt.Sprint(i)), func(ctx context.Context, tx Tx) error {
				if err := effect("a")(ctx, tx); err != nil {
					return err
				}
				return tx.Exec(ctx, `DEALLOCATE ALL`)
			})
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out, "call %d", i)
		}
	})

	// The server ends a session that is idle in its transaction for longer than it allows: a plain no, and the next run
	// would meet the same limit. A driver that hides the code calls it a lost connection.
	t.Run("IdleForTooLong", func(t *testing.T) {
		k := open(t, door)
		var calls int
		_, err := k.db.Run(k.ctx, Settings{Tries: 3}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			calls++
			pid, err := tx.Int(ctx, `SELECT pg_backend_pid()`)
			if err != nil {
				return err
			}
			if err := tx.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = '20ms'`); err != nil {
				return err
			}
			k.until("the backend is gone", func() bool {
				n, err := k.db.Int(k.ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int4`, pid)
				return err == nil && n == 0
			})
			return nil
		})
		require.Error(t, err)
		require.False(t, pgerr.CommitUnknown(err), "%v", err)
		require.True(t, idem.Retryable(err), "%v", err)
		if pgerr.Code(err) != "" {
			require.Equal(t, "25P03", pgerr.Code(err))
			require.Equal(t, 1, calls)
		}
		k.wantKeys(0)
	})

	// The table has another unique constraint than the one that claims name, and the same event comes several times at
	// once: one of them may meet that constraint first, which is no duplicate yet, and no failure.
	t.Run("AnotherConstraint", func(t *testing.T) {
		k := open(t, door)
		index := `CREATE UNIQUE INDEX another ON processed_events (key, operation, source, failed)`
		if door.Layout == dedup.Weekly {
			index = `CREATE UNIQUE INDEX another ON processed_events (key, operation, source, failed, bucket)`
		}
		k.exec(k.db, index)
		const at, rounds = 4, 30
		for i := range rounds {
			key, begin := scope.Key(fmt.Sprint(i)), make(chan struct{})
			var calls []<-chan answer
			for range at {
				calls = append(calls, async(func() (idem.Outcome, error) {
					<-begin
					return k.db.Run(k.ctx, Settings{}, key, effect(key.ID()))
				}))
			}
			close(begin)
			for _, call := range calls {
				require.NoError(t, k.await(call).err)
			}
			k.wantEffects(key.ID(), 1)
		}
	})

	// A deferred constraint fails COMMIT: a plain no, with fn done and undone.
	t.Run("CommitSaysNo", func(t *testing.T) {
		k := open(t, door)
		out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			return tx.Exec(ctx, `INSERT INTO child (parent) VALUES (1)`)
		})
		require.Zero(t, out)
		require.True(t, pgerr.Is(err, "23503"), "%v", err)
		require.False(t, pgerr.CommitUnknown(err))
		require.False(t, idem.Retryable(err))
		var own *idem.Error
		require.ErrorAs(t, err, &own)
		require.Equal(t, idem.StageCommit, own.Stage)
		k.wantKeys(0)
	})

	t.Run("ContextDoneBeforeCommit", func(t *testing.T) {
		k := open(t, door)
		ctx, cancel := context.WithCancel(k.ctx)
		out, err := k.db.Run(ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			err := effect("a")(ctx, tx)
			cancel()
			return err
		})
		require.Zero(t, out)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, pgerr.CommitUnknown(err))
		k.wantKeys(0)
		k.wantEffects("a", 0)
		k.once(scope.Key("evt_1"), idem.Executed)
	})

	t.Run("ContextDoneBeforeBegin", func(t *testing.T) {
		k := open(t, door)
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		_, err := k.db.Run(ctx, Settings{}, scope.Key("evt_1"), k.never())
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, pgerr.CommitUnknown(err))
		k.wantKeys(0)
	})

	t.Run("ContextDoneWhileWaiting", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(k.ctx)
		call := async(func() (idem.Outcome, error) { return k.db.Run(ctx, Settings{}, scope.Key("evt_1"), k.never()) })
		k.untilBlocked(1)
		cancel()
		got := k.await(call)
		require.Error(t, got.err)
		require.False(t, pgerr.CommitUnknown(got.err))
		require.NoError(t, holder.Commit(k.ctx))
		k.once(scope.Key("evt_1"), idem.Duplicate)
	})

	// The connection is killed in fn: Run begins anew on another one.
	t.Run("BackendKilledInFn", func(t *testing.T) {
		k := open(t, door)
		var calls atomic.Int32
		out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			if calls.Add(1) == 1 {
				pid, err := tx.Int(ctx, `SELECT pg_backend_pid()`)
				if err != nil {
					return err
				}
				if err := k.db.Exec(ctx, `SELECT pg_terminate_backend($1::int4)`, pid); err != nil {
					return err
				}
				k.until("the backend is gone", func() bool {
					n, err := k.db.Int(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int4`, pid)
					return err == nil && n == 0
				})
			}
			return effect("a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.EqualValues(t, 2, calls.Load())
		k.wantEffects("a", 1)
	})
}

// recorder is an observer.
type recorder struct {
	mu     sync.Mutex
	events []dedup.Event
}

func (r *recorder) Observe(_ context.Context, e dedup.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) last() dedup.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		return dedup.Event{}
	}
	return r.events[len(r.events)-1]
}

func observing(t *testing.T, door Door) {
	t.Run("EachCall", func(t *testing.T) {
		k := open(t, door)
		rec := &recorder{}
		s := Settings{Observer: rec}
		key := scope.Key("evt_1").WithPayload([]byte("a"))
		_, err := k.db.Run(k.ctx, s, key, func(context.Context, Tx) error {
			time.Sleep(5 * time.Millisecond) // work of fn's, to be measured
			return nil
		})
		require.NoError(t, err)
		e := rec.last()
		require.Equal(t, dedup.Executed, e.Outcome)
		require.NoError(t, e.Err)
		require.Equal(t, "stripe", e.Source)
		require.Equal(t, "activate", e.Operation)
		require.Equal(t, "processed_events", e.Table)
		require.GreaterOrEqual(t, e.Held, 5*time.Millisecond)
		require.Positive(t, e.Waited)

		k.exec(k.db, `UPDATE processed_events SET processed_at = now() - interval '3 days'`)
		_, err = k.db.Run(k.ctx, s, key, k.never())
		require.NoError(t, err)
		require.Equal(t, dedup.Duplicate, rec.last().Outcome)
		require.InDelta(t, 72*time.Hour, rec.last().Age, float64(time.Minute))

		_, _ = k.db.Run(k.ctx, s, key.WithPayload([]byte("b")), k.never())
		require.Equal(t, dedup.PayloadMismatch, rec.last().Outcome)
		require.ErrorIs(t, rec.last().Err, idem.ErrPayloadMismatch)
		require.EqualValues(t, idem.StageClaim, rec.last().Stage)

		_, _ = k.db.Run(k.ctx, s, scope.Key("old").OccurredAt(time.Unix(1, 0)), k.never())
		require.Equal(t, dedup.Expired, rec.last().Outcome)

		_, err = k.db.Run(k.ctx, s, scope.Key("evt_2"), func(ctx context.Context, tx Tx) error {
			return tx.Exec(ctx, `SELECT * FROM no_such_table`)
		})
		require.Equal(t, err, rec.last().Err)
		require.Empty(t, rec.last().Stage, "the error is fn's own")
		require.Equal(t, dedup.Failed, rec.last().Outcome)
		require.Equal(t, "42P01", rec.last().Code)

		protect(func() {
			_, _ = k.db.Run(k.ctx, s, scope.Key("evt_2"), func(context.Context, Tx) error { panic(1) })
		})
		require.Equal(t, dedup.Failed, rec.last().Outcome)
		require.ErrorContains(t, rec.last().Err, "panicked")
		require.Len(t, rec.events, 6)
	})
}
