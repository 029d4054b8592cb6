//go:build linux || darwin || freebsd

package pgserver

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func joinServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Join(t.Context(), Config{TempDir: dir, Settings: FastAndUnsafe()})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Stop())
		sweep(dir) // does not wait for the guard
	})
	return s
}

func TestJoin(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	first := joinServer(t, dir)
	second := joinServer(t, dir)
	require.Equal(t, first.DSN("postgres"), second.DSN("postgres"))
	require.Equal(t, first.Version(), second.Version())
	require.Equal(t, first.LogFile(), second.LogFile())
	pid, path := first.proc.pid, first.folder.path

	// What the others need is for this account alone.
	fi, err := os.Stat(filepath.Join(path, sharedFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	require.True(t, belongsToUs(fi))

	require.ErrorIs(t, second.Kill(), errShared)
	require.ErrorIs(t, first.Restart(t.Context()), errShared)

	// The one that started it may leave first.
	require.NoError(t, first.Stop())
	third := joinServer(t, dir)
	require.Equal(t, second.port, third.port)
	require.NoError(t, second.Stop())
	require.Equal(t, 1, query[int](t, third.DSN("postgres"), `SELECT 1`))
	sweep(dir)
	require.Equal(t, 1, query[int](t, third.DSN("postgres"), `SELECT 1`))

	require.NoError(t, third.Stop())
	eventually(t, "the server is gone", func() bool { return !alive(pid) })
	eventually(t, "the folder is gone", func() bool { return !exists(path) })
	requireEmpty(t, dir)
}

// The server waits a moment for the next one.
func TestJoinAfterLast(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	cfg := Config{TempDir: dir, linger: 10 * time.Second}
	first, err := Join(t.Context(), cfg)
	require.NoError(t, err)
	require.NoError(t, first.Stop())
	second, err := Join(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, first.port, second.port)
	require.Equal(t, 1, query[int](t, second.DSN("postgres"), `SELECT 1`))
	require.NoError(t, second.Stop())
	sweep(dir) // does not wait for the guard
	requireEmpty(t, dir)
}

// Processes that start at once share one server, and it ends with the last of them, whatever kills them.
func TestJoinProcesses(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	owners := make([]*owner, 4)
	var wg sync.WaitGroup
	for i := range owners {
		wg.Go(func() { owners[i] = newOwner(t, "join", dir) })
	}
	wg.Wait()
	for _, o := range owners {
		require.Equal(t, owners[0].dsn, o.dsn)
	}
	for i, o := range owners {
		require.Equal(t, 1, query[int](t, o.dsn, `SELECT 1`), "%d are gone", i)
		o.sigkill(t)
	}
	eventually(t, "the server is gone", func() bool { return !alive(owners[0].pid) })
	requireEmpty(t, dir)
}

// Nobody joins a server that died, nor one without a guard, which is an orphan when its owners have gone.
func TestJoinNot(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	dead := newOwner(t, "join", dir)
	require.NoError(t, syscall.Kill(dead.pid, syscall.SIGKILL))
	eventually(t, "the server is gone", func() bool { return !alive(dead.pid) })

	orphan := newOwner(t, "join", dir)
	require.NotEqual(t, dead.folder, orphan.folder)
	require.Equal(t, 1, query[int](t, orphan.dsn, `SELECT 1`))
	killGuard(t, orphan.guard, orphan.pid)
	orphan.sigkill(t)

	s := joinServer(t, dir)
	require.NotEqual(t, orphan.folder, s.folder.path)
	require.Equal(t, 1, query[int](t, s.DSN("postgres"), `SELECT 1`))
	require.False(t, alive(orphan.pid))
	require.NoDirExists(t, orphan.folder)
}

func TestShareKey(t *testing.T) {
	t.Parallel()
	keys := make(map[string]bool)
	for _, bin := range []string{"/a", "/b"} {
		for _, settings := range []map[string]string{
			nil,
			{"a": "1"},
			{"a": "2"},
			{"a": "1", "b": "2"},
			{"a": "2", "b": "1"},
		} {
			keys[shareKey(bin, settings)] = true
			require.Contains(t, keys, shareKey(bin, settings))
		}
	}
	require.Len(t, keys, 10)
}

// Whoever came in has what the guard runs until they leave, in every interleaving of coming and going with the
// guard's end. A cheap program in place of a server makes it possible to try more of them, and the time of coming in
// moves to where it just works.
func TestDoorStress(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	in, out := 0, 0
	wait := 20 * time.Millisecond
	for in+out < 30 {
		f, err := newFolder(dir, nil, true)
		require.NoError(t, err)
		d, err := f.makeDoor()
		require.NoError(t, err)
		p, err := f.spawn(d, "env", roleEnv+"=sleep", os.Args[0])
		require.NoError(t, err)
		eventually(t, "the program runs", func() bool {
			log, err := os.ReadFile(filepath.Join(f.path, "log"))
			return err == nil && len(log) > 0
		})
		p.release()
		time.Sleep(wait)
		w, err := f.enter()
		if err != nil {
			out++
			wait -= wait / 10
		} else {
			in++
			wait += wait / 8
			select {
			case <-p.done:
				t.Error("the program ended while somebody was in")
			case <-time.After(50 * time.Millisecond):
			}
			require.NoError(t, w.Close())
		}
		<-p.done
		eventually(t, "the folder is gone", func() bool { return !exists(f.path) })
	}
	t.Logf("%d came in, %d did not, the last after %v", in, out, wait)
}
