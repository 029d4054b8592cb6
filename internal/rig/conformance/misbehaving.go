package conformance

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// sins are what fn must not do, while it returns nil. Each must be found and named.
var sins = []struct {
	name string
	ends bool // by the methods of its transaction
	fn   func(context.Context, Tx) error
}{
	{"swallows an SQL error", false, func(ctx context.Context, tx Tx) error {
		_ = tx.Exec(ctx, `INSERT INTO no_such_table (a) VALUES (1)`)
		return nil
	}},
	{"commits", true, func(ctx context.Context, tx Tx) error {
		_ = tx.Commit(ctx)
		return nil
	}},
	{"rolls back", true, func(ctx context.Context, tx Tx) error {
		_ = tx.Rollback(ctx)
		return nil
	}},
	{"defers a roll back", true, func(ctx context.Context, tx Tx) error {
		defer func() { _ = tx.Rollback(ctx) }()
		return nil
	}},
	{"commits in SQL", false, func(ctx context.Context, tx Tx) error {
		_ = tx.Exec(ctx, `COMMIT`)
		return nil
	}},
	{"rolls back in SQL", false, func(ctx context.Context, tx Tx) error {
		_ = tx.Exec(ctx, `ROLLBACK`)
		return nil
	}},
}

func misbehaving(t *testing.T, door Door) {
	for _, sin := range sins {
		if sin.ends && door.Features.FnCannotEnd {
			continue
		}
		wantNamed := func(t *testing.T, out idem.Outcome, err error) {
			t.Helper()
			require.Zero(t, out)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageFn, own.Stage)
		}
		// What fn ended in SQL text has happened; everywhere else, nothing has.
		ended := sin.name == "commits in SQL"

		t.Run("Do/"+sin.name, func(t *testing.T) {
			k := open(t, door)
			tx := k.begin("")
			out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				require.NoError(t, effect("a")(ctx, tx))
				return sin.fn(ctx, tx)
			})
			wantNamed(t, out, err)
			_ = tx.Commit(k.ctx)
			if !ended {
				k.wantKeys(0)
				k.wantEffects("a", 0)
			}
			// Key and effect stand or fall together, whatever fn did.
			n, err := k.db.Int(k.ctx, `SELECT count(*) FROM processed_events`)
			require.NoError(t, err)
			k.wantEffects("a", int(n))
		})

		t.Run("Run/"+sin.name, func(t *testing.T) {
			k := open(t, door)
			out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				require.NoError(t, effect("a")(ctx, tx))
				return sin.fn(ctx, tx)
			})
			wantNamed(t, out, err)
			require.True(t, k.db.Idle(k.ctx), "the connection is back, the transaction over")
			if !ended {
				k.wantKeys(0)
				k.wantEffects("a", 0)
			}
			n, err := k.db.Int(k.ctx, `SELECT count(*) FROM processed_events`)
			require.NoError(t, err)
			k.wantEffects("a", int(n))
		})
	}

	// fn that ended the transaction in SQL text, and fails: its error alone would hide that the key may be committed.
	for _, own := range []bool{false, true} {
		for _, text := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(fmt.Sprintf("EndsAndFails/own=%v/%s", own, text), func(t *testing.T) {
				k := open(t, door)
				fn := func(ctx context.Context, tx Tx) error {
					require.NoError(t, tx.Exec(ctx, text))
					return errBusiness
				}
				var err error
				if own {
					_, err = k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), fn)
				} else {
					tx := k.begin("")
					_, err = tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), fn)
					_ = tx.Rollback(k.ctx)
				}
				var named *idem.Error
				require.ErrorAs(t, err, &named)
				require.Equal(t, idem.StageFn, named.Stage)
				require.ErrorIs(t, err, errBusiness)
				require.False(t, idem.Retryable(err))
				require.True(t, k.db.Idle(k.ctx))
			})
		}
	}

	// fn that fails and also tried to end the transaction: its own error says more.
	t.Run("OwnErrorFirst", func(t *testing.T) {
		k := open(t, door)
		_, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			_ = tx.Rollback(ctx)
			return errBusiness
		})
		require.Same(t, errBusiness, err)
		k.wantKeys(0)
	})

	// An error that fn met inside of a savepoint of its own, and rolled back to, is dealt with.
	t.Run("OwnSavepoint", func(t *testing.T) {
		k := open(t, door)
		out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
			err := tx.Nested(ctx, func(tx Tx) error { return tx.Exec(ctx, `INSERT INTO no_such_table (a) VALUES (1)`) })
			require.Error(t, err)
			return effect("a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		k.wantEffects("a", 1)
	})

	t.Run("FailedBefore", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		require.Error(t, tx.Exec(k.ctx, `SELECT * FROM no_such_table`))
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		require.Error(t, err)
		require.Error(t, tx.Commit(k.ctx))
		k.wantKeys(0)
	})
}
