package outbox_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever relays.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for _, path := range pgtest.ShadowPaths() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := pgtest.Shadowed(t, path)
			table := outbox.Table{Name: "app.events"}
			for range 2 {
				require.NoError(t, outbox.Migrate(ctx, pool, table))
			}
			require.NoError(t, outbox.Verify(ctx, pool, table))
			e := ev("bad", 0)
			e.Headers = map[string]string{"a": "b"}
			require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return table.Append(ctx, tx, e, ev("bad", 1), ev("good", 1), ev("", 0), ev("", 1))
			}))
			bad := true
			b := &broker{fail: func(e outbox.Event) error {
				if bad && string(e.Payload) == "0" {
					return errors.New("bad")
				}
				return nil
			}}
			r := quick(b)
			r.Table, r.MaxAttempts = table, 2
			for range 3 {
				_, err := r.Drain(ctx, pool)
				if err != nil {
					require.ErrorContains(t, err, "publish")
				}
				_, err = pool.Exec(ctx, `UPDATE app.events_lanes SET lease_until = '-infinity'`)
				require.NoError(t, err)
			}
			parked, err := table.Parked(ctx, pool, 10)
			require.NoError(t, err)
			require.Len(t, parked, 2)
			_, err = table.Retry(ctx, pool, parked[0].ID)
			require.NoError(t, err)
			_, err = table.Discard(ctx, pool, parked[1].ID)
			require.NoError(t, err)
			require.NoError(t, outbox.Notify(ctx, pool))
			bad = false
			drain(t, pool, r)
			drain(t, pool, r)
			lag, err := table.Lag(ctx, pool)
			require.NoError(t, err)
			require.Zero(t, lag)
			require.Greater(t, pgtest.Captured(t, pool), 20)
		})
	}
}
