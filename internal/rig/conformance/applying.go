package conformance

import (
	"context"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// Effect is a statement of an Apply.
type Effect struct {
	SQL  string
	Args []any
}

// left are effects that leave a row in effects.
func left(what string, more ...Effect) []Effect {
	return append([]Effect{{`INSERT INTO effects (what) VALUES ($1)`, []any{what}}}, more...)
}

func (k kit) apply(key idem.Key, effects ...Effect) (idem.Outcome, error) {
	return k.db.Apply(k.ctx, Settings{}, key, effects...)
}

// applied wants this outcome of a key whose effect is called as it is.
func (k kit) applied(key idem.Key, want idem.Outcome) {
	k.Helper()
	out, err := k.apply(key, left(key.ID())...)
	require.NoError(k, err)
	require.Equal(k, want, out)
	k.wantEffects(key.ID(), 1)
}

// breaks is an argument whose own code does not return.
type breaks struct{ how func() }

func (b breaks) Value() (driver.Value, error) { b.how(); return nil, errBusiness }

// applying holds what Apply does: claim, effects and COMMIT without a look in between.
func applying(t *testing.T, door Door) {
	t.Run("Outcomes", func(t *testing.T) {
		k := open(t, door)
		k.applied(scope.Key("a"), idem.Executed)
		k.applied(scope.Key("a"), idem.Duplicate)
		k.once(scope.Key("a"), idem.Duplicate)
		k.once(scope.Key("b"), idem.Executed)
		k.applied(scope.Key("b"), idem.Duplicate)

		payload := scope.Key("payload").WithPayload([]byte("1"))
		k.applied(payload, idem.Executed)
		k.applied(payload, idem.Duplicate)
		held, refused := k.reserve("held"), k.reserve("refused")
		require.NoError(t, k.db.Move(k.ctx, refused, Move{Name: "fail", Value: []byte("why")}))
		keys, err := k.db.Int(k.ctx, `SELECT count(*) FROM processed_events`)
		require.NoError(t, err)
		for _, c := range []struct {
			key  idem.Key
			want error
		}{
			{payload.WithPayload([]byte("2")), idem.ErrPayloadMismatch},
			{scope.Key("late").OccurredAt(time.Unix(1, 0)), idem.ErrExpired},
			{scope.Key("early").OccurredAt(time.Now().Add(48 * time.Hour)), idem.ErrFuture},
			{scope.Key("held"), idem.ErrInProgress},
		} {
			out, err := k.apply(c.key, left("never")...)
			require.ErrorIs(t, err, c.want)
			require.Zero(t, out)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageClaim, own.Stage)
		}
		_, err = k.apply(scope.Key("refused"), left("never")...)
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "why", string(final.Value))
		_, err = k.apply(idem.Key{}, left("never")...)
		var bad *idem.KeyError
		require.ErrorAs(t, err, &bad)
		k.wantKeys(int(keys))
		k.wantEffects("never", 0)

		require.NoError(t, k.confirm(held, "held"))
		out, err := k.apply(scope.Key("held"), left("never")...)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		k.applied(scope.Key("timed").OccurredAt(time.Now()), idem.Executed)
	})

	// The options hold for this transaction, and for no later one of the session.
	t.Run("Levels", func(t *testing.T) {
		k := open(t, door)
		for i, level := range []string{"repeatable read", "", "serializable", "", "read committed", ""} {
			key, want := scope.Key(fmt.Sprint(i)), level
			if level == "" {
				want = "read committed"
			}
			k.exec(k.db, `DELETE FROM effects WHERE what IS NOT NULL`)
			for _, outcome := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
				out, err := k.db.Apply(k.ctx, Settings{Level: level}, key,
					Effect{`INSERT INTO effects (what) VALUES (current_setting('transaction_isolation'))`, nil})
				require.NoError(t, err)
				require.Equal(t, outcome, out)
			}
			k.wantEffects(want, 1)
		}
	})

	applyFailing(t, door)
	if !door.Core {
		applyTogether(t, door)
	}

	t.Run("Refused", func(t *testing.T) {
		k := open(t, door)
		for _, sql := range []string{
			`COMMIT`, `ROLLBACK`, `; BEGIN`, `/* a */ SAVEPOINT a`, `CALL p()`, `DO $$ BEGIN COMMIT; END $$`,
			`COPY effects FROM STDIN`, ``,
			`VACUUM effects`, `SELECT 1; COMMIT`,
		} {
			rec := &recorder{}
			_, err := k.db.Apply(k.ctx, Settings{Observer: rec}, scope.Key("evt_1"), left("a", Effect{SQL: sql})...)
			var own *idem.Error
			require.ErrorAs(t, err, &own, "%q", sql)
			require.Equal(t, idem.StageFn, own.Stage)
			require.False(t, idem.Retryable(err))
			require.Equal(t, dedup.Failed, rec.last().Outcome)
		}
		_, err := k.apply(scope.Key("evt_1"))
		require.Error(t, err)
		k.wantKeys(0)
		k.wantEffects("a", 0)
	})

	t.Run("Panics", func(t *testing.T) {
		k := open(t, door)
		recovered := protect(func() {
			_, _ = k.apply(scope.Key("evt_1"),
				left("a", Effect{`INSERT INTO effects (what) VALUES ($1)`, []any{breaks{func() { panic(errBusiness) }}}})...)
		})
		require.NotNil(t, recovered)
		require.True(t, k.db.Idle(k.ctx), "the connection is back")
		k.wantKeys(0)
		k.wantEffects("a", 0)
		k.applied(scope.Key("evt_1"), idem.Executed)
	})

	t.Run("Nested", func(t *testing.T) {
		k := open(t, door)
		_, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, _ Tx) error {
			out, err := k.db.Apply(ctx, Settings{}, scope.Key("evt_2"), left("evt_2")...)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			_, err = k.db.Apply(ctx, Settings{}, scope.Key("evt_1"), left("evt_1")...)
			require.ErrorIs(t, err, idem.ErrNested)
			return nil
		})
		require.ErrorIs(t, err, idem.ErrNested)
		k.wantKeys(1)
		k.wantEffects("evt_1", 0)
	})

	t.Run("Setup", func(t *testing.T) {
		k := open(t, door)
		_, err := k.db.Apply(k.ctx, Settings{Table: dedup.Table{Name: "no_such_table"}}, scope.Key("a"), left("a")...)
		require.ErrorContains(t, err, "dedup.Migrate")
		require.True(t, pgerr.Is(err, "42P01"))
		_, err = k.db.Apply(k.ctx, Settings{Table: dedup.Table{Name: "a.b.c"}}, scope.Key("a"), left("a")...)
		var own *idem.Error
		require.ErrorAs(t, err, &own)
		require.Equal(t, idem.StageTable, own.Stage)
		k.wantEffects("a", 0)
	})
}
