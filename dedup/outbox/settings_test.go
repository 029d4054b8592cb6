package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What a session has the server print says nothing of the tables.
func TestQuotedIdentifiers(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.ConnConfig.RuntimeParams["quote_all_identifiers"] = "on"
	pool := pgtest.PoolConfig(t, cfg)
	for range 2 {
		require.NoError(t, outbox.Migrate(t.Context(), pool))
		require.NoError(t, outbox.Verify(t.Context(), pool))
	}
}
