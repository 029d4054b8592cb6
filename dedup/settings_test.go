package dedup_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// settings change what the server prints, takes for granted or reads, and nothing of what Migrate, Verify and
// Maintain do.
var settings = []struct{ name, value string }{
	{"quote_all_identifiers", "on"},
	{"datestyle", "German, DMY"},
	{"datestyle", "SQL, DMY"},
	{"datestyle", "Postgres, MDY"},
	{"intervalstyle", "sql_standard"},
	{"intervalstyle", "iso_8601"},
	{"timezone", "Pacific/Kiritimati"},
	{"timezone", "America/St_Johns"},
	{"extra_float_digits", "-15"},
	{"bytea_output", "escape"},
	{"search_path", `""`},
	{"search_path", "app, public, pg_catalog"},
	{"standard_conforming_strings", "off"},
	{"backslash_quote", "off"},
	{"transform_null_equals", "on"},
	{"array_nulls", "off"},
	{"default_transaction_isolation", "serializable"},
	{"default_transaction_isolation", "repeatable read"},
	{"default_transaction_deferrable", "on"},
	{"default_tablespace", "pg_default"},
	{"default_table_access_method", "heap"},
	{"check_function_bodies", "off"},
	{"row_security", "off"},
	{"client_min_messages", "error"},
	{"plan_cache_mode", "force_generic_plan"},
	{"constraint_exclusion", "on"},
	{"session_replication_role", "replica"},
}

func TestSettings(t *testing.T) {
	for _, s := range settings {
		t.Run(s.name+"="+s.value, func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Config(t)
			cfg.ConnConfig.RuntimeParams[s.name] = s.value
			pool := pgtest.PoolConfig(t, cfg)
			exec1(t, pool, `CREATE SCHEMA app`)
			tables := []dedup.Table{
				{Name: "app.plain"},
				{Name: `app."Hash"`, Layout: dedup.Hash(2)},
				{Name: "app.weekly", Layout: dedup.Weekly, Retention: 8 * 24 * time.Hour},
			}
			for range 2 {
				migrated(t, pool, tables...)
				require.NoError(t, dedup.Verify(t.Context(), pool, tables...))
			}
			older := tables[2]
			older.Retention = dedup.DefaultRetention
			exec1(t, pool, `DROP TABLE app.weekly`)
			migrated(t, pool, older)
			for _, table := range tables {
				stats, err := table.Maintain(t.Context(), pool)
				require.NoError(t, err)
				require.Equal(t, table.Layout == dedup.Weekly, len(stats.Dropped) > 0, "%v", stats)
				require.NoError(t, dedup.Verify(t.Context(), pool, table))
			}
			var last string
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT max(c.relname::pg_catalog.text) FROM pg_catalog.pg_class AS c
				WHERE c.relname::pg_catalog.text OPERATOR(pg_catalog.~) '^weekly_w[0-9]+$'::pg_catalog.text`).Scan(&last))
			exec1(t, pool, fmt.Sprintf(`DROP TABLE app.%s`, last))
			stats, err := tables[2].Maintain(t.Context(), pool)
			require.NoError(t, err)
			require.Equal(t, []string{"app." + last}, stats.Made)
		})
	}
}
