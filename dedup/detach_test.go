package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

const (
	pendingParts = `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`
	waitsForOld  = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'virtualxid'`
)

// detaching has a Maintain wait in DETACH ... CONCURRENTLY for a claim; end ends the claim.
func detaching(ctx context.Context, t *testing.T, pool *pgxpool.Pool) (done <-chan error, end func()) {
	t.Helper()
	claim, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = claim.Rollback(context.Background()) })
	_, err = claim.Exec(t.Context(), `UPDATE processed_events SET attempt = 1 WHERE key = 'today''s'`)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := shorter.Maintain(ctx, pool); ended <- err }()
	require.Eventually(t, func() bool {
		return count(t, pool, pendingParts) == 1 && count(t, pool, waitsForOld) == 1
	}, 20*time.Second, 5*time.Millisecond)
	return ended, func() { require.NoError(t, claim.Rollback(t.Context())) }
}

// wantNobodyWaits waits until the server, too, has ended what a context has cancelled.
func wantNobodyWaits(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool { return count(t, pool, waitsForOld) == 0 }, 20*time.Second, 5*time.Millisecond)
}

// A Maintain that waits for an old transaction is at work, and no reason not to start. What it detaches has expired; a
// partition that holds keys of the window is another matter, and so is one that nobody is detaching any more.
func TestVerifyBesideMaintain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, end := detaching(ctx, t, pool)
	require.NoError(t, dedup.Verify(t.Context(), pool, shorter))
	require.NoError(t, dedup.Migrate(t.Context(), pool, shorter))
	found := problems(t, pool, weekly)
	require.Len(t, found, 1, "by the longer retention its keys are missed")
	require.Equal(t, "partition half detached", found[0].Kind.String())
	cancel()
	require.Error(t, <-done)
	wantNobodyWaits(t, pool)
	found = problems(t, pool, shorter)
	require.Len(t, found, 1, "it is stuck")
	require.Equal(t, "partition half detached", found[0].Kind.String())
	end()
	exec1(t, pool, found[0].Fix)
	_, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	wantMended(t, pool)
}

// A Maintain that finishes what another one began holds the partition's lock, and waits for every older snapshot. Who
// has one, and would wait for that lock to read the bounds, would be in a deadlock with it; and whoever has none would
// wait for as long as the oldest transaction lasts.
func TestCatalogBesideFinalize(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	begun, end := detaching(ctx, t, pool)
	cancel()
	require.Error(t, <-begun)
	wantNobodyWaits(t, pool)
	end()
	require.Equal(t, 1, count(t, pool, pendingParts))

	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), `SELECT count(*) FROM pg_class`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { _, err := shorter.Maintain(t.Context(), pool); done <- err }()
	require.Eventually(t, func() bool {
		return count(t, pool, waitsForOld) == 1 && count(t, pool,
			`SELECT count(*) FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'
			AND relation IN (SELECT inhrelid FROM pg_inherits WHERE inhdetachpending)`) == 1
	}, 20*time.Second, 5*time.Millisecond)
	_, err = old.Exec(t.Context(), `SET LOCAL lock_timeout = '100ms'`)
	require.NoError(t, err)
	require.NoError(t, dedup.Verify(t.Context(), old, shorter), "with the older snapshot")
	younger, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	require.NoError(t, dedup.Verify(younger, pool, shorter))
	require.NoError(t, dedup.Migrate(younger, pool, shorter))
	select {
	case err := <-done:
		t.Fatalf("Maintain did not wait: %v", err)
	default:
	}
	require.NoError(t, old.Rollback(t.Context()))
	require.NoError(t, <-done)
	wantMended(t, pool)
}
