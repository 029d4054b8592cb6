package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// long asks for the long form of the tests that have one.
var long = os.Getenv("PGONCE_LONG") != ""

// fill inserts n rows of the default table, of which each fifth has expired, or all of them.
const (
	fillFifth = `INSERT INTO processed_events (source, operation, key, processed_at)
		SELECT 's', 'o', 'k' || i, now() - CASE WHEN i % 5 = 0 THEN interval '40 days' ELSE interval '34 days' END
		  FROM generate_series(1, $1::int) AS i`
	fillExpired = `INSERT INTO processed_events (source, operation, key, processed_at)
		SELECT 's', 'o', 'k' || i, now() - interval '40 days' FROM generate_series(1, $1::int) AS i`
)

func migrated(t *testing.T, pool *pgxpool.Pool, tables ...dedup.Table) {
	t.Helper()
	require.NoError(t, dedup.Migrate(t.Context(), pool, tables...))
}

func fill(t *testing.T, pool *pgxpool.Pool, sql string, n int) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, n)
	require.NoError(t, err)
}

func number(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// The rows are all that a table can hold, by age and state. Only what is done and has left the window goes.
func TestPurge(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		for _, table := range []dedup.Table{
			{},
			{Name: `"My.App"."a""b'c"`, Retention: 48 * time.Hour},
			{Name: "$pgonce$", Retention: 30 * time.Hour},
		} {
			t.Run(fmt.Sprintf("%v/%s", mode, table.Name), func(t *testing.T) {
				t.Parallel()
				cfg := pgtest.Config(t)
				cfg.ConnConfig.DefaultQueryExecMode = mode
				pool := pgtest.PoolConfig(t, cfg)
				exec1(t, pool, `CREATE SCHEMA "My.App"`)
				migrated(t, pool, table)
				stay, expire := insertKinds(t, pool, table)
				counted, err := dedup.Cleaner{Table: table}.Count(t.Context(), pool)
				require.NoError(t, err)
				require.EqualValues(t, expire, counted.Deleted)
				stats, err := table.Purge(t.Context(), pool)
				require.NoError(t, err)
				require.EqualValues(t, expire, stats.Deleted)
				require.Zero(t, stats.Skipped)
				require.Positive(t, stats.Took)
				require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM `+quoted(table)+` WHERE key LIKE 'stays%'`))
				require.Equal(t, stay, number(t, pool, `SELECT count(*) FROM `+quoted(table)))
				stats, err = table.Purge(t.Context(), pool)
				require.NoError(t, err)
				require.Zero(t, stats.Deleted)
			})
		}
	}
}

func quoted(t dedup.Table) string {
	switch {
	case t.Name == "":
		return "processed_events"
	case strings.HasPrefix(t.Name, `"`):
		return t.Name
	}
	return `"` + t.Name + `"`
}

// insertKinds inserts a row for every state and age, and says how many stay and how many go.
func insertKinds(t *testing.T, pool *pgxpool.Pool, table dedup.Table) (stay, expire int) {
	t.Helper()
	window := table.Retention
	if window == 0 {
		window = dedup.DefaultRetention
	}
	past := func(share float64) time.Duration { return time.Duration(float64(window) * share) }
	for age, expired := range map[time.Duration]bool{
		0: false, -time.Hour: false, past(0.5): false, past(0.98): false, window: false, past(1.0005): false,
		past(1.02): true, past(2): true, past(20): true,
	} {
		for state, done := range map[string]bool{
			"NULL, false, 1, NULL": true, "NULL, true, 1, 'why'": true, "NULL, false, 7, 'value'": true,
			"clock_timestamp() + interval '1 hour', false, 1, NULL": false, "'infinity', false, 2, NULL": false,
			"clock_timestamp() - interval '100 days', false, 1, NULL": false, "'-infinity', false, 2, NULL": false,
		} {
			name := fmt.Sprintf("stays %d %s", age, state)
			if expired && done {
				name = fmt.Sprintf("goes %d %s", age, state)
				expire++
			} else {
				stay++
			}
			exec1(t, pool, fmt.Sprintf(`INSERT INTO %s (source, operation, key, processed_at, lease_until, failed, attempt, value)
				SELECT 's', 'o', '%s', now() - %d * interval '1 microsecond', %s`,
				quoted(table), strings.ReplaceAll(name, "'", "''"), age.Microseconds(),
				strings.NewReplacer("'why'", `'why'::bytea`, "'value'", `'value'::bytea`,
					"'infinity'", "timestamptz 'infinity'", "'-infinity'", "timestamptz '-infinity'").Replace(state)))
		}
	}
	return stay, expire
}

// watched logs how many rows each transaction deletes.
func watched(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec1(t, pool, `CREATE TABLE deletes (n int, xid xid8);
		CREATE FUNCTION log_delete() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO deletes SELECT count(*), pg_current_xact_id() FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER watch AFTER DELETE ON processed_events REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION log_delete()`)
}

func TestPurgeKeepsToItsBatches(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	watched(t, pool)
	fill(t, pool, fillFifth, 20_000)
	fill(t, pool, strings.Replace(fillExpired, "'k'", "'l'", 1), 5_000)
	stats, err := dedup.Cleaner{Batch: 200, Rest: -1}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 9_000, stats.Deleted)
	require.Equal(t, 16_000, number(t, pool, `SELECT count(*) FROM processed_events`))
	require.Equal(t, 9_000, number(t, pool, `SELECT sum(n) FROM deletes`))
	most := number(t, pool, `SELECT max(n)::int FROM (SELECT sum(n) AS n FROM deletes GROUP BY xid) AS d`)
	require.LessOrEqual(t, most, 200)
	// Not one by one either.
	require.Less(t, number(t, pool, `SELECT count(*) FROM deletes`), 3*9_000/200)
	require.Zero(t, number(t, pool, `SELECT count(*) FROM deletes WHERE n = 0`))
}

// A purge leaves nothing in the session, so that a pooler may give each of its transactions another one.
func TestPurgeLeavesTheSessionAlone(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "77s"
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool := pgtest.PoolConfig(t, cfg)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(),
		`BEGIN READ WRITE; INSERT INTO processed_events (source, operation, key, processed_at) SELECT 's', 'o', 'k' || i, '2001-01-01' FROM generate_series(1, 3000) AS i; COMMIT`)
	require.NoError(t, err)
	stats, err := dedup.Table{}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 3000, stats.Deleted)
	var timeout, isolation string
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')`).Scan(&timeout, &isolation))
	require.Equal(t, "77s", timeout)
	require.Equal(t, "serializable", isolation)
	require.Zero(t, number(t, pool,
		`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`))
	require.Zero(t, pool.Stat().AcquiredConns())
}

