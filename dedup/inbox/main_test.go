package inbox_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// TestMain makes the test binary a worker that a message kills, where the environment says so.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(poisonEnv); dsn != "" {
		os.Exit(poisoned(dsn))
	}
	pgtest.Main(m)
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// migrated returns a pool on a new database with the table, and one for effects: a row for each, so that a second one
// is seen.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	require.NoError(t, inbox.Migrate(t.Context(), pool))
	execSQL(t, pool, `CREATE TABLE effects (id text)`)
	return pool
}

func execSQL(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// msg returns a message of a key.
func msg(key, id string) inbox.Message {
	return inbox.Message{Source: "s", Operation: "o", ID: id, Key: key, Body: []byte(id)}
}

func store(t testing.TB, db inbox.Conn, messages ...inbox.Message) {
	t.Helper()
	for _, m := range messages {
		out, err := inbox.Store(t.Context(), db, m)
		require.NoError(t, err)
		require.Equal(t, inbox.Stored, out)
	}
}

// insert is the effect of a message.
func insert(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (id) VALUES ($1::text)`, m.ID)
	return err
}

// quick is a worker that does not wait between attempts.
func quick() inbox.Worker {
	return inbox.Worker{MinRetry: time.Microsecond, MaxRetry: time.Microsecond}
}

func drain(t testing.TB, pool *pgxpool.Pool, h inbox.Handler) inbox.Stats {
	t.Helper()
	s, err := quick().Drain(t.Context(), pool, h)
	require.NoError(t, err)
	return s
}

// again says that a message comes again, and is a duplicate.
func again(t testing.TB, pool *pgxpool.Pool, m inbox.Message) {
	t.Helper()
	out, err := inbox.Store(t.Context(), pool, m)
	require.NoError(t, err)
	require.Equal(t, inbox.Duplicate, out)
}

// one returns the one message of a state.
func one(t testing.TB, pool *pgxpool.Pool, state inbox.State) inbox.Message {
	t.Helper()
	all, err := inbox.Table{}.List(t.Context(), pool, inbox.Filter{State: state}, 10)
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

func depth(t testing.TB, pool *pgxpool.Pool) inbox.Depth {
	t.Helper()
	d, err := inbox.Table{}.Depth(t.Context(), pool)
	require.NoError(t, err)
	return d
}

// order keeps what was handled, by key.
type order struct {
	mu  sync.Mutex
	ids map[string][]string
}

func (o *order) add(m inbox.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids == nil {
		o.ids = map[string][]string{}
	}
	o.ids[m.Key] = append(o.ids[m.Key], m.ID)
}

// numbered returns n messages of a key.
func numbered(key string, n int) (all []inbox.Message, ids []string) {
	for i := range n {
		id := fmt.Sprintf("%s-%03d", key, i)
		all, ids = append(all, msg(key, id)), append(ids, id)
	}
	return all, ids
}

// observer keeps what it is told.
type observer struct {
	mu     sync.Mutex
	events []dedup.Event
}

func (o *observer) Observe(_ context.Context, e dedup.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

func (o *observer) whats() (all []dedup.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		all = append(all, e.Outcome)
	}
	return all
}

// problems returns the fixes of what Verify found.
func problems(t testing.TB, err error) (fixes []string) {
	t.Helper()
	var found *dedup.VerifyError
	require.ErrorAs(t, err, &found)
	for _, p := range found.Problems {
		fixes = append(fixes, p.Fix)
	}
	return fixes
}
