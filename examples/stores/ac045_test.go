package main

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// AC-045: idempotency is enforced by the database, not only by application logic. Two workers, each with connections of
// its own, have the same notification in hand at the same moment, and both are past every check that a program could
// make: one waits in the middle of its effect, the other one in the database, behind the first one's key.
func TestAC045TwoWorkersAtOnceMakeOneRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg.Copy())
	require.NoError(t, prepare(t.Context(), pool, w.config))

	// The effect of whoever comes first stops here.
	lock, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `LOCK TABLE stores_purchases IN EXCLUSIVE MODE`)
	require.NoError(t, err)

	at := time.Now().Add(-time.Minute)
	var wg sync.WaitGroup
	codes := make([]int, 2)
	for i := range codes {
		h := w.server(pgtest.PoolConfig(t, cfg.Copy()))
		r := w.stripe("evt_1", "sub_1", "active", at)
		wg.Go(func() { codes[i] = serve1(h, r) })
	}
	require.Eventually(t, func() bool {
		return scan[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND wait_event IN ('relation', 'transactionid')`) == 2
	}, 4*time.Second, 5*time.Millisecond, "one worker waits for the table, the other one for the first")
	require.NoError(t, lock.Rollback(t.Context()))
	wg.Wait()

	require.Equal(t, []int{http.StatusOK, http.StatusOK}, codes)
	require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM stores_purchases`))
	require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM stores_history`))
	require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM processed_events`))
}

// AC-045: the constraint is proven to be there, and its loss is noticed before a notification is lost or doubled.
func TestAC045VerifyProvesTheConstraint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.prepared()
	h := w.server(pool)
	require.NoError(t, dedup.Verify(t.Context(), pool, w.config.table()))
	_, err := pool.Exec(t.Context(), `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
	require.NoError(t, err)
	var problems *dedup.VerifyError
	require.ErrorAs(t, dedup.Verify(t.Context(), pool, w.config.table()), &problems)

	// Without it nothing is acknowledged, and nothing done.
	at := time.Now().Add(-time.Minute)
	for range 2 {
		require.Equal(t, http.StatusInternalServerError, serve1(h, w.stripe("evt_1", "sub_1", "active", at)))
	}
	require.Zero(t, scan[int](t, pool, `SELECT count(*) FROM stores_purchases`))

	// A retention that is shorter than a store repeats for is noticed, too: Pub/Sub's 31 days are the longest.
	short := w.config.table()
	short.Retention = 30 * 24 * time.Hour
	require.Equal(t, dedup.PubSubResends, short.Resends)
	require.ErrorAs(t, dedup.Verify(t.Context(), pool, short), &problems)
}
