//go:build linux || darwin || freebsd

package pgserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// roleEnv makes this binary an owner of a server instead of a test: "start", "join", "keep", or "sleep".
const roleEnv = "PGSERVER_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play gets a server, prints what a test wants to know about it, and waits for the end of its input. It never stops the
// server.
func play(role string) error {
	if role == "sleep" {
		fmt.Println("up")
		time.Sleep(time.Minute) // until SIGQUIT
		return nil
	}
	cfg := Config{TempDir: os.Getenv("PGSERVER_TEST_DIR"), Settings: FastAndUnsafe()}
	get := Start
	if role == "join" {
		get = Join
	}
	s, err := get(context.Background(), cfg)
	if err != nil {
		return err
	}
	if role == "keep" {
		if _, err := s.Keep(); err != nil {
			return err
		}
	}
	guard := 0
	if s.proc != nil {
		guard, _, _ = stat(s.proc.pid)
	}
	fmt.Println(s.folder.path, postmasterPid(s.folder.data())[0], guard, s.DSN("postgres"))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// owner is another process that has a server.
type owner struct {
	cmd        *exec.Cmd
	stdin      io.Closer
	folder     string
	pid, guard int
	dsn        string
}

// newOwner starts one and waits for its server.
func newOwner(t *testing.T, role, dir string) *owner {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "PGSERVER_TEST_DIR="+dir, "PGDATA=/nowhere", "PGPORT=1")
	cmd.Dir = t.TempDir() // where the server's account cannot go
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	o := &owner{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		sweep(dir)
		eventually(t, "the owner's folder is gone", func() bool { return !exists(o.folder) })
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &o.folder, &o.pid, &o.guard, &o.dsn)
	require.NoError(t, err)
	return o
}

// sigkill ends the owner the hard way.
func (o *owner) sigkill(t *testing.T) {
	t.Helper()
	require.NoError(t, o.cmd.Process.Kill())
	o.cmd.Wait()
}

// testDir makes a folder for servers that another account can enter; that of t.TempDir is closed.
func testDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgserver-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// startServer starts a server in dir and stops it at the test's end.
func startServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{TempDir: dir, Settings: FastAndUnsafe()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s still not: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// query returns the one value that a statement returns.
func query[T any](t *testing.T, dsn, sql string) T {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer c.Close(context.Background())
	var v T
	require.NoError(t, c.QueryRow(t.Context(), sql).Scan(&v))
	return v
}

func exec1(t *testing.T, dsn, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer c.Close(context.Background())
	_, err = c.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// uidOf returns the account that a process runs as.
func uidOf(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "uid=", "-p", strconv.Itoa(pid)).Output()
	if err == nil {
		uid, err := strconv.Atoi(strings.TrimSpace(string(out)))
		require.NoError(t, err)
		return uid
	}
	fi, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	require.NoError(t, err)
	return int(fi.Sys().(*syscall.Stat_t).Uid)
}

// script makes an executable shell script.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
}
