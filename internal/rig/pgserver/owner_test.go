//go:build linux || darwin || freebsd

package pgserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The owner dies, and the guard cleans up: of SIGKILL, and of Ctrl-C, which the terminal sends to all of a process
// group.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(o *owner) error{
		"killed":      func(o *owner) error { return o.cmd.Process.Kill() },
		"interrupted": func(o *owner) error { return syscall.Kill(-o.cmd.Process.Pid, syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOwner(t, "start", testDir(t))
			require.True(t, alive(o.pid))
			require.Equal(t, 1, query[int](t, o.dsn, `SELECT 1`))
			require.NoError(t, kill(o))
			o.cmd.Wait()
			eventually(t, "the server is gone", func() bool { return !alive(o.pid) })
			eventually(t, "the folder is gone", func() bool { return !exists(o.folder) })
		})
	}
}

// Owner and guard die, and the next Start cleans up.
func TestOwnerAndGuardKilled(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	o := newOwner(t, "start", dir)
	killGuard(t, o.guard, o.pid)
	o.sigkill(t)
	require.True(t, alive(o.pid), "nobody has stopped the server yet")

	s := startServer(t, dir)
	require.False(t, alive(o.pid))
	require.NoDirExists(t, o.folder)
	require.Equal(t, 1, query[int](t, s.DSN("postgres"), `SELECT 1`))
}

// killGuard kills the guard and its watch, but not the server.
func killGuard(t *testing.T, guard, server int) {
	t.Helper()
	require.NotZero(t, guard)
	kids, err := children(guard)
	require.NoError(t, err)
	require.Contains(t, kids, server)
	for _, pid := range append(kids, guard) {
		if pid != server {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// Sweeping leaves alone what is in use, kept, or not ours.
func TestSweepLeaves(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	used := newOwner(t, "start", dir)

	kept := newOwner(t, "keep", dir)
	require.NoError(t, kept.stdin.Close())
	require.NoError(t, kept.cmd.Wait())

	young := filepath.Join(dir, newPrefix+"young")
	require.NoError(t, os.Mkdir(young, 0o700))
	noLock := filepath.Join(dir, folderPrefix+"nolock")
	require.NoError(t, os.Mkdir(noLock, 0o700))
	linked := makeLeftover(t, dir, "linked", 0)
	require.NoError(t, os.Link(filepath.Join(linked, lockFile), filepath.Join(dir, "second name")))

	sweep(dir)
	require.Equal(t, 1, query[int](t, used.dsn, `SELECT 1`))
	require.Equal(t, 1, query[int](t, kept.dsn, `SELECT 1`))
	for _, path := range []string{young, noLock, linked, kept.folder} {
		require.DirExists(t, path)
	}

	// A kept server that was stopped by hand is not kept any more.
	require.NoError(t, syscall.Kill(kept.pid, syscall.SIGINT))
	eventually(t, "it stops", func() bool { return !alive(kept.pid) })
	sweep(dir)
	require.NoDirExists(t, kept.folder)
}

func TestSweepRemoves(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	old := filepath.Join(dir, newPrefix+"old")
	require.NoError(t, os.Mkdir(old, 0o700))
	yesterday := time.Now().Add(-24 * time.Hour)
	require.NoError(t, os.Chtimes(old, yesterday, yesterday))

	// A process that got the process id of a postmaster of long ago.
	innocent := exec.Command("sleep", "60")
	require.NoError(t, innocent.Start())
	defer innocent.Wait()
	defer innocent.Process.Kill()
	reused := makeLeftover(t, dir, "reused", innocent.Process.Pid)
	dead := makeLeftover(t, dir, "dead", 1<<30)
	empty := makeLeftover(t, dir, "empty", 0)

	sweep(dir)
	for _, path := range []string{old, reused, dead, empty} {
		require.NoDirExists(t, path)
	}
	require.True(t, alive(innocent.Process.Pid))
}

// A folder of another account is not ours to clean, nor is the process that it names.
func TestSweepForeign(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return // only root can make what this test needs
	}
	dir := testDir(t)
	foreign := makeLeftover(t, dir, "foreign", 0)
	require.NoError(t, os.Chown(filepath.Join(foreign, lockFile), 65534, 65534))
	sweep(dir)
	require.DirExists(t, foreign)
}

// makeLeftover makes what a dead owner leaves. A pid of 0 is for one that died before its server started.
func makeLeftover(t *testing.T, dir, name string, pid int) string {
	t.Helper()
	path := filepath.Join(dir, folderPrefix+name)
	require.NoError(t, os.MkdirAll(filepath.Join(path, "data"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path, lockFile), nil, 0o600))
	if pid != 0 {
		lines := strings.Join([]string{strconv.Itoa(pid), filepath.Join(path, "data"), "1700000000", "5432"}, "\n")
		require.NoError(t, os.WriteFile(filepath.Join(path, "data", "postmaster.pid"), []byte(lines), 0o600))
	}
	return path
}

// A folder cannot be swept at any moment of its making.
func TestNewFolderIsLocked(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	stop := make(chan struct{})
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-stop:
				return
			default:
				sweep(dir)
			}
		}
	}()
	for range 50 {
		for _, shared := range []bool{false, true} {
			f, err := newFolder(dir, nil, shared)
			require.NoError(t, err)
			require.DirExists(t, f.path)
			require.NoError(t, f.remove())
		}
	}
	close(stop)
	<-swept
}
