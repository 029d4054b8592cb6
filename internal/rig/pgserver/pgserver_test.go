//go:build linux || darwin || freebsd

package pgserver

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestStart(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	s, err := Start(t.Context(), Config{TempDir: dir, Settings: map[string]string{
		"application_name": `it's a \ test`, "max_connections": "17",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { s.Stop() })
	dsn := s.DSN("postgres")

	require.Equal(t, s.Version(), strings.Fields(query[string](t, dsn, `SHOW server_version`))[0])
	require.Equal(t, "17", query[string](t, dsn, `SHOW max_connections`))
	require.Equal(t, `it's a \ test`,
		query[string](t, dsn, `SELECT reset_val FROM pg_settings WHERE name = 'application_name'`))
	require.Equal(t, "on", query[string](t, dsn, `SHOW fsync`), "unsafe settings are the caller's choice")
	require.Equal(t, "127.0.0.1", query[string](t, dsn, `SHOW listen_addresses`))
	require.Empty(t, query[string](t, dsn, `SHOW unix_socket_directories`))
	require.Equal(t, "UTF8", query[string](t, dsn, `SHOW server_encoding`))
	exec1(t, dsn, `ALTER SYSTEM SET work_mem = '5MB'`)
	require.FileExists(t, s.LogFile())

	// Nobody gets in without the password, and nobody reads it from a file.
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(t.Context(), u.String())
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "28P01", pgErr.Code)
	require.Regexp(t, `^SCRAM-SHA-256\$1000:`,
		query[string](t, dsn, `SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'`),
		"more iterations would cost every connection of every test its time")
	require.NoFileExists(t, filepath.Join(s.folder.path, "password"))
	fi, err := os.Stat(s.folder.path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())

	pid, path := s.proc.pid, s.folder.path
	require.NotZero(t, uidOf(t, pid), "the server must not run as root")
	guard, _, ok := stat(pid)
	kids, err := children(guard)
	require.NoError(t, err)
	require.NoError(t, s.Stop())
	require.NoError(t, s.Stop(), "a second Stop is no error")
	require.False(t, alive(pid))
	require.NoDirExists(t, path)
	if ok {
		for _, kid := range append(kids, guard) {
			eventually(t, "the guard is gone", func() bool { return !alive(kid) })
		}
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := startServer(t, testDir(t))
	dsn := s.DSN("postgres")
	exec1(t, dsn, `CREATE TABLE t AS SELECT 42 AS x`)

	// A session that has no time to notice that its server is gone.
	busySession, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer busySession.Close(context.Background())
	cut := make(chan error, 1)
	go func() {
		_, err := busySession.Exec(t.Context(),
			`SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b`)
		cut <- err
	}()
	eventually(t, "it is busy", func() bool {
		return query[int](t, dsn, `SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%1000000%'`) == 2
	})
	postmaster := s.proc.pid
	kids, err := children(postmaster)
	require.NoError(t, err)
	require.Contains(t, kids, int(busySession.PgConn().PID()))

	require.NoError(t, s.Kill())
	require.NoError(t, s.Kill(), "a second Kill is no error")
	for _, pid := range append(kids, postmaster) {
		require.False(t, alive(pid))
	}
	require.Error(t, <-cut)
	_, err = pgx.Connect(t.Context(), dsn)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, 42, query[int](t, dsn, `SELECT x FROM t`))
	require.NotEqual(t, postmaster, s.proc.pid)

	// Of a running server it makes a new one too.
	began := query[time.Time](t, dsn, `SELECT pg_postmaster_start_time()`)
	require.NoError(t, s.Restart(t.Context()))
	require.NotEqual(t, began, query[time.Time](t, dsn, `SELECT pg_postmaster_start_time()`))
	require.Equal(t, 42, query[int](t, dsn, `SELECT x FROM t`))

	// Between finding a free port and listening on it there is time for somebody else.
	require.NoError(t, s.Kill())
	busy, err := net.Listen("tcp", mustParse(t, dsn).Host)
	require.NoError(t, err)
	defer busy.Close()
	tries := 0
	require.NoError(t, s.runOnFreePort(t.Context(), func() (int, error) {
		if tries++; tries < 3 {
			return busy.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	}))
	require.Equal(t, 3, tries)
	dsn = s.DSN("postgres")
	require.Equal(t, 42, query[int](t, dsn, `SELECT x FROM t`))

	// Restart has to have the port that it had, and waits for it.
	require.NoError(t, s.Kill())
	busy, err = net.Listen("tcp", mustParse(t, dsn).Host)
	require.NoError(t, err)
	defer busy.Close()
	before, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart(t.Context()) }()
	select {
	case err := <-restarted:
		t.Fatalf("Restart returned with its port taken: %v", err)
	case <-time.After(time.Second):
	}
	after, err := os.ReadFile(s.LogFile())
	require.NoError(t, err)
	require.Equal(t, len(before), len(after), "it does not even try")
	require.NoError(t, busy.Close())
	require.NoError(t, <-restarted)
	require.Equal(t, 42, query[int](t, dsn, `SELECT x FROM t`))

	require.NoError(t, s.Kill())
	require.NoError(t, s.Stop(), "Stop after Kill removes the folder")
	require.Error(t, s.Restart(t.Context()))
}

func mustParse(t *testing.T, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	return u
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(testDir(t), "bin")
	script(t, bin, "postgres", "echo 'postgres (PostgreSQL) 99.1'")
	script(t, bin, "initdb", "echo this disk is full >&2; exit 3")
	dir := testDir(t)
	_, err := Start(t.Context(), Config{BinDir: bin, TempDir: dir})
	require.ErrorContains(t, err, "this disk is full")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())

	found, err := Find(t.Context())
	require.NoError(t, err)
	_, err = Start(t.Context(), Config{BinDir: found, TempDir: dir, Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, "no_such_setting", "the error has the server's own words")

	_, err = Start(t.Context(), Config{BinDir: t.TempDir(), TempDir: dir})
	require.Error(t, err)

	requireEmpty(t, dir)
}

func TestStartCancelled(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	for _, after := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := Start(ctx, Config{TempDir: dir})
		cancel()
		if err == nil {
			require.NoError(t, s.Stop())
		}
	}
	requireEmpty(t, dir)
}

