package claim

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/internal/schema"
)

func TestMain(m *testing.M) { pgtest.MainLazy(m) }

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), schema.DDL(schema.Table{Name: pg.Name{Table: pg.DefaultTable}}))
	require.NoError(t, err)
	return conn
}

// Every statement is one that this server takes.
func TestPrepare(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	for _, sql := range slices.Concat(defaultSQL.Texts(), defaultSpread.Texts(), schema.Texts()) {
		_, err := conn.Prepare(t.Context(), "", sql)
		require.NoError(t, err, sql)
	}
}

func weeklyConn(t *testing.T) (*pgx.Conn, SQL) {
	t.Helper()
	conn := connect(t)
	ddl := schema.DDL(schema.Table{Name: pg.Name{Table: "weekly"}, Layout: schema.Weekly})
	_, err := conn.Exec(t.Context(), ddl+`
		CREATE TABLE w1 PARTITION OF weekly FOR VALUES FROM ('2026-11-23') TO ('2026-11-30');
		CREATE TABLE w2 PARTITION OF weekly FOR VALUES FROM ('2026-11-30') TO ('2026-12-07')`)
	require.NoError(t, err)
	sql, err := For("weekly", true, false)
	require.NoError(t, err)
	return conn, sql
}

func TestPrepareWeekly(t *testing.T) {
	t.Parallel()
	conn, sql := weeklyConn(t)
	for _, text := range sql.Texts() {
		_, err := conn.Prepare(t.Context(), "", text)
		require.NoError(t, err, text)
		if strings.Contains(text, "\n WHERE key OPERATOR") {
			require.Contains(t, text, "AND bucket OPERATOR(pg_catalog.=) ", "a statement that names a row names its partition")
		}
	}
}

// The planner knows the partition: a lookup locks no other one, as the ones that are just being dropped.
func TestWeeklyPrunes(t *testing.T) {
	t.Parallel()
	conn, sql := weeklyConn(t)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for locked, at := range map[string]time.Time{"w2": at, "w1": at.Add(-time.Microsecond)} {
		nested, err := tx.Begin(t.Context())
		require.NoError(t, err)
		_, err = nested.Exec(t.Context(), sql.text[stmtRead], "s", "o", "k", at.UnixMicro())
		require.NoError(t, err)
		var names string
		require.NoError(t, nested.QueryRow(t.Context(), `
			SELECT string_agg(DISTINCT relation::regclass::text, ',') FROM pg_locks
			 WHERE pid = pg_backend_pid() AND relation IN ('w1'::regclass, 'w2'::regclass)`).Scan(&names))
		require.Equal(t, locked, names)
		require.NoError(t, nested.Rollback(t.Context()))
	}
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestTextsAreComplete(t *testing.T) {
	odd, err := For(`"odd.schema"."ta""ble"`, false, false)
	require.NoError(t, err)
	for _, sql := range odd.Texts() {
		require.NotEmpty(t, sql)
		require.NotContains(t, sql, pg.Marker)
		require.NotContains(t, sql, "processed_events", "a table of this name is not meant")
	}
	require.Contains(t, odd.text[stmtInsert], `INTO "odd.schema"."ta""ble" (source`)
}

// plan is what EXPLAIN says of a node and those below it.
type plan struct {
	NodeType  string   `json:"Node Type"`
	IndexName string   `json:"Index Name"`
	IndexCond string   `json:"Index Cond"`
	Arbiters  []string `json:"Conflict Arbiter Indexes"`
	WALs      int      `json:"WAL Records"`
	Conflicts int      `json:"Conflicting Tuples"`
	Plans     []plan   `json:"Plans"`
}

func explain(t *testing.T, conn *pgx.Conn, options, sql string, args ...any) plan {
	t.Helper()
	var out []struct{ Plan plan }
	var raw string
	err := conn.QueryRow(t.Context(), `EXPLAIN (`+options+`, FORMAT JSON) `+sql,
		append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...).Scan(&raw)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(raw), &out))
	return out[0].Plan
}

