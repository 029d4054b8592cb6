package idem_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/pgerr"
)

// A read-only standby, as a client meets it after a failover that its pool has not noticed: a clear error, at once,
// which is retryable, and never a duplicate that was not read.
func TestStandby(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	srv, err := pgserver.Start(ctx, pgserver.Config{Settings: pgserver.FastAndUnsafe()})
	require.NoError(t, err)
	defer func() { require.NoError(t, srv.Stop()) }()
	pool, err := pgxpool.New(ctx, srv.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, dedup.Migrate(ctx, pool))
	out, err := idem.Run(ctx, pool, stripe.Key("1"), nothing)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)

	var dir string
	require.NoError(t, pool.QueryRow(ctx, `SELECT current_setting('data_directory')`).Scan(&dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644))
	require.NoError(t, srv.Restart(ctx))
	pool.Reset()
	var standby bool
	require.NoError(t, pool.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby))
	require.True(t, standby)

	for _, id := range []string{"1", "2"} {
		begun := time.Now()
		out, err = idem.Run(ctx, pool, stripe.Key(id), func(context.Context, pgx.Tx) error {
			t.Error("fn was called")
			return nil
		})
		require.Zero(t, out)
		require.True(t, pgerr.Is(err, "25006"), "%v", err)
		require.ErrorContains(t, err, "standby")
		require.True(t, idem.Retryable(err))
		_, out, err = idem.Call[int]{Lease: time.Hour, Send: func(context.Context, string) (int, error) {
			t.Error("the call was made")
			return 0, nil
		}}.Run(ctx, pool, stripe.Key(id))
		require.Zero(t, out)
		require.True(t, pgerr.Is(err, "25006"), "%v", err)
		require.True(t, idem.Retryable(err))
		require.Less(t, time.Since(begun), 30*time.Second)
	}
	rec, err := idem.Once{}.Lookup(ctx, pool, stripe.Key("1"))
	require.NoError(t, err, "reading works")
	require.Equal(t, idem.Done, rec.State)
	require.NoError(t, dedup.Verify(ctx, pool), "and so does Verify")
}
