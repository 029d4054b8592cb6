package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Each database is empty, has a name of its own, and cannot be reached any more when its test is over.
func TestPool(t *testing.T) {
	t.Parallel()
	s, err := current()
	require.NoError(t, err)
	mine := &server{admin: s.admin} // with a list of its own
	var dsns []string
	for range 3 {
		t.Run("database", func(t *testing.T) {
			name := mine.database(t)
			require.NotContains(t, dsns, s.dsn(name))
			dsns = append(dsns, s.dsn(name))
			conn := connectTo(t, s, name)
			_, err := conn.Exec(t.Context(), `CREATE TABLE t (id int8 PRIMARY KEY)`)
			require.NoError(t, err, "it is empty")
		})
		require.Len(t, mine.free, 1, "and is used again")
	}
	for _, dsn := range dsns[:2] {
		_, err := pgx.Connect(t.Context(), dsn)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, "3D000", pgErr.Code, "no such database")
	}

	var version int
	require.NoError(t, Pool(t).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int4`).Scan(&version))
	require.Equal(t, version, Version(t))
}

// A failing test's database is not used again, nor does it stay on a server that is ours.
func TestFailedDatabase(t *testing.T) {
	t.Parallel()
	r := &recorder{failed: true}
	cfg := Config(r)
	r.end()
	requireDatabase(t, cfg.ConnConfig.Database, false)
}

// requireDatabase checks whether there is a database of that name.
func requireDatabase(t *testing.T, name string, want bool) {
	t.Helper()
	s, err := current()
	require.NoError(t, err)
	var there bool
	err = s.admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1::text)`,
		name).Scan(&there)
	require.NoError(t, err)
	require.Equal(t, want, there, name)
}

func TestPoolConfig(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
		cfg := Config(t)
		cfg.ConnConfig.DefaultQueryExecMode = mode
		cfg.MaxConns = 1
		pool := PoolConfig(t, cfg)
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT $1::int4`, 7).Scan(&n))
		require.Equal(t, 7, n)
		require.EqualValues(t, 1, pool.Stat().MaxConns())
	}
}

// A transaction that is left open fails its test, and does not keep it from ending.
func TestForgottenTransaction(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	cfg := Config(r)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `CREATE TABLE forgotten ()`)
	require.NoError(t, err)

	closePool(r, pool, 50*time.Millisecond)
	require.True(t, r.failed)
	require.Contains(t, r.output.String(), "TestRecorded left 1 of its connections")
	require.Contains(t, r.output.String(), "idle in transaction; last: CREATE TABLE forgotten ()")

	r.end()
	requireDatabase(t, cfg.ConnConfig.Database, false)
	require.Error(t, tx.Rollback(t.Context()), "its session was cut off")
}

// Two of a test's pools on one database.
func TestTwoPools(t *testing.T) {
	t.Parallel()
	cfg := Config(t)
	a, b := PoolConfig(t, cfg.Copy()), PoolConfig(t, cfg.Copy())
	_, err := a.Exec(t.Context(), `CREATE TABLE t AS SELECT 1 AS x`)
	require.NoError(t, err)
	_, err = b.Exec(t.Context(), `TABLE t`)
	require.NoError(t, err)
}
