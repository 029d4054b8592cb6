package conformance

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// unsent holds what becomes of the caller's transaction where a call could send nothing: it is as it was.
func unsent(t *testing.T, door Door) {
	hindrances := []struct {
		name   string
		hinder func(k kit, tx Tx) (ctx context.Context, over func())
	}{
		{"done context", func(k kit, _ Tx) (context.Context, func()) {
			ctx, cancel := context.WithCancel(k.ctx)
			cancel()
			return ctx, func() {}
		}},
		{"open rows", func(k kit, tx Tx) (context.Context, func()) {
			closes, err := tx.Leave(k.ctx)
			require.NoError(k, err)
			return k.ctx, closes
		}},
	}
	calls := []struct {
		name string
		call func(ctx context.Context, k kit, tx Tx, r Reservation) error
	}{
		{"Do", func(ctx context.Context, k kit, tx Tx, _ Reservation) error {
			_, err := tx.Do(ctx, Settings{}, scope.Key("evt_1"), k.never())
			return err
		}},
		{"Do with MaxWait", func(ctx context.Context, k kit, tx Tx, _ Reservation) error {
			_, err := tx.Do(ctx, Settings{MaxWait: time.Minute}, scope.Key("evt_1"), k.never())
			return err
		}},
		{"DoMany", func(ctx context.Context, k kit, tx Tx, _ Reservation) error {
			_, err := tx.DoMany(ctx, Settings{}, ids(2, "evt_"), k.neverMany())
			return err
		}},
		{"DoMany with MaxWait", func(ctx context.Context, k kit, tx Tx, _ Reservation) error {
			_, err := tx.DoMany(ctx, Settings{MaxWait: time.Minute}, ids(2, "evt_"), k.neverMany())
			return err
		}},
		{"Confirm", func(ctx context.Context, k kit, tx Tx, r Reservation) error { return tx.Confirm(ctx, r, nil) }},
	}
	for _, h := range hindrances {
		for _, c := range calls {
			t.Run(h.name+"/"+c.name, func(t *testing.T) {
				k := open(t, door)
				r := k.reserve("held")
				tx := k.begin("")
				k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
				ctx, over := h.hinder(k, tx)
				err := c.call(ctx, k, tx, r)
				require.Error(t, err)
				over()
				if ctx.Err() != nil {
					require.ErrorIs(t, err, ctx.Err())
				} else if door.Features.BusyUnnamed {
					require.Error(t, tx.Commit(k.ctx), "the statement may have been sent")
					k.wantEffects("before", 0)
					return
				}
				require.True(t, idem.Retryable(err), "%v", err)
				require.False(t, pgerr.CommitUnknown(err))
				if err := tx.Exec(k.ctx, `SELECT 1`); err != nil && door.Features.BusySticks && ctx.Err() == nil {
					require.NotErrorIs(t, err, sql.ErrTxDone, "the call has ended the transaction")
					require.Error(t, tx.Commit(k.ctx))
					return
				}
				out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)
				require.Equal(t, idem.Executed, out)
				require.NoError(t, tx.Confirm(k.ctx, r, nil))
				k.wantUsable(tx, "after")
				k.wantEffects("before", 1)
				k.wantEffects("a", 1)
			})
		}
	}
}
