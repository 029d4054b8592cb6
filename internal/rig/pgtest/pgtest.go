// Package pgtest gives each test a PostgreSQL database of its own, on a real server, with nothing to set up:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestX(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.Pool(t)
//		...
//	}
//
// # Which server
//
// The first of these that is there, one for all packages of a test run:
//
//   - url: the server in PGONCE_TEST_DATABASE_URL, whose user must be allowed to create databases;
//   - local: a private one from the server binaries of the machine, see package pgserver; PGONCE_PG_BIN says which;
//   - docker: a container, where a Docker engine answers; PGONCE_TEST_IMAGE says which;
//   - download: a private one from downloaded binaries.
//
// Without any the tests fail; they are never skipped. PGONCE_TEST_SOURCES restricts the list: "docker" or
// "local,download".
//
// A private server runs without fsync. A test that changes or breaks the server as a whole starts its own one with
// package pgserver.
//
// # What stays after a failure
//
// A failing test's database is kept on the server in PGONCE_TEST_DATABASE_URL, and its name logged. With
// PGONCE_TEST_KEEP=1 that holds for a private server too, which then goes on running until it is stopped by the
// command that is logged.
package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// closeTimeout leaves time for a connection that was cut off in the middle of something: pgx tells the server in
	// the background.
	closeTimeout = 10 * time.Second
	adminTimeout = time.Minute
)

// Main runs the tests of a package and exits; it is for TestMain. It gets a server first, so that a run without one
// ends at once, with one message, and lets go of it afterwards.
func Main(m *testing.M) {
	flag.Parse()
	// "go test -list" runs nothing.
	if list := flag.Lookup("test.list"); list != nil && list.Value.String() != "" {
		os.Exit(m.Run())
	}
	// Nor does a process that package idemtest starts, to be killed in the middle of a delivery, need more than it is
	// told.
	if os.Getenv("IDEMTEST_CHILD") != "" {
		os.Exit(m.Run())
	}
	s, err := current()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(cluster.stop(), s.close()); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: stop the server:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// MainLazy is [Main] for a package with tests that need no server: it gets one when a test asks for it.
func MainLazy(m *testing.M) {
	code := m.Run()
	if s := shared.got(); s != nil {
		if err := s.close(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: stop the server:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Pool returns a pool on a new, empty database. At the test's end the pool is closed and the database dropped; a
// connection that is still acquired then, by a transaction or rows that were not closed, fails the test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return PoolConfig(t, Config(t))
}

// Config returns the configuration of a pool on a new database, see [DSN], to be changed and given to [PoolConfig].
func Config(t testing.TB) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(DSN(t))
	if err != nil {
		t.Fatalf("pgtest: parse the connection string: %v", err)
	}
	return cfg
}

// PoolConfig is [Pool] with a configuration made by [Config]. Several pools may be made for one database, from
// [pgxpool.Config.Copy].
func PoolConfig(t testing.TB, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: make a pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, closeTimeout) })
	return pool
}

// DSN returns the connection string of an empty database for this test alone. At its end connections are cut off, and
// the database is dropped, or emptied for another test. It is a URL unless PGONCE_TEST_DATABASE_URL is none.
func DSN(t testing.TB) string {
	t.Helper()
	s, err := current()
	if err != nil {
		t.Fatal(err)
	}
	return s.dsn(s.database(t))
}

// Version returns the server's version as a number: 150014 for 15.14.
func Version(t testing.TB) int {
	t.Helper()
	s, err := current()
	if err != nil {
		t.Fatal(err)
	}
	return s.version
}

// closePool closes the pool, but does not wait for ever for a connection that somebody forgot.
func closePool(t testing.TB, pool *pgxpool.Pool, timeout time.Duration) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pool.Close()
	}()
	select {
	case <-done:
	case <-time.After(timeout):
		t.Errorf("pgtest: %s left %d of its connections acquired: a transaction, rows or a connection was not closed%s",
			t.Name(), pool.Stat().AcquiredConns(), lastQueries(pool))
	}
}

// lastQueries lists what the sessions of the pool's database did last, as a hint.
func lastQueries(pool *pgxpool.Pool) string {
	s, err := current()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	rows, err := s.admin.Query(ctx, `
		SELECT state, left(query, 200)
		FROM pg_stat_activity
		WHERE datname = $1::text AND backend_type = 'client backend'
		LIMIT 20`, pool.Config().ConnConfig.Database)
	if err != nil {
		return ""
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var state, query *string
		if rows.Scan(&state, &query) == nil && state != nil && query != nil {
			fmt.Fprintf(&b, "\n\t%s; last: %s", *state, *query)
		}
	}
	return b.String()
}
