package dedup_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// shorter is the same table with a window that ends within its partitions: two weeks or three are expired.
var shorter = dedup.Table{Layout: dedup.Weekly, Retention: 8 * 24 * time.Hour}

// put inserts a key of the week n weeks from now, with more columns where given.
func put(t *testing.T, pool *pgxpool.Pool, key string, n int, more string) {
	t.Helper()
	columns, values, _ := strings.Cut(more, "=")
	if more != "" {
		columns, values = ", "+columns, ", "+values
	}
	_, err := pool.Exec(t.Context(), `
		INSERT INTO processed_events (source, operation, key, event_time, bucket`+columns+`)
		SELECT 's', 'o', $1, w AT TIME ZONE 'UTC', w::date`+values+`
		  FROM CAST(date_trunc('week', now() AT TIME ZONE 'UTC') + $2::int * interval '7 days' AS timestamp) AS w`, key, n)
	require.NoError(t, err)
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

// kept is how many partitions are left when shorter has been maintained: from the week in which its window began,
// less the grace, to 8 weeks ahead.
func kept(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return count(t, pool, `
		SELECT 9 + (date_trunc('week', now() AT TIME ZONE 'UTC')::date - date_trunc('week', now() AT TIME ZONE 'UTC' - interval '9 days')::date) / 7`)
}

const tables = `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'processed_events%'`

// wantMended wants the table as a Maintain that nothing has disturbed would have left it.
func wantMended(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.NoError(t, dedup.Verify(t.Context(), pool, shorter))
	require.Len(t, leaves(t, pool), kept(t, pool))
	require.Equal(t, kept(t, pool), count(t, pool, tables), "no table is left over")
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM processed_events`), "the keys of the window are all there")
}

// neglected returns a table that nobody has maintained for a while: two weeks and more have expired, and six are
// missing.
func neglected(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec1(t, pool, `DROP TABLE IF EXISTS processed_events`)
	require.NoError(t, dedup.Migrate(t.Context(), pool, weekly))
	for n := 3; n <= 8; n++ {
		leaf, _, _ := monday(t, pool, n)
		exec1(t, pool, `DROP TABLE `+leaf)
	}
	put(t, pool, "expired", -5, "")
	put(t, pool, "too", -4, "")
	put(t, pool, "in the window", -1, "")
	put(t, pool, "today's", 0, "")
}

func TestMaintain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	before := leaves(t, pool)
	stats, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Made, 6)
	require.Equal(t, 14-kept(t, pool), len(stats.Dropped), "%v", before)
	require.Contains(t, stats.Dropped[0], before[0])
	require.Empty(t, stats.Kept)
	wantMended(t, pool)
	stats, err = shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, stats.Made)
	require.Empty(t, stats.Dropped)

	// On one connection, of a role's own, and a table with an odd name.
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	exec1(t, pool, `CREATE SCHEMA "a.b"`)
	odd := dedup.Table{Name: `"a.b"."T%s'"`, Layout: dedup.Weekly}
	require.NoError(t, dedup.Migrate(t.Context(), conn, odd))
	odd.Retention = shorter.Retention
	stats, err = odd.Maintain(t.Context(), conn)
	require.NoError(t, err)
	require.NotEmpty(t, stats.Dropped)
	require.NoError(t, dedup.Verify(t.Context(), conn, odd))
	_, err = dedup.Table{Name: "none", Layout: dedup.Weekly}.Maintain(t.Context(), conn)
	require.ErrorContains(t, err, "dedup.Migrate")
}

// A retention that gets longer, and a partition that somebody has dropped, bring no empty partitions of the past, in
// which keys would run again. Where nothing has been maintained for long there is no gap.
func TestMaintainMakesNoPast(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	gone, _, _ := monday(t, pool, -2)
	exec1(t, pool, `DROP TABLE `+gone)
	longer := weekly
	longer.Retention = 100 * 24 * time.Hour
	stats, err := longer.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Made, 6)
	require.Equal(t, "partition missing", problems(t, pool, longer)[0].Kind.String())
	require.Len(t, problems(t, pool, longer), 1)

	for n := -3; n <= 8; n++ {
		leaf, _, _ := monday(t, pool, n)
		exec1(t, pool, `DROP TABLE IF EXISTS `+leaf)
	}
	_, err = weekly.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.NoError(t, dedup.Verify(t.Context(), pool, weekly))
	require.Len(t, leaves(t, pool), 14)
}

// A partition that holds what is not done is kept, and so is one that was detached already.
func TestMaintainKeepsUndone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	put(t, pool, "reserved", -5, "lease_until=now() + interval '1 hour'")
	put(t, pool, "unfinished", -4, "lease_until='-infinity'")
	first, from, to := monday(t, pool, -5)
	second, _, _ := monday(t, pool, -4)
	exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+first)
	exec1(t, pool, `COMMENT ON TABLE `+first+` IS 'pgonce dedup partition, week `+from+`, being dropped'`)
	// of the entry that makes it a partition: another one, had it been detached for a moment
	attached := func() (xmin string) {
		require.NoError(t, pool.QueryRow(t.Context(),
			`SELECT xmin::text FROM pg_inherits WHERE inhrelid = $1::text::regclass`, second).Scan(&xmin))
		return xmin
	}
	before := attached()
	for range 2 {
		stats, err := shorter.Maintain(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, before, attached(), "never detached: its keys would be unseen meanwhile, and run again")
		require.ElementsMatch(t, []string{"public." + first, "public." + second}, stats.Kept)
	}
	require.Equal(t, 6, count(t, pool, `SELECT count(*) FROM processed_events`), to)
	exec1(t, pool, `UPDATE processed_events SET lease_until = NULL`)
	stats, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Dropped, 2)
	wantMended(t, pool)
}

// What somebody has detached by hand is an archive; what Maintain has detached before it was killed is dropped.
func TestMaintainKeepsArchive(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	archive, _, _ := monday(t, pool, -5)
	cut, from, _ := monday(t, pool, -4)
	exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+archive)
	exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+cut)
	exec1(t, pool, `COMMENT ON TABLE `+cut+` IS 'pgonce dedup partition, week `+from+`, being dropped'`)
	for range 2 {
		_, err := shorter.Maintain(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM `+archive+` WHERE key = 'expired'`))
		require.Equal(t, kept(t, pool)+1, count(t, pool, tables), "only what Maintain had detached is gone")
	}
}