// The claim and the lookup are point queries on the constraint's index.
func TestPlans(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	_, err := conn.Exec(t.Context(), `
		INSERT INTO processed_events (source, operation, key)
		SELECT 'stripe', 'activate', 'evt_' || n FROM generate_series(1, 10000) AS n`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `ANALYZE processed_events`)
	require.NoError(t, err)
	const index = "processed_events_pkey"
	key := []any{"stripe", "activate", "evt_77"}

	claim := explain(t, conn, "COSTS off", defaultSQL.text[stmtInsert], append(key, nil, int64(1))...)
	require.Equal(t, []string{index}, claim.Arbiters)
	claim = explain(t, conn, "COSTS off", defaultSQL.text[stmtInsertTimed],
		append(key, nil, int64(0), int64(0), int64(0), int64(1))...)
	require.Equal(t, []string{index}, claim.Arbiters)

	for name, sql := range map[string]string{
		"read": defaultSQL.text[stmtRead], "store": defaultSQL.text[stmtStore],
		"forget": defaultSQL.text[stmtForget],
	} {
		args := key
		if name == "store" {
			args = append(args, nil, int64(1))
		}
		p := explain(t, conn, "COSTS off", sql, args...)
		for p.IndexName == "" && len(p.Plans) > 0 {
			p = p.Plans[0]
		}
		require.Equal(t, index, p.IndexName, name)
		for _, col := range []string{"key", "operation", "source"} {
			require.Contains(t, p.IndexCond, col, name)
		}
	}
}

// A duplicate writes no WAL; a first delivery writes its row, one index entry, and that the insertion stands: ON
// CONFLICT inserts on trial until the index has agreed.
func TestWAL(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	// The first rows of a page and of the index write more; and so does the first change after a checkpoint, but in
	// bytes, not in records.
	_, err := conn.Exec(t.Context(), `
		INSERT INTO processed_events (source, operation, key)
		SELECT 'stripe', 'activate', 'evt_' || n FROM generate_series(1, 10) AS n`)
	require.NoError(t, err)
	first := explain(t, conn, "ANALYZE, WAL", defaultSQL.text[stmtInsert], "stripe", "activate", "new", nil, int64(1))
	require.Equal(t, 3, first.WALs)
	again := explain(t, conn, "ANALYZE, WAL", defaultSQL.text[stmtInsert], "stripe", "activate", "new", nil, int64(1))
	require.Zero(t, again.WALs)
	require.Equal(t, 1, again.Conflicts)
}

var writing = regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE) `)

// No statement depends on what some servers of this protocol lack, or give out again after a failover. RETURNING
// calls no function that is not immutable, which others refuse.
func TestNoTransactionIDs(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	_, err := conn.Exec(t.Context(), `ALTER TABLE processed_events ADD COLUMN bucket date`) // of layout Weekly
	require.NoError(t, err)
	for _, sql := range slices.Concat(defaultSQL.Texts(), defaultSpread.Texts(), weeklySQL.Texts()) {
		for _, word := range []string{"xmin", "xmax", "ctid", "xact"} {
			require.NotContains(t, sql, word)
		}
		_, returning, found := strings.Cut(sql, "RETURNING ")
		require.Equal(t, writing.MatchString(sql), found, "what is written is counted by rows: %s", sql)
		_, update, _ := strings.Cut(sql, "UPDATE ")
		for _, volatile := range []string{"set_config", "clock_timestamp"} {
			require.NotContains(t, update, volatile, "refused in an UPDATE")
		}
		if !found {
			continue
		}
		// Only what is immutable can be indexed.
		for i, column := range strings.Split(returning, ", ") {
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`CREATE INDEX ON processed_events ((%s)) WHERE %d = 0`, column, i))
			require.NoError(t, err, column)
		}
	}
}

// A table of Citus takes no INSERT ... SELECT where VALUES does: it would go through an intermediate result.
func TestSpreadTakesValues(t *testing.T) {
	for _, s := range []statement{stmtInsert, stmtInsertMarked, stmtInsertTimed, stmtInsertTimedMarked} {
		require.NotContains(t, defaultSpread.text[s], "SELECT")
		require.Contains(t, defaultSpread.text[s], "VALUES")
	}
}
