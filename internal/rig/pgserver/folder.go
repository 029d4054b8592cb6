//go:build linux || darwin || freebsd

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	newPrefix    = "pgonce-new-" // being made: not locked yet
	folderPrefix = "pgonce-pg-"  // locked for as long as its owner lives
	lockFile     = "lock"
	keepFile     = "keep"   // the server in it is to stay
	sharedFile   = "shared" // who may join, and the password
	doorFile     = "door"   // a named pipe
)

// folder is a server's folder: its data directory, log and lock.
type folder struct {
	path   string
	as     *runAs
	lock   *os.File
	linger time.Duration
}

func (f *folder) data() string { return filepath.Join(f.path, "data") }

// newFolder makes a folder and locks it. The lock is the kernel's and dies with the process that holds it, so it cannot
// be stale, and no process id, which may have been given to another process, has to be trusted.
//
// A shared folder is locked by each of its owners, from the beginning: to change one kind of lock into the other would
// leave a moment without any.
func newFolder(dir string, as *runAs, shared bool) (*folder, error) {
	path, err := os.MkdirTemp(dir, newPrefix)
	if err != nil {
		return nil, fmt.Errorf("pgserver: make a folder: %w", err)
	}
	f := &folder{path: path, as: as}
	if err := f.prepare(shared); err != nil {
		return nil, errors.Join(fmt.Errorf("pgserver: prepare folder: %w", err), f.remove())
	}
	return f, nil
}

func (f *folder) prepare(shared bool) (err error) {
	if f.lock, err = os.OpenFile(filepath.Join(f.path, lockFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return err
	}
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	if err := flock(f.lock, how); err != nil {
		return err
	}
	if err := f.as.own(f.path); err != nil {
		return err
	}
	// It gets the name that sweep looks for only now that it is locked; otherwise another process could remove it in
	// between.
	path := filepath.Join(filepath.Dir(f.path), folderPrefix+strings.TrimPrefix(filepath.Base(f.path), newPrefix))
	if err := os.Rename(f.path, path); err != nil {
		return err
	}
	f.path = path
	return nil
}

// flock locks a file without waiting.
func flock(file *os.File, how int) error {
	return syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
}

// create makes a file that our own account alone may read. The server's account may write to the folder: a link that
// it made is not followed.
func (f *folder) create(name, text string) error {
	file, err := os.OpenFile(filepath.Join(f.path, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// remove removes the folder and gives up the lock.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// ready says whether the server with that process id takes connections. It reads the file in which the postmaster tells
// just this, as pg_ctl does, so it needs no driver, and cannot be misled by another server on the same port.
func (f *folder) ready(pid int) bool {
	lines := postmasterPid(f.data())
	return len(lines) >= 8 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// postmasterPid returns the lines of the postmaster's lock file.
func postmasterPid(data string) []string {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Split(string(b), "\n")
}

// folders lists the folders in dir, of whatever owner.
func folders(dir string) []string {
	paths, _ := filepath.Glob(filepath.Join(dir, folderPrefix+"*")) // fails on a bad pattern only
	return paths
}

// openLock opens a folder's lock file when it belongs to our account, and returns nil otherwise. Anybody can make
// such a folder in /tmp, with the process id of a victim in it; a file that belongs to us they cannot make.
func openLock(path string) *os.File {
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	if fi, err := lock.Stat(); err != nil || !belongsToUs(fi) || !hasOneName(fi) {
		lock.Close()
		return nil
	}
	return lock
}
