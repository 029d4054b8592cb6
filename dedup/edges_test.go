package dedup_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// A retention of "for ever" must not overflow into one that has passed.
func TestRetentionWithoutEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, retention := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Hour, math.MaxInt64 / 2} {
		table := dedup.Table{Retention: retention}
		migrated(t, pool, table)
		exec1(t, pool, `TRUNCATE processed_events`)
		fill(t, pool, fillExpired, 100)
		counted, err := dedup.Cleaner{Table: table}.Count(t.Context(), pool)
		require.NoError(t, err)
		require.Zero(t, counted.Deleted)
		stats, err := table.Purge(t.Context(), pool)
		require.NoError(t, err)
		require.Zero(t, stats.Deleted)
		runBlock(t, pool, table)
		require.Equal(t, 100, number(t, pool, `SELECT count(*) FROM processed_events`))
	}
	exec1(t, pool, `DROP TABLE processed_events`)
	neglected(t, pool)
	stats, err := dedup.Table{Layout: dedup.Weekly, Retention: math.MaxInt64}.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, stats.Dropped)
	require.Equal(t, 4, number(t, pool, `SELECT count(*) FROM processed_events`))
}

// A program that does not say which layout the table has loses nothing by it, and nothing is left undone unsaid.
func TestOtherLayoutIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	exec1(t, pool, `UPDATE processed_events SET processed_at = now() - interval '50 days'`)
	_, err := dedup.Table{}.Purge(t.Context(), pool)
	require.Error(t, err)
	_, err = dedup.Cleaner{}.Count(t.Context(), pool)
	require.Error(t, err)
	_, err = pool.Exec(t.Context(), dedup.Table{}.PurgeSQL(), pgx.QueryExecModeSimpleProtocol)
	require.Error(t, err)
	require.Equal(t, 4, number(t, pool, `SELECT count(*) FROM processed_events`))
	for _, table := range []dedup.Table{{}, {Layout: dedup.Hash(2)}} {
		for _, p := range problems(t, pool, table) {
			require.True(t, strings.HasPrefix(p.Fix, "--"), "a fix that drops the table, with its keys: %s", p.Fix)
		}
	}
	hash := dedup.Table{Name: "hashed", Layout: dedup.Hash(2)}
	migrated(t, pool, hash)
	_, err = dedup.Table{Name: "hashed", Layout: dedup.Weekly}.Maintain(t.Context(), pool)
	require.Error(t, err, "it would never be purged")
}

// What Maintain has not made is not its own to drop, and is named.
func TestMaintainLeavesOthersPartitions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	first, _, _ := monday(t, pool, -5)
	second, _, _ := monday(t, pool, -4)
	exec1(t, pool, `ALTER TABLE `+first+` RENAME TO by_hand`)
	exec1(t, pool, `COMMENT ON TABLE `+second+` IS NULL`) // as pg_dump --no-comments leaves it
	for range 2 {
		stats, err := shorter.Maintain(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, []string{"public.by_hand"}, stats.Kept)
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM processed_events WHERE key = 'expired'`))
	require.Equal(t, kept(t, pool), count(t, pool, tables), "the one without a comment is gone")
}

// A week to come that has lost its partition held no key, and is made again; so is one before a partition made by hand.
func TestMaintainMakesWeeksToCome(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	gone, _, _ := monday(t, pool, 2)
	exec1(t, pool, `DROP TABLE `+gone)
	_, from, to := monday(t, pool, 20)
	exec1(t, pool, `CREATE TABLE far PARTITION OF processed_events FOR VALUES FROM ('`+from+`') TO ('`+to+`')`)
	stats, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Made, 7)
	require.NoError(t, dedup.Verify(t.Context(), pool, shorter))
}

// A role may have any isolation level by default: a row that somebody changes just now does not end the block.
func TestPurgeSQLAtEveryLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			migrated(t, pool)
			fill(t, pool, fillExpired, 2_000)
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = tx.Exec(t.Context(), `DELETE FROM processed_events WHERE key = 'k1000'`)
			require.NoError(t, err)
			cfg := pool.Config().ConnConfig.Copy()
			cfg.RuntimeParams["default_transaction_isolation"] = level
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer conn.Close(context.Background())
			done := make(chan error, 1)
			go func() {
				sql := strings.Replace(dedup.Table{}.PurgeSQL(), "'100ms'", "'30s'", 1)
				_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
				done <- err
			}()
			require.Eventually(t, func() bool {
				return number(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
			}, 20*time.Second, 2*time.Millisecond)
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, <-done)
			require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events WHERE key IN ('k1', 'k2000')`),
				"the other batches")
		})
	}
}

