package dedup_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// olds are tables as earlier versions made them: what takes a new one back, and how a row was claimed.
var olds = []struct {
	name   string
	layout dedup.Layout
	back   string
	claim  string
}{
	{
		"plain 1", dedup.Plain, `ALTER TABLE processed_events RESET (autovacuum_vacuum_scale_factor)`,
		`INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', $1)`,
	},
	{"plain 2", dedup.Plain, ``, `INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', $1)`},
	{"hash 1", dedup.Hash(2), ``, `INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', $1)`},
	{
		"weekly 1", dedup.Weekly, ``, `INSERT INTO processed_events (source, operation, key, event_time, bucket)
		 VALUES ('s', 'o', $1, now(), date_trunc('week', now() AT TIME ZONE 'UTC')::date)`,
	},
}

// aged returns a database with an old table, and with a new one of the same layout.
func aged(t *testing.T, layout dedup.Layout, name, back string) (*pgxpool.Pool, dedup.Table) {
	t.Helper()
	pool, table := pgtest.Pool(t), dedup.Table{Layout: layout}
	migrated(t, pool, table, dedup.Table{Name: "new", Layout: layout})
	kind, version, _ := strings.Cut(name, " ")
	exec1(t, pool, back+`; ALTER TABLE processed_events DROP COLUMN token;
		COMMENT ON TABLE processed_events IS 'pgonce dedup table, layout `+kind+`, version `+version+`'`)
	return pool, table
}

// An old table is brought forward beside old programs: they go on before, meanwhile and afterwards, and it gets what
// a new one has. A transaction that stays open keeps Migrate waiting, and not every other claim.
func TestMigrateForward(t *testing.T) {
	for _, old := range olds {
		t.Run(old.name, func(t *testing.T) {
			t.Parallel()
			pool, table := aged(t, old.layout, old.name, old.back)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			open, err := pool.Begin(ctx)
			require.NoError(t, err)
			_, err = open.Exec(ctx, old.claim, "open")
			require.NoError(t, err)

			done := make(chan error, 1)
			go func() { done <- dedup.Migrate(ctx, pool, table) }()
			require.Eventually(t, func() bool {
				return number(t, pool, `SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
				  WHERE NOT l.granted AND a.datname = current_database() AND l.locktype = 'relation'`) > 0
			}, 20*time.Second, time.Millisecond, "Migrate waits for the open claim")
			_, err = pool.Exec(ctx, old.claim, "meanwhile")
			require.NoError(t, err)
			select {
			case err := <-done:
				t.Fatalf("Migrate did not wait: %v", err)
			default:
			}
			require.NoError(t, open.Commit(ctx))
			require.NoError(t, <-done)
			_, err = pool.Exec(ctx, old.claim, "afterwards")
			require.NoError(t, err)

			var was, fresh []string
			of := `SELECT coalesce(c.reloptions, '{}') || obj_description(c.oid, 'pg_class')
			              || array_agg(a.attname::text ORDER BY a.attname)
			         FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			        WHERE c.oid = $1::text::regclass GROUP BY c.oid, c.reloptions`
			require.NoError(t, pool.QueryRow(ctx, of, "processed_events").Scan(&was))
			require.NoError(t, pool.QueryRow(ctx, of, "new").Scan(&fresh))
			require.Equal(t, fresh, was)
			kind, _, _ := strings.Cut(old.name, " ")
			require.Contains(t, was, "pgonce dedup table, layout "+kind+", version 3")
			require.Equal(t, 3, number(t, pool, `SELECT count(*) FROM processed_events WHERE token IS NULL`))

			const changed = `SELECT xmin::text::int8 FROM pg_class WHERE oid = 'processed_events'::regclass`
			before := number(t, pool, changed)
			migrated(t, pool, table)
			require.Equal(t, before, number(t, pool, changed))
		})
	}
}

// Verify names an old table, and the statement that it gives is enough.
func TestVerifyOldTable(t *testing.T) {
	for _, old := range olds {
		t.Run(old.name, func(t *testing.T) {
			t.Parallel()
			pool, table := aged(t, old.layout, old.name, old.back)
			var bad *dedup.VerifyError
			require.ErrorAs(t, dedup.Verify(t.Context(), pool, table), &bad)
			require.Len(t, bad.Problems, 1)
			require.Equal(t, "column missing", bad.Problems[0].Kind.String())
			exec1(t, pool, bad.Problems[0].Fix)
			require.NoError(t, dedup.Verify(t.Context(), pool, table))
			migrated(t, pool, table)
		})
	}
}

// A partition that was detached from an old table becomes one of the new table again.
func TestOldPartitionReturns(t *testing.T) {
	t.Parallel()
	for name, mend := range map[string]func(*pgxpool.Pool) error{
		"migrate":  func(pool *pgxpool.Pool) error { return dedup.Migrate(t.Context(), pool, shorter) },
		"maintain": func(pool *pgxpool.Pool) error { _, err := shorter.Maintain(t.Context(), pool); return err },
	} {
		for _, week := range []int{-5, -1, 3} { // expired with something open, in the window, to come
			pool := pgtest.Pool(t)
			neglected(t, pool)
			if week < 0 {
				put(t, pool, "open", week, "lease_until='-infinity'")
			}
			part, from, _ := monday(t, pool, week)
			if week == 3 {
				exec1(t, pool, `CREATE TABLE `+part+` (LIKE processed_events INCLUDING ALL)`)
			} else {
				exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+part)
			}
			mark := "" // what is detached by hand stays; this one Maintain began to drop
			if week == -5 {
				mark = ", being dropped"
			}
			exec1(t, pool, `COMMENT ON TABLE `+part+` IS 'pgonce dedup partition, week `+from+mark+`'`)
			exec1(t, pool, `ALTER TABLE `+part+` DROP COLUMN token`)
			require.NoError(t, mend(pool), "%s %d", name, week)
			if week != -5 || name == "maintain" { // Migrate leaves what is before the window to Maintain
				n := number(t, pool, `SELECT count(*) FROM pg_inherits WHERE inhrelid = $1::text::regclass`, part)
				require.Equal(t, 1, n, "%s %d", name, week)
			}
		}
	}
}