// The lock holds others off during the rest, too, and the one who rests holds neither a row nor a snapshot.
func TestPurgeRunsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	fill(t, pool, fillExpired, 5_000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stats dedup.Stats
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { stats, err = dedup.Cleaner{Batch: 100, Rest: 1_000_000}.Purge(ctx, pool) })
	resting := `SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		 WHERE l.locktype = 'advisory' AND a.datname = current_database() AND a.state = 'idle in transaction' AND a.state_change < clock_timestamp() - interval '100 ms'`
	require.Eventually(t, func() bool {
		return number(t, pool, resting) == 1 && number(t, pool, `SELECT count(*) FROM processed_events`) < 5_000
	}, 20*time.Second, 5*time.Millisecond)
	require.Zero(t, number(t, pool,
		strings.Replace(resting, "l.locktype = 'advisory'",
			"(a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL OR l.mode LIKE 'Row%')", 1)))
	other, otherErr := dedup.Cleaner{Batch: 7, Rest: -1}.Purge(t.Context(), pool)
	require.ErrorIs(t, otherErr, dedup.ErrBusy)
	require.Zero(t, other.Deleted)
	require.NotContains(t, runBlock(t, pool, dedup.Table{}), "pgonce: 5", "the block of SQL holds off, too")
	cancel()
	wg.Wait()
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 5_000-number(t, pool, `SELECT count(*) FROM processed_events`), stats.Deleted)
	require.Positive(t, stats.Deleted)
	again, err := dedup.Cleaner{Rest: -1}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 5_000, stats.Deleted+again.Deleted)
}

