//go:build linux || darwin || freebsd

package pgserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func joinServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Join(t.Context(), Config{TempDir: dir, Settings: FastAndUnsafe()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
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

	other, err := Join(t.Context(), Config{TempDir: dir})
	require.NoError(t, err)
	require.NotEqual(t, first.port, other.port, "other settings, other server")
	require.NoError(t, other.Stop())

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

// All of them die, the guard too, and the next one does not take the orphan for a server that will stay.
func TestJoinOrphan(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	o := newOwner(t, "join", dir)
	killGuard(t, o.guard, o.pid)
	o.sigkill(t)
	s := joinServer(t, dir)
	require.NotEqual(t, o.dsn, s.DSN("postgres"))
	require.False(t, alive(o.pid))
	require.NoDirExists(t, o.folder)
}

// A shared server that died is not joined.
func TestJoinDeadServer(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	o := newOwner(t, "join", dir)
	require.NoError(t, syscall.Kill(o.pid, syscall.SIGKILL))
	eventually(t, "the server is gone", func() bool { return !alive(o.pid) })
	s := joinServer(t, dir)
	require.Equal(t, 1, query[int](t, s.DSN("postgres"), `SELECT 1`))
}

// Whoever came in has what the guard runs until they leave, in every interleaving of coming and going with the guard's end.
// A cheap program in place of a server makes it possible to try more of them, and the time of coming in moves to where it
// just works.
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

// Whoever has joined has a server until they leave, in every interleaving of coming and going, also at the end of
// the time in which the guard waits.
func TestJoinStress(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	servers := make(map[int]bool)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 3 {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for range 3 {
				if err := stay(dir, rnd, func(port int) { mu.Lock(); servers[port] = true; mu.Unlock() }); err != nil {
					t.Error(err)
					return
				}
				// Aim at both sides of the moment at which the guard stops waiting.
				time.Sleep(time.Duration(rnd.IntN(700)) * time.Millisecond)
			}
		})
	}
	wg.Wait()
	t.Logf("%d servers for 9 stays", len(servers))
	requireEmpty(t, dir)
}

// stay joins, uses the server for a while, and leaves.
func stay(dir string, rnd *rand.Rand, saw func(port int)) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Join(ctx, Config{TempDir: dir, Settings: FastAndUnsafe(), linger: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	saw(s.port)
	c, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("a server that was joined is not there: %w", err)
	}
	defer c.Close(ctx)
	for range rnd.IntN(10) {
		if _, err := c.Exec(ctx, `SELECT pg_sleep(0.02)`); err != nil {
			return fmt.Errorf("a server that was joined has gone: %w", err)
		}
	}
	return s.Stop()
}
