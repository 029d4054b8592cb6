package faultconn_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait for something that should happen at once.
const patience = 20 * time.Second

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// A bench is one database with an empty table, a pool whose connections the script watches, and one it does not.
type bench struct {
	*testing.T
	script *faultconn.Script
	pool   *pgxpool.Pool // one connection, script attached
	admin  *pgxpool.Pool
	plain  *pgxpool.Config // without the script
}

func newBench(t *testing.T, s *faultconn.Script, change ...func(*pgxpool.Config)) *bench {
	t.Helper()
	cfg := pgtest.Config(t)
	admin := pgtest.PoolConfig(t, cfg.Copy())
	_, err := admin.Exec(context.Background(), "CREATE TABLE t (id integer PRIMARY KEY, note text)")
	require.NoError(t, err)
	b := &bench{T: t, admin: admin, plain: cfg}
	return b.attach(t, s, change...)
}

// attach returns a bench on the same database, its table emptied.
func (b *bench) attach(t *testing.T, s *faultconn.Script, change ...func(*pgxpool.Config)) *bench {
	t.Helper()
	_, err := b.admin.Exec(context.Background(), "TRUNCATE t")
	require.NoError(t, err)
	cfg := b.plain.Copy()
	cfg.MaxConns = 1
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	for _, f := range change {
		f(cfg)
	}
	s.Attach(&cfg.ConnConfig.Config)
	pool := pgtest.PoolConfig(t, cfg)
	t.Cleanup(s.Release)
	return &bench{T: t, script: s, pool: pool, admin: b.admin, plain: b.plain}
}

func execMode(mode pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	return ctx
}

// insert commits one row in a transaction of its own.
func insert(ctx context.Context, pool *pgxpool.Pool, id int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t (id, note) VALUES ($1, $2)", id, "secret")
		return err
	})
}

// rows returns how many rows are committed.
func (b *bench) rows() (n int) {
	b.Helper()
	require.NoError(b, b.admin.QueryRow(b.ctx(), "SELECT count(*) FROM t").Scan(&n))
	return n
}

// sessions returns the states of the server sessions of this database, but for the admin's.
func (b *bench) sessions() []string {
	b.Helper()
	rows, err := b.admin.Query(b.ctx(), `SELECT coalesce(state, '') FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	require.NoError(b, err)
	states, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b, err)
	return states
}

// eventually polls until ok, and fails with the trace when patience ends.
func (b *bench) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !ok(); {
		require.True(b, time.Now().Before(end), "%s: not within %v\n%v", what, patience, b.script)
		time.Sleep(2 * time.Millisecond)
	}
}

func (b *bench) noSessions() {
	b.Helper()
	b.eventually("the server's session ends", func() bool { return len(b.sessions()) == 0 })
}

// broken checks that the fault happened, once, and that the client's err comes from it, not from a wait that ended.
func (b *bench) broken(err error) {
	b.Helper()
	require.Error(b, err, "%v", b.script)
	require.False(b, pgconn.Timeout(err), "%v\n%v", err, b.script)
	b.hit()
}

// hit checks that the fault happened, once.
func (b *bench) hit() {
	b.Helper()
	require.Equal(b, 1, b.script.Hits(), "the fault did not happen once\n%v", b.script)
	await(b.T, b.script.Fired())
}

func await[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.FailNow(t, "it did not happen in time")
	}
	return v
}
