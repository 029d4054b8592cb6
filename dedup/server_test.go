package dedup_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Servers that speak the protocol and are others are told by their version, and refused before anything is made.
func TestOtherServers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), `SET allow_system_table_mods = on`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE SCHEMA tenant`)
	require.NoError(t, err)
	says := func(version string) {
		t.Helper()
		_, err := conn.Exec(t.Context(),
			`CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql STABLE AS $$ SELECT '`+version+
				`'::text $$`)
		require.NoError(t, err)
		pool.Reset() // a plan that has taken in a function of pg_catalog stays
	}
	for _, version := range []string{
		"CockroachDB CCL v25.2.0 (x86_64-pc-linux-gnu, built 2025/05/28, go1.23.7)",
		"PostgreSQL 15.12-YB-2025.2.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6, 64-bit",
	} {
		says(version)
		for _, err := range []error{dedup.Migrate(t.Context(), pool), dedup.Verify(t.Context(), pool)} {
			var found *dedup.VerifyError
			require.ErrorAs(t, err, &found)
			require.Len(t, found.Problems, 1)
			require.Equal(t, dedup.KindNotPostgreSQL, found.Problems[0].Kind)
		}
		for _, q := range queues() {
			wantKind(t, dedup.KindNotPostgreSQL, q.migrate(t.Context(), pool))
			wantKind(t, dedup.KindNotPostgreSQL, q.verify(t.Context(), pool))
		}
	}
	for _, version := range []string{
		"PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu",
		"PostgreSQL 17.4 (EnterpriseDB Advanced Server 17.4.0)",
		"PostgreSQL 16.6 on aarch64-unknown-linux-gnu, compiled by x-YB-gcc",
	} {
		says(version)
		require.NoError(t, dedup.Migrate(t.Context(), pool))
		require.NoError(t, dedup.Verify(t.Context(), pool))
		for _, q := range queues() {
			require.NoError(t, q.migrate(t.Context(), pool))
			require.NoError(t, q.verify(t.Context(), pool))
		}
	}
}