// Several at once, in any order, and with handlers in between.
func TestMaintainAtOnce(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.MaxConns = 16
	pool := pgtest.PoolConfig(t, cfg)
	for range 3 {
		neglected(t, pool)
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := map[string]int{}
		for range 5 {
			wg.Go(func() {
				stats, err := shorter.Maintain(t.Context(), pool)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, name := range stats.Made {
					made[name]++
				}
			})
		}
		wg.Wait()
		require.Len(t, made, 6)
		for name, n := range made {
			require.Equal(t, 1, n, name)
		}
		wantMended(t, pool)
	}
}

// Whatever a run was killed at, the next one mends it. Before each statement, and after it, the session ends.
func TestMaintainKilled(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	run := func(s *faultconn.Script) error {
		cfg, err := pgx.ParseConfig(pool.Config().ConnString())
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a statement is one message
		s.Attach(&cfg.Config)
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		_, err = shorter.Maintain(t.Context(), conn)
		return err
	}
	neglected(t, pool)
	counting := &faultconn.Script{When: faultconn.Statement}
	require.NoError(t, run(counting))
	wantMended(t, pool)
	total := counting.Matches()
	require.Greater(t, total, 30)
	// The short form takes a few of the statements, others each time.
	step := 1
	if os.Getenv("PGONCE_LONG") == "" {
		step = total / 3
	}
	seed := rand.Uint64()
	if s := os.Getenv("PGONCE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	broken, first := 0, 1+rand.New(rand.NewPCG(seed, 0)).IntN(step)
	t.Logf("%d statements, every %dth from %d on; to replay: PGONCE_SEED=%d go test ./dedup -run '^%s$'", total, step,
		first, seed, t.Name())
	for n := first; n <= total; n += step {
		for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply} {
			neglected(t, pool)
			s := &faultconn.Script{When: faultconn.Statement, N: n, Mode: mode}
			err := run(s)
			if s.Hits() == 0 {
				continue
			}
			require.Error(t, err, "%v", s)
			broken++
			_, err = shorter.Maintain(t.Context(), pool)
			require.NoError(t, err, "after %v at statement %d", mode, n)
			wantMended(t, pool)
		}
	}
	t.Logf("%d cuts", broken)
	require.Greater(t, broken, total/step)
}

// A detaching that is ended while it waits leaves the partition pending, which only FINALIZE mends. Claims go on
// meanwhile.
func TestMaintainPending(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `INSERT INTO processed_events (source, operation, key, event_time, bucket)
		SELECT 's', 'o', 'held', now(), date_trunc('week', now() AT TIME ZONE 'UTC')::date`)
	require.NoError(t, err)
	const pending = `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := shorter.Maintain(ctx, pool); done <- err }()
	require.Eventually(t, func() bool { return count(t, pool, pending) == 1 }, 20*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Equal(t, 1, count(t, pool, pending))
	require.Equal(t, "partition half detached", problems(t, pool, shorter)[0].Kind.String())
	put(t, pool, "meanwhile", 0, "")
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = pool.Exec(t.Context(), `DELETE FROM processed_events WHERE key = 'meanwhile'`)
	require.NoError(t, err)
	_, err = shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	wantMended(t, pool)
}

// Made but not attached, and detached by hand in the middle of the window: attached again, with their keys.
func TestMaintainAttaches(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	made, from, _ := monday(t, pool, 3)
	exec1(t, pool, `CREATE TABLE `+made+` (LIKE processed_events INCLUDING ALL)`)
	exec1(t, pool, `COMMENT ON TABLE `+made+` IS 'pgonce dedup partition, week `+from+`'`)
	detached, _, _ := monday(t, pool, -1)
	exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+detached)
	stats, err := shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, stats.Made, 7)
	wantMended(t, pool)
}

// Where no partition can be made, the error says until when there are some.
func TestMaintainSaysUntilWhen(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	neglected(t, pool)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE processed_events IN SHARE UPDATE EXCLUSIVE MODE`) // as a VACUUM's
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = shorter.Maintain(ctx, pool)
	_, last, _ := monday(t, pool, 2)
	require.ErrorContains(t, err, "the week of "+last)
	require.ErrorContains(t, err, "processed_events")
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = shorter.Maintain(t.Context(), pool)
	require.NoError(t, err)
}