// What is killed leaves nothing that runs on and writes: nothing below a child, and nothing that was started while
// the signal was on its way.
func TestKillTree(t *testing.T) {
	t.Parallel()
	const leaf = `sh -c 'echo $$ >>pids; exec sleep 300'`
	for name, text := range map[string]string{
		"child":      leaf + " & wait",
		"grandchild": "(" + leaf + "; :) & wait",
		"forking":    "while :; do " + leaf + " & done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testDir(t)
			for range 5 {
				as, err := account()
				require.NoError(t, err)
				f, err := newFolder(dir, as, false)
				require.NoError(t, err)
				p, err := f.spawn(nil, "/bin/sh", "-c", text)
				require.NoError(t, err)
				pids := func() []string {
					b, _ := os.ReadFile(filepath.Join(f.path, "pids"))
					return strings.Fields(string(b))
				}
				eventually(t, "a leaf runs", func() bool { return len(pids()) > 0 })
				require.NoError(t, p.killTree())
				p.release()
				for _, text := range pids() {
					pid, err := strconv.Atoi(text)
					require.NoError(t, err)
					require.False(t, alive(pid), "process %d still runs", pid)
				}
				require.NoError(t, f.remove())
			}
		})
	}
}

// requireEmpty waits until nothing is left in a folder.
func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	eventually(t, dir+" is empty", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0
	})
}

// Without being root, too: there is no other account then.
func TestStartUnprivileged(t *testing.T) {
	t.Parallel()
	as, err := account()
	require.NoError(t, err)
	if as == nil {
		return // the other tests did it
	}
	dir := testDir(t)
	self, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	bin := filepath.Join(dir, "test")
	require.NoError(t, os.WriteFile(bin, self, 0o755))
	cmd := exec.Command(bin)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), roleEnv+"=start", "PGSERVER_TEST_DIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output() // its input ends at once, and so does it
	require.NoError(t, err)
	require.Contains(t, string(out), "postgres://")
	require.NoError(t, os.Remove(bin))
	requireEmpty(t, dir)
}