// Several at a time, again and again: what one does not, another does, and every row is deleted and counted once.
func TestPurgesTogether(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	fill(t, pool, fillFifth, 20_000)
	var mu sync.Mutex
	var sum int64
	busy := 0
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				stats, err := dedup.Cleaner{Batch: 50, Rest: -1}.Purge(t.Context(), pool)
				mu.Lock()
				sum += stats.Deleted
				switch {
				case errors.Is(err, dedup.ErrBusy):
					busy++
				case err != nil:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	last, err := dedup.Table{}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 4_000, sum+last.Deleted)
	require.Positive(t, busy)
	require.Equal(t, 16_000, number(t, pool, `SELECT count(*) FROM processed_events`))
}

// A partitioned table is purged as a whole, with rights on the table alone.
func TestPurgePartitions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool, dedup.Table{Name: "model"})
	exec1(t, pool, `CREATE TABLE processed_events (LIKE model INCLUDING ALL) PARTITION BY HASH (key)`)
	for i := range 5 {
		exec1(t, pool, fmt.Sprintf(`CREATE TABLE leaf%d PARTITION OF processed_events FOR VALUES WITH (MODULUS 5, REMAINDER %d)`, i, i))
	}
	fill(t, pool, fillFifth, 20_000)
	asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO `, func(conn *pgxpool.Conn) {
		counted, err := dedup.Cleaner{}.Count(t.Context(), conn)
		require.NoError(t, err)
		require.EqualValues(t, 4_000, counted.Deleted)
		stats, err := dedup.Cleaner{Rest: -1}.Purge(t.Context(), conn)
		require.NoError(t, err)
		require.EqualValues(t, 4_000, stats.Deleted)
	})
	require.Equal(t, 16_000, number(t, pool, `SELECT count(*) FROM processed_events`))
	fill(t, pool, strings.Replace(fillExpired, "'k'", "'l'", 1), 3_000)
	require.Contains(t, runBlock(t, pool, dedup.Table{}), "pgonce: 3000 keys deleted")
	exec1(t, pool, `CREATE TABLE bare (LIKE model INCLUDING ALL) PARTITION BY HASH (key)`)
	stats, err := dedup.Table{Name: "bare"}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.Zero(t, stats.Deleted)
}

// asRole runs f as a role that has only what grant gives.
func asRole(t *testing.T, pool *pgxpool.Pool, grant string, f func(conn *pgxpool.Conn)) {
	t.Helper()
	role := "least_" + strings.ToLower(strings.NewReplacer("/", "_").Replace(pool.Config().ConnConfig.Database))
	exec1(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), `DROP OWNED BY `+role)
		_, _ = pool.Exec(context.Background(), `DROP ROLE `+role)
	})
	exec1(t, pool, grant+role)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET ROLE `+role)
	require.NoError(t, err)
	f(conn)
	_, err = conn.Exec(t.Context(), `RESET ROLE`)
	require.NoError(t, err)
}

