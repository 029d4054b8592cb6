package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// ended holds what a transaction is good for that the caller has ended in SQL text, of which its object does not know:
// what would be written in it is committed alone.
func ended(t *testing.T, door Door) {
	for _, text := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(text, func(t *testing.T) {
			k := open(t, door)
			key := scope.Key("evt_1")
			old := scope.Key("old")
			k.once(old, idem.Executed)
			r, _, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("held"), time.Minute)
			require.NoError(t, err)
			fn := func(context.Context, Tx) error { return errBusiness }
			for name, call := range map[string]func(tx Tx) error{
				"Do": func(tx Tx) error {
					_, err := tx.Do(k.ctx, Settings{}, key, fn)
					return err
				},
				"Do with MaxWait": func(tx Tx) error {
					_, err := tx.Do(k.ctx, Settings{MaxWait: time.Second}, key, fn)
					return err
				},
				"Returning.Do": func(tx Tx) error {
					_, _, err := tx.DoReturning(k.ctx, Settings{}, key, valued(fn))
					return err
				},
				"DoMany": func(tx Tx) error {
					_, err := tx.DoMany(k.ctx, Settings{}, []idem.Key{key, scope.Key("evt_2")}, manyOf(fn))
					return err
				},
				"DoMany with MaxWait": func(tx Tx) error {
					_, err := tx.DoMany(k.ctx, Settings{MaxWait: time.Second}, []idem.Key{key, scope.Key("evt_2")}, manyOf(fn))
					return err
				},
				"Forget":  func(tx Tx) error { return tx.Forget(k.ctx, Settings{}, old) },
				"Confirm": func(tx Tx) error { return tx.Confirm(k.ctx, r, nil) },
			} {
				// Over lib/pq only a SAVEPOINT can tell, and only a call with MaxWait sends one.
				if door.Features.EndUnknown && name != "Do with MaxWait" && name != "DoMany with MaxWait" {
					continue
				}
				tx := k.begin("")
				k.exec(tx, text)
				err := call(tx)
				var own *idem.Error
				require.ErrorAs(t, err, &own, name)
				require.NotErrorIs(t, err, errBusiness, "%s: fn was called", name)
				require.False(t, idem.Retryable(err), name)
				_ = tx.Rollback(k.ctx)
				k.wantKeys(2)
				rec, err := k.db.Lookup(k.ctx, Settings{}, scope.Key("held"))
				require.NoError(t, err)
				require.Equal(t, idem.Reserved, rec.State, name)
			}
			if door.Features.EndUnknown {
				// The claim is committed alone; that is found after fn, and said.
				tx := k.begin("")
				k.exec(tx, text)
				_, err := tx.Do(k.ctx, Settings{}, key, fn)
				var own *idem.Error
				require.ErrorAs(t, err, &own)
				require.Equal(t, idem.StageFn, own.Stage)
				require.ErrorIs(t, err, errBusiness)
				require.False(t, idem.Retryable(err))
				_ = tx.Rollback(k.ctx)
			}
		})
	}
}
