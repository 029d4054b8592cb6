package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asProgram makes the test binary behave as the program itself.
const asProgram = "QUICKSTART_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// Ctrl-C: the program ends by itself, says so by its exit code, and leaves nothing half done.
func TestSignal(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	var b strings.Builder
	const events = 50_000
	for i := range events {
		fmt.Fprintf(&b, `{"provider":"github","id":"%d","body":"{}"}`+"\n", i)
	}
	file := filepath.Join(t.TempDir(), "deliveries.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))

	cmd := program(t, "-dsn", dsn, "-deliveries", file)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	pool := poolOn(t, dsn)
	require.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM quickstart_ledger`).Scan(&n)
		return err == nil && n > 0
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), stderr.String())
	require.Contains(t, stderr.String(), "interrupted")
	require.Contains(t, stderr.String(), ", 0 failed")
	require.Empty(t, stdout.String())
	require.Less(t, len(effects(t, pool)), events)
}

// program returns the command that runs this binary as the program.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// Without -dsn a server of its own is started, and it is gone at the end, and so are its files.
func TestPrivateServer(t *testing.T) {
	t.Parallel()
	if _, err := pgserver.Find(t.Context()); err != nil {
		t.Skip("the other tests run on a server that is not of this machine:", err)
	}
	dir, err := os.MkdirTemp("", "quickstart-test-") // t.TempDir is closed to the account that the server runs as
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, interrupt := range []bool{false, true} {
		cmd := program(t)
		cmd.Env = append(cmd.Env, "TMPDIR="+dir)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.NoError(t, cmd.Start())
		if interrupt {
			require.Eventually(t, func() bool {
				entries, err := os.ReadDir(dir)
				return err == nil && len(entries) > 0
			}, 10*time.Second, 5*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.Error(t, cmd.Wait())
			require.Equal(t, 130, cmd.ProcessState.ExitCode(), stderr.String())
		} else {
			require.NoError(t, cmd.Wait(), stderr.String())
			require.Contains(t, stdout.String(), shippedProof)
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}
