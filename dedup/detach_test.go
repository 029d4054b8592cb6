package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pgtest"
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
	found = problems(t, pool, shorter)
	require.Len(t, found, 1, "it is stuck")
	require.Equal(t, "partition half detached", found[0].Kind.String())
	end()
	exec1(t, pool, found[0].Fix)
	_, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	wantMended(t, pool)
}
