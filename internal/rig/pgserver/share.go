//go:build linux || darwin || freebsd

package pgserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Join returns a server that all processes of this account share which ask for the same thing: the first one starts it,
// and after the last one has gone, in whatever way, it stops and its folder is removed. Kill and Restart are
// refused.
//
// A process holds the server by having a named pipe open for writing. The shell process that reads from it sees end
// of file when there is no such process left, and nobody has to count, or to say goodbye.
func Join(ctx context.Context, cfg Config) (*Server, error) {
	bin, err := cfg.binDir(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	key := shareKey(bin, cfg.Settings)

	// Of the processes that a test run starts at once, one starts the server and the others find it. What
	// they lock is a folder that is there anyway, so that no lock file stays behind.
	lock, err := lockFolder(ctx, bin)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("pgserver: wait for another process that starts a server: %w", err)
	case err != nil: // a file system without such locks
		return start(ctx, cfg, bin, "")
	}
	defer lock.Close()

	as, err := account()
	if err != nil {
		return nil, err
	}
	dir, err := tempDir(cfg.TempDir, as)
	if err != nil {
		return nil, err
	}
	for _, path := range folders(dir) {
		if s := join(path, key); s != nil {
			s.bin, s.folder.as = bin, as
			return s, nil
		}
	}
	return start(ctx, cfg, bin, key)
}

// shareKey says which servers are the same.
func shareKey(bin string, settings map[string]string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n%q\n", guard, bin)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(h, "%q=%q\n", name, settings[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// lockFolder locks an existing folder against other processes.
func lockFolder(ctx context.Context, path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := flock(dir, syscall.LOCK_EX)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, dir.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), dir.Close())
		}
	}
}

// publish writes down what another process needs to join.
func (s *Server) publish(key string) error {
	// For our own account alone, not for the server's.
	text := strings.Join([]string{key, s.version, s.password}, "\n")
	if err := s.folder.create(sharedFile, text); err != nil {
		return fmt.Errorf("pgserver: share the server: %w", err)
	}
	return nil
}

// join returns the server in a folder when it runs, is shared under that key, and stays with us.
func join(path, key string) *Server {
	lock := openLock(path)
	if lock == nil {
		return nil
	}
	s := &Server{folder: &folder{path: path, lock: lock}, shared: true}
	if s.tryJoin(key) {
		return s
	}
	s.leave()
	return nil
}

func (s *Server) tryJoin(key string) bool {
	// Against sweep, in another process.
	if flock(s.folder.lock, syscall.LOCK_SH) != nil {
		return false
	}
	text, err := os.ReadFile(filepath.Join(s.folder.path, sharedFile))
	if err != nil {
		return false
	}
	fields := strings.Split(string(text), "\n")
	if len(fields) != 3 || fields[0] != key {
		return false
	}
	s.version, s.password = fields[1], fields[2]
	if s.door, err = s.folder.enter(); err != nil {
		return false
	}
	lines := postmasterPid(s.folder.data())
	if len(lines) < 8 {
		return false
	}
	if s.port, err = strconv.Atoi(lines[3]); err != nil {
		return false
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", lines[3]), 5*time.Second)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// leave lets go of a shared server.
func (s *Server) leave() error {
	var err error
	if s.door != nil {
		err = s.door.Close()
	}
	if s.proc != nil {
		s.proc.release()
	}
	err = errors.Join(err, s.folder.lock.Close())
	s.folder = nil
	return err
}

// door is a named pipe. Those who hold the writing end keep the server running.
type door struct{ r, w *os.File }

// makeDoor makes the folder's named pipe and opens both ends.
func (f *folder) makeDoor() (*door, error) {
	path := filepath.Join(f.path, doorFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, err
	}
	// Neither end waits for the other one when it is opened like this, the reading end first.
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	w, err := f.enter()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	// The shell's read is to wait.
	if err := syscall.SetNonblock(int(r.Fd()), false); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	return &door{r, w}, nil
}

// enter opens the writing end, and says hello. Without a guard it fails at once. With one, what the guard runs goes on
// running for as long as the file is open: the guard closes the door before it looks for the last time whether
// somebody came in.
func (f *folder) enter() (*os.File, error) {
	w, err := os.OpenFile(filepath.Join(f.path, doorFile), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if _, err := w.WriteString("hello\n"); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}
