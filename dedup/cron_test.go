package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The line for pg_cron, run by pg_cron, where the server's binaries have it. (What it does is shown by TestPurgeSQL, on
// every server.) Its shortest interval is a minute in older versions: in the long form only.
func TestPurgeByCron(t *testing.T) {
	t.Parallel()
	if !long {
		t.Skip("waits for a minute: PGONCE_LONG=1 runs it")
	}
	if number(t, pgtest.Pool(t), `SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_cron'`) == 0 {
		t.Skip("the server has no pg_cron (Debian: postgresql-15-cron)")
	}
	settings := pgserver.FastAndUnsafe()
	settings["shared_preload_libraries"] = "pg_cron"
	settings["cron.use_background_workers"] = "on" // pg_cron's own connections would need a password
	server, err := pgserver.Start(t.Context(), pgserver.Config{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	migrated(t, pool)
	fill(t, pool, fillFifth, 10_000)
	exec1(t, pool, `CREATE EXTENSION pg_cron`)
	_, err = pool.Exec(t.Context(), `SELECT cron.schedule('purge processed_events', '* * * * *', $1)`,
		dedup.Table{}.PurgeSQL())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for n := 0; n == 0; {
		require.NoError(t, ctx.Err(), "the job did not end")
		sleep(ctx, 500*time.Millisecond)
		n = number(t, pool, `SELECT count(*) FROM cron.job_run_details WHERE status IN ('succeeded', 'failed')`)
	}
	var status, message string
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT status, coalesce(return_message, '') FROM cron.job_run_details`).Scan(&status, &message))
	require.Equal(t, "succeeded", status, message)
	require.Equal(t, 8_000, number(t, pool, `SELECT count(*) FROM processed_events`))
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
