package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

func outcomes(t *testing.T, door Door) {
	t.Run("FirstThenDuplicate", func(t *testing.T) {
		for _, level := range levels {
			t.Run(level, func(t *testing.T) {
				k := open(t, door)
				key := scope.Key("evt_1")
				tx := k.begin(level)
				out, err := tx.Do(k.ctx, Settings{}, key, effect("a"))
				require.NoError(t, err)
				require.Equal(t, idem.Executed, out)
				require.NoError(t, tx.Commit(k.ctx))

				tx = k.begin(level)
				out, err = tx.Do(k.ctx, Settings{}, key, k.never())
				require.NoError(t, err)
				require.Equal(t, idem.Duplicate, out)
				k.wantUsable(tx, "b")
				k.wantEffects("a", 1)
				k.wantKeys(1)
			})
		}
	})

	t.Run("DuplicateInSameTransaction", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		for i, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
			out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
			require.NoError(t, err)
			require.Equal(t, want, out, "call %d", i)
		}
		require.NoError(t, tx.Commit(k.ctx))
		k.wantEffects("a", 1)
	})

	// A duplicate leaves the caller's transaction as it was: what it wrote before and writes after commits.
	t.Run("DuplicateLeavesTransactionUsable", func(t *testing.T) {
		k := open(t, door)
		k.once(scope.Key("evt_1"), idem.Executed)
		tx := k.begin("")
		k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
		out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		k.wantUsable(tx, "after")
		k.wantEffects("before", 1)
	})

	t.Run("RolledBackIsForgotten", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(k.ctx))
		k.wantKeys(0)
		k.once(scope.Key("evt_1"), idem.Executed)
	})

	t.Run("NestedKeys", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		outer, inner := scope.Key("outer"), scope.Key("inner")
		out, err := tx.Do(k.ctx, Settings{}, outer, func(ctx context.Context, tx Tx) error {
			out, err := tx.Do(ctx, Settings{}, inner, effect("inner"))
			require.Equal(t, idem.Executed, out)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.NoError(t, tx.Commit(k.ctx))
		k.wantKeys(2)
		k.wantEffects("inner", 1)
	})

	t.Run("PayloadMismatch", func(t *testing.T) {
		k := open(t, door)
		key := scope.Key("evt_1")
		k.once(key.WithPayload([]byte("a")), idem.Executed)
		k.once(key.WithPayload([]byte("a")), idem.Duplicate)
		k.once(key, idem.Duplicate) // nothing to compare
		tx := k.begin("")
		out, err := tx.Do(k.ctx, Settings{}, key.WithPayload([]byte("b")), k.never())
		require.ErrorIs(t, err, idem.ErrPayloadMismatch)
		require.Zero(t, out)
		require.False(t, idem.Retryable(err))
		k.wantUsable(tx, "after")
	})

	t.Run("Expired", func(t *testing.T) {
		k := open(t, door)
		long := time.Now().Add(-36 * 24 * time.Hour)
		old := scope.Key("old").OccurredAt(long)
		tx := k.begin("")
		out, err := tx.Do(k.ctx, Settings{}, old, k.never())
		require.ErrorIs(t, err, idem.ErrExpired)
		require.Zero(t, out)
		require.False(t, idem.Retryable(err))
		k.wantUsable(tx, "after")
		k.wantKeys(0)

		// A row that is still there says more than the window.
		if door.Layout == dedup.Weekly {
			k.exec(k.db, `
				INSERT INTO processed_events (source, operation, key, event_time, bucket)
				SELECT 'stripe', 'activate', 'old', t, date_trunc('week', t AT TIME ZONE 'UTC')::date
				  FROM CAST($1::text AS timestamptz) AS t`, long.Format(time.RFC3339Nano))
		} else {
			k.once(scope.Key("old"), idem.Executed)
		}
		k.once(old, idem.Duplicate)

		// Inside the window, and in a window of one's own.
		k.once(scope.Key("young").OccurredAt(time.Now().Add(-34*24*time.Hour)), idem.Executed)
		s := Settings{}
		s.Table.Retention = 40 * 24 * time.Hour
		out, err = k.db.Run(k.ctx, s, scope.Key("old enough").OccurredAt(long), effect("x"))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})

	// The window is judged when the claim is made, not when the transaction began.
	t.Run("ExpiredInLongTransaction", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		k.exec(tx, `SELECT 1`)
		s := Settings{}
		s.Table.Retention = 200 * time.Millisecond
		key := scope.Key("evt_1").OccurredAt(time.Now())
		k.until("the window has passed", func() bool {
			n, err := tx.Int(k.ctx, `SELECT (clock_timestamp() > now() + interval '300 ms')::int`)
			require.NoError(t, err)
			return n == 1
		})
		_, err := tx.Do(k.ctx, s, key, k.never())
		require.ErrorIs(t, err, idem.ErrExpired)
		require.NoError(t, tx.Rollback(k.ctx))
	})

	// Rows that a reservation left are not done, and never a duplicate.
	t.Run("ReservedRows", func(t *testing.T) {
		k := open(t, door)
		for id, lease := range map[string]string{
			"lives": "now() + interval '1 hour'", "over": "now() - interval '1 hour'",
			"released": "'-infinity'",
		} {
			k.exec(k.db, `INSERT INTO processed_events (source, operation, key, lease_until) VALUES ('stripe', 'activate', $1, `+lease+`)`, id)
		}
		k.exec(k.db, `INSERT INTO processed_events (source, operation, key, failed, value) VALUES ('stripe', 'activate', 'failed', true, 'declined')`)
		for id, want := range map[string]idem.State{
			"lives": idem.Reserved, "over": idem.Unfinished, "released": idem.Unfinished, "failed": idem.FinallyFailed,
		} {
			rec, err := k.db.Lookup(k.ctx, Settings{}, scope.Key(id))
			require.NoError(t, err)
			require.Equal(t, want, rec.State, id)
		}
		for id, want := range map[string]error{
			"lives": idem.ErrInProgress, "over": idem.ErrUnfinished,
			"released": idem.ErrUnfinished,
		} {
			tx := k.begin("")
			_, err := tx.Do(k.ctx, Settings{}, scope.Key(id), k.never())
			require.ErrorIs(t, err, want, id)
			require.Equal(t, want == idem.ErrInProgress, idem.Retryable(err))
			k.wantUsable(tx, id)
			_, err = k.db.Run(k.ctx, Settings{}, scope.Key(id), k.never())
			require.ErrorIs(t, err, want, id)
		}
		tx := k.begin("")
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("failed"), k.never())
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "declined", string(final.Value))
		require.NotContains(t, err.Error(), "declined")
		k.wantUsable(tx, "failed")
	})

	t.Run("LookupAndForget", func(t *testing.T) {
		k := open(t, door)
		key := scope.Key("evt_1").WithPayload([]byte("body"))
		_, err := k.db.Lookup(k.ctx, Settings{}, key)
		require.ErrorIs(t, err, idem.ErrNotFound)
		tx := k.begin("")
		require.ErrorIs(t, tx.Forget(k.ctx, Settings{}, key), idem.ErrNotFound)
		k.wantUsable(tx, "not found")

		k.once(key, idem.Executed)
		rec, err := k.db.Lookup(k.ctx, Settings{}, key)
		require.NoError(t, err)
		require.Equal(t, idem.Done, rec.State)
		require.Len(t, rec.PayloadHash, 32)
		require.Nil(t, rec.Value)
		require.Equal(t, 1, rec.Attempt)
		require.WithinDuration(t, time.Now(), rec.ProcessedAt, time.Minute)
		require.Greater(t, rec.Age, time.Duration(0))

		tx = k.begin("")
		require.NoError(t, tx.Forget(k.ctx, Settings{}, key))
		_, err = tx.Lookup(k.ctx, Settings{}, key)
		require.ErrorIs(t, err, idem.ErrNotFound)
		require.NoError(t, tx.Commit(k.ctx))
		k.once(key, idem.Executed)
		k.wantEffects(key.ID(), 2)

		k.exec(k.db, `UPDATE processed_events SET lease_until = now() + interval '1 hour'`)
		tx = k.begin("")
		require.ErrorIs(t, tx.Forget(k.ctx, Settings{}, key), idem.ErrInProgress)
		k.exec(tx, `UPDATE processed_events SET lease_until = '-infinity'`)
		require.ErrorIs(t, tx.Forget(k.ctx, Settings{}, key), idem.ErrUnfinished)
		require.NoError(t, tx.Commit(k.ctx))
		k.wantKeys(1)
	})
}
