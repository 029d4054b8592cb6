package dedup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestVerifyWindow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	day := 24 * time.Hour
	migrated(t, pool, dedup.Table{Retention: time.Hour, Resends: day}, dedup.Table{Name: "other"})
	for _, tc := range []struct {
		table dedup.Table
		short bool
	}{
		{dedup.Table{}, false},
		{dedup.Table{Retention: time.Second}, false}, // nothing is known of the sender
		{dedup.Table{Resends: max(dedup.StripeResends, dedup.AppStoreResends, dedup.PubSubResends)}, false},
		{dedup.Table{Resends: dedup.DefaultRetention}, false},
		{dedup.Table{Resends: dedup.DefaultRetention + 1}, true},
		{dedup.Table{Retention: 30 * day, Resends: dedup.StripeResends}, false},
		{dedup.Table{Retention: 30*day - 1, Resends: dedup.StripeResends}, true},
		{dedup.Table{Retention: 30*day - 1, Resends: dedup.StripeResends, ShortRetention: true}, false},
		{dedup.Table{Retention: 6 * day, Resends: dedup.AppStoreResends}, true},
		{dedup.Table{Retention: 7 * day, Resends: dedup.AppStoreResends}, false},
		{dedup.Table{Retention: 30 * day, Resends: dedup.PubSubResends}, true},
	} {
		err := dedup.Verify(t.Context(), pool, tc.table, dedup.Table{Name: "other"})
		if !tc.short {
			require.NoError(t, err, "%+v", tc.table)
			continue
		}
		var bad *dedup.VerifyError
		require.ErrorAs(t, err, &bad, "%+v", tc.table)
		require.Len(t, bad.Problems, 1)
		require.Equal(t, "retention too short", bad.Problems[0].Kind.String())
		require.Equal(t, "processed_events", bad.Problems[0].Table)
		require.Contains(t, bad.Problems[0].Fix, tc.table.Resends.String())
		exec1(t, pool, bad.Problems[0].Fix)
	}
	require.Error(t, dedup.Table{Resends: -1}.Validate())
	// Tables are compared, and are keys of maps.
	require.Equal(t, 1, map[dedup.Table]int{{Resends: 1}: 1}[dedup.Table{Resends: 1}])
}