// Migrate may meet a Maintain that makes the same partitions.
func TestMigrateMeetsMaintain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for range 4 {
		neglected(t, pool)
		done := make(chan error, 4)
		for i := range 4 {
			go func() {
				if i%2 == 0 {
					done <- dedup.Migrate(t.Context(), pool, weekly)
					return
				}
				_, err := weekly.Maintain(t.Context(), pool)
				done <- err
			}()
		}
		for range 4 {
			require.NoError(t, <-done)
		}
	}
}

// Whatever a role has for defaults, Maintain finds the same, and who may not is told why.
func TestMaintainUnderOddDefaults(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, odd := range []map[string]string{
		{
			"default_transaction_isolation": "serializable", "default_transaction_read_only": "off",
			"intervalstyle": "sql_standard", "timezone": "Pacific/Kiritimati",
		},
		{
			"default_transaction_isolation": "repeatable read", "lock_timeout": "20ms", "intervalstyle": "postgres_verbose",
			"timezone": "America/Los_Angeles",
		},
		{
			"standard_conforming_strings": "off", "datestyle": "SQL, DMY", "intervalstyle": "iso_8601",
			"statement_timeout": "20s",
		},
	} {
		neglected(t, pool)
		cfg := pool.Config().ConnConfig.Copy()
		for name, value := range odd {
			cfg.RuntimeParams[name] = value
		}
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		stats, err := shorter.Maintain(t.Context(), conn)
		require.NoError(t, err, "%v", odd)
		require.Len(t, stats.Made, 6, "%v", odd)
		require.Len(t, stats.Dropped, 14-kept(t, pool), "%v", odd)
		require.NoError(t, dedup.Verify(t.Context(), conn, shorter), "%v", odd)
		wantMended(t, pool)
	}
	neglected(t, pool)
	asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO `, func(conn *pgxpool.Conn) {
		_, err := shorter.Maintain(t.Context(), conn)
		require.Equal(t, "42501", pgerr.Code(err))
		require.ErrorContains(t, err, "the partitions end with the week of")
	})
	require.Equal(t, 4, number(t, pool, `SELECT count(*) FROM processed_events`))
}

// Another run makes a partition of what this one is about to drop: then it is no longer to be dropped at once, which
// would make every claim wait for the longest open transaction.
func TestMaintainDropsNoPartition(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	leaf, from, to := monday(t, pool, -5)
	exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+leaf)
	exec1(t, pool, `COMMENT ON TABLE `+leaf+` IS 'pgonce dedup partition, week `+from+`, being dropped'`)
	claim, err := pool.Begin(t.Context()) // a handler at work
	require.NoError(t, err)
	defer func() { _ = claim.Rollback(context.Background()) }()
	_, err = claim.Exec(t.Context(), `UPDATE processed_events SET attempt = 1 WHERE key = 'today''s'`)
	require.NoError(t, err)
	other, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Rollback(context.Background()) }()
	_, err = other.Exec(t.Context(), `LOCK TABLE `+leaf+` IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { _, err := shorter.Maintain(t.Context(), pool); done <- err }()
	waiting := func(mode, table string) int {
		return number(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted AND ($1 = '' OR mode = $1) AND relation = $2::regclass`, mode, table)
	}
	require.Eventually(t, func() bool { return waiting("", leaf) == 1 }, 20*time.Second, 2*time.Millisecond)
	_, err = other.Exec(t.Context(),
		`ALTER TABLE processed_events ATTACH PARTITION `+leaf+` FOR VALUES FROM ('`+from+`') TO ('`+to+`')`)
	require.NoError(t, err)
	require.NoError(t, other.Commit(t.Context()))
	pending := func() int { return number(t, pool, `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`) }
	require.Eventually(t, func() bool {
		return pending() == 1 || waiting("AccessExclusiveLock", "processed_events") == 1
	}, 20*time.Second, 2*time.Millisecond)
	require.Equal(t, 1, pending(), "it is detached first, for which nobody waits")
	require.NoError(t, claim.Rollback(t.Context()))
	require.NoError(t, <-done)
	wantMended(t, pool)
}

// A partition stays for a day after its last key has expired, whatever day of the week it is.
func TestMaintainGivesADaysGrace(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	first, _, _ := monday(t, pool, -5)
	second, _, end := monday(t, pool, -4)
	var over float64 // how long the second week has been over, in seconds
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT extract(epoch FROM now() AT TIME ZONE 'UTC' - $1::text::timestamp)::float8`, end).Scan(&over))
	for _, tc := range []struct {
		expired time.Duration // how long ago its last key has expired
		dropped []string
	}{
		{-time.Hour, []string{"public." + first}},
		{23 * time.Hour, nil},
		{25 * time.Hour, []string{"public." + second}},
	} {
		table := dedup.Table{Layout: dedup.Weekly, Retention: time.Duration(over*float64(time.Second)) - tc.expired}
		stats, err := table.Maintain(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, tc.dropped, stats.Dropped, "%v after its last key has expired", tc.expired)
	}
}
