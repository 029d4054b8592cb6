package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

var errBusiness = errors.New("the order is closed")

// failures are the ways in which fn can fail; each leaves its effect behind first. err is what Do must return, where it
// returns at all.
var failures = []struct {
	name string
	fn   func(context.Context, Tx) error
	want func(t *testing.T, door Door, err error)
}{
	{
		"error",
		func(ctx context.Context, tx Tx) error { return errBusiness },
		func(t *testing.T, door Door, err error) { require.Same(t, errBusiness, err) },
	},
	{
		"wrapped error",
		func(ctx context.Context, tx Tx) error { return fmt.Errorf("fn: %w", errBusiness) },
		func(t *testing.T, door Door, err error) { require.EqualError(t, err, "fn: the order is closed") },
	},
	{
		"unique violation of a business table",
		func(ctx context.Context, tx Tx) error {
			if err := tx.Exec(ctx, `INSERT INTO business (id) VALUES ('x')`); err != nil {
				return err
			}
			return tx.Exec(ctx, `INSERT INTO business (id) VALUES ('x')`)
		},
		func(t *testing.T, door Door, err error) {
			require.True(t, pgerr.Is(err, "23505"))
			if door.Spread == "" { // a cluster names no constraint, or a shard's
				require.True(t, pgerr.Duplicate(err, "business_id_key"))
			}
			var own *idem.Error
			require.NotErrorAs(t, err, &own, "fn's error comes as it is")
		},
	},
	{
		"panic",
		func(ctx context.Context, tx Tx) error { panic(errBusiness) },
		func(t *testing.T, door Door, err error) { t.Error("returned from a panic") },
	},
	{
		"Goexit",
		func(ctx context.Context, tx Tx) error { runtime.Goexit(); return nil },
		func(t *testing.T, door Door, err error) { t.Error("returned from Goexit") },
	},
}

// protect runs f in a goroutine of its own and waits for its end, however it ends. It returns what f panicked with.
func protect(f func()) (recovered any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { recovered = recover() }()
		f()
	}()
	<-done
	return recovered
}

func failing(t *testing.T, door Door) {
	for _, failure := range failures {
		// leaving is failure.fn behind a first effect, which must go with it.
		leaving := func(ctx context.Context, tx Tx) error {
			if err := effect("half")(ctx, tx); err != nil {
				return err
			}
			return failure.fn(ctx, tx)
		}

		t.Run("Do/"+failure.name, func(t *testing.T) {
			k := open(t, door)
			tx := k.begin("")
			k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
			recovered := protect(func() {
				out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), leaving)
				require.Zero(t, out)
				failure.want(t, door, err)
			})
			require.Equal(t, failure.name == "panic", recovered != nil)
			k.wantFailed(tx) // the caller commits all the same, and cannot
			k.wantEffects("half", 0)
			k.wantKeys(0)
			k.once(scope.Key("evt_1"), idem.Executed)
		})

		// In a savepoint of the caller's own, a failure takes key and effect with it, and nothing else.
		t.Run("Nested/"+failure.name, func(t *testing.T) {
			k := open(t, door)
			tx := k.begin("")
			k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
			protect(func() {
				err := tx.Nested(k.ctx, func(tx Tx) error {
					_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), leaving)
					return err
				})
				failure.want(t, door, err)
			})
			k.wantUsable(tx, "after")
			k.wantEffects("before", 1)
			k.wantEffects("half", 0)
			k.wantKeys(0)
			k.once(scope.Key("evt_1"), idem.Executed)
		})

		// An inner Do that fails inside of an outer one, which goes on: the outer key has its own effect only.
		t.Run("InnerOfTwo/"+failure.name, func(t *testing.T) {
			if failure.name == "panic" || failure.name == "Goexit" {
				return // these pass the outer fn, too: the case above
			}
			k := open(t, door)
			tx := k.begin("")
			out, err := tx.Do(k.ctx, Settings{}, scope.Key("outer"), func(ctx context.Context, tx Tx) error {
				err := tx.Nested(ctx, func(tx Tx) error {
					_, err := tx.Do(ctx, Settings{}, scope.Key("inner"), leaving)
					return err
				})
				require.Error(t, err)
				return effect("outer")(ctx, tx)
			})
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			require.NoError(t, tx.Commit(k.ctx))
			k.wantEffects("outer", 1)
			k.wantEffects("half", 0)
			k.wantKeys(1)
		})

		t.Run("Run/"+failure.name, func(t *testing.T) {
			k := open(t, door)
			recovered := protect(func() {
				out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), leaving)
				require.Zero(t, out)
				failure.want(t, door, err)
			})
			require.Equal(t, failure.name == "panic", recovered != nil)
			require.True(t, k.db.Idle(k.ctx), "the connection is back, the transaction over")
			k.wantEffects("half", 0)
			k.wantKeys(0)
			k.once(scope.Key("evt_1"), idem.Executed)
		})
	}

	// A caller that swallows Do's error and goes on finds a failed transaction, not a key without its effect.
	t.Run("SwallowedByOuter", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("outer"), func(ctx context.Context, tx Tx) error {
			_, _ = tx.Do(ctx, Settings{}, scope.Key("inner"), func(context.Context, Tx) error { return errBusiness })
			return nil
		})
		require.Error(t, err)
		k.wantFailed(tx)
		k.wantKeys(0)
	})
}