func TestPurgeNeedsFewRights(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	fill(t, pool, fillFifth, 1_000)
	exec1(t, pool, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	asRole(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON processed_events TO `, func(conn *pgxpool.Conn) {
		stats, err := dedup.Table{}.Purge(t.Context(), conn)
		require.NoError(t, err)
		require.EqualValues(t, 200, stats.Deleted)
		_, err = conn.Exec(t.Context(), dedup.Table{}.PurgeSQL())
		require.NoError(t, err)
	})
}

// A purge that somebody else's old snapshot sees nothing of; and one between whose batches the table grows and shrinks.
func TestPurgeBesideOthers(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	free := pgtest.PoolConfig(t, cfg.Copy())
	migrated(t, free)
	fill(t, free, fillFifth, 3_000)
	fill(t, free, strings.Replace(fillExpired, "'k'", "'l'", 1), 3_000)
	old, err := free.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	var n int
	require.NoError(t, old.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&n))
	deletes := 0
	script := &faultconn.Script{When: faultconn.Containing("DELETE FROM"), Repeat: true, Do: func(faultconn.Message) {
		if deletes++; deletes%3 != 0 {
			return
		}
		_, err := free.Exec(context.Background(), `VACUUM processed_events`)
		if err == nil {
			_, err = free.Exec(context.Background(),
				`INSERT INTO processed_events (source, operation, key) SELECT 's', 'new', $1::text || i FROM generate_series(1, 1000) AS i`, fmt.Sprint(deletes))
		}
		if err != nil {
			t.Error(err)
		}
	}}
	script.Attach(&cfg.ConnConfig.Config)
	pool := pgtest.PoolConfig(t, cfg)
	stats, err := dedup.Cleaner{Batch: 300, Rest: -1}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 3_600, stats.Deleted)
	require.Greater(t, deletes, 6)
	require.NoError(t, old.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&n))
	require.Equal(t, 6_000, n)
	require.NoError(t, old.Rollback(t.Context()))
	require.Equal(t, 2_400, number(t, free, `SELECT count(*) FROM processed_events WHERE operation = 'o'`))
	require.Equal(t, deletes/3*1000, number(t, free, `SELECT count(*) FROM processed_events WHERE operation = 'new'`))

	// All at the end of the table, so that VACUUM cuts it off behind the purge's back.
	exec1(t, free, `TRUNCATE processed_events`)
	fill(t, free, fillExpired, 20_000)
	script.Pause()
	exec1(t, free, `DELETE FROM processed_events WHERE ctid >= '(100,0)'`)
	// Transactions of other databases count for the snapshot of the purge, and that keeps what VACUUM may remove.
	deleted := number(t, free, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8`)
	require.Eventually(t, func() bool {
		return number(t, free, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8`) >= deleted
	}, time.Minute, 5*time.Millisecond, "a transaction that is older than the deletion is still open")
	size := number(t, free, `SELECT pg_relation_size('processed_events')`)
	cut := false
	script = &faultconn.Script{When: faultconn.Containing("pg_try_advisory"), N: 3, Do: func(faultconn.Message) {
		// Somebody who looks at the table for a moment, as an ANALYZE of the server's own does, keeps VACUUM from cutting it.
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			var now int
			_, err := free.Exec(context.Background(), `VACUUM (TRUNCATE) processed_events`)
			if err == nil {
				err = free.QueryRow(context.Background(), `SELECT pg_relation_size('processed_events')`).Scan(&now)
			}
			if cut = err == nil && now < size; cut || err != nil {
				return
			}
		}
	}}
	cfg2 := free.Config()
	script.Attach(&cfg2.ConnConfig.Config)
	before := number(t, free, `SELECT count(*) FROM processed_events`)
	stats, err = dedup.Cleaner{Rest: -1}.Purge(t.Context(), pgtest.PoolConfig(t, cfg2))
	require.NoError(t, err)
	require.True(t, cut)
	require.EqualValues(t, before, stats.Deleted)
	require.Less(t, number(t, free, `SELECT pg_relation_size('processed_events')`), size)
}

// A row that somebody has locked holds up neither the purge for long nor, through it, the claims of its neighbours.
func TestPurgeGivesWay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	fill(t, pool, fillExpired, 2_000)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM processed_events WHERE key = 'k1000' FOR UPDATE`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stats, err := dedup.Cleaner{Batch: 100, Rest: -1}.Purge(ctx, pool)
	if err != nil {
		_ = tx.Rollback(t.Context())
	}
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Skipped)
	left := number(t, pool, `SELECT count(*) FROM processed_events`)
	require.EqualValues(t, 2_000-left, stats.Deleted)
	require.LessOrEqual(t, left, 200, "no more than a page, where that holds more than a batch")
	require.Contains(t, runBlock(t, pool, dedup.Table{}), "keys deleted", "the block of SQL gives way, too")
	require.Equal(t, 1, number(t, pool, `SELECT count(*) FROM processed_events WHERE key = 'k1000'`))
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = dedup.Table{}.Purge(t.Context(), pool)
	require.NoError(t, err)
	require.Zero(t, number(t, pool, `SELECT count(*) FROM processed_events`))
}

// However a purge ends, what it says was deleted is, nothing else but at most one batch more, and the next one goes on.
func TestPurgeCut(t *testing.T) {
	t.Parallel()
	base := pgtest.Config(t)
	free := pgtest.PoolConfig(t, base.Copy())
	migrated(t, free)
	purge := func(ctx context.Context, s *faultconn.Script) (dedup.Stats, error) {
		cfg := base.Copy()
		cfg.MaxConns = 1
		s.Attach(&cfg.ConnConfig.Config)
		pool := pgtest.PoolConfig(t, cfg)
		defer pool.Close()
		return dedup.Cleaner{Batch: 100, Rest: -1}.Purge(ctx, pool)
	}
	load := func() {
		exec1(t, free, `TRUNCATE processed_events`)
		fill(t, free, fillFifth, 1_500)
	}
	left := func() int64 {
		return int64(number(t, free, `SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '36 days'`))
	}
	load()
	whole := &faultconn.Script{}
	stats, err := purge(t.Context(), whole)
	require.NoError(t, err)
	require.EqualValues(t, 300, stats.Deleted)
	step := 29 // the long form cuts at every message
	if long {
		step = 1
	}
	for _, from := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
		for _, cancels := range []bool{false, true} {
			n := 0
			for n = 1; n <= whole.Count(from); n += step {
				load()
				ctx, cancel := context.WithCancel(t.Context())
				s := &faultconn.Script{From: from, N: n, Mode: faultconn.DropBefore}
				if cancels {
					s.Mode, s.Do = faultconn.Pass, func(m faultconn.Message) { cancel(); m.AwaitDeadline() }
				}
				stats, err := purge(ctx, s)
				cancel()
				if err == nil {
					continue // after the last statement of all
				}
				if cancels {
					require.ErrorIs(t, err, context.Canceled, "%v", s)
				}
				require.Eventually(t, func() bool { // a server that still works on what was cut off
					return number(t, free, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 0
				}, 10*time.Second, time.Millisecond)
				gone := 300 - left()
				require.GreaterOrEqual(t, gone, stats.Deleted, "%v", s)
				require.LessOrEqual(t, gone, stats.Deleted+100, "%v", s)
				require.Equal(t, 1_200, number(t, free,
					`SELECT count(*) FROM processed_events WHERE processed_at > now() - interval '36 days'`))
				stats, err = dedup.Cleaner{Rest: -1}.Purge(t.Context(), free)
				require.NoError(t, err)
				require.EqualValues(t, 300-gone, stats.Deleted)
			}
			require.Greater(t, n, 2*step, "or this proves nothing")
		}
	}
}

func TestPurgeRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec1(t, pool, `CREATE VIEW v AS SELECT 1`)
	for _, c := range []dedup.Cleaner{
		{Table: dedup.Table{Name: "a.b.c"}},
		{Table: dedup.Table{Retention: -1}},
		{Batch: -1},
		{Interval: -1},
		{},
		{Table: dedup.Table{Name: "v"}},
		{Table: dedup.Table{Name: "no.such"}},
	} {
		_, err := c.Purge(t.Context(), pool)
		require.Error(t, err)
		require.NotErrorIs(t, err, dedup.ErrBusy)
		_, err = c.Count(t.Context(), pool)
		require.Error(t, err)
	}
	require.Panics(t, func() { _ = dedup.Table{Name: "a.b.c"}.PurgeSQL() })
	require.Panics(t, func() { _ = weekly.PurgeSQL() })
	require.Error(t, dedup.Cleaner{Batch: -1}.Validate())
	require.NoError(t, dedup.Cleaner{}.Validate())
	require.Error(t, dedup.Cleaner{Interval: -1}.Run(t.Context(), pool))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := dedup.Table{}.Purge(ctx, pool)
	require.ErrorIs(t, err, context.Canceled)
}
