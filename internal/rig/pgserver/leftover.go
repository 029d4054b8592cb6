//go:build linux || darwin || freebsd

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sweep removes the folders whose owner is gone, and stops the servers that still run in them. What it cannot remove it
// leaves: it must not keep a new server from starting.
func sweep(dir string) {
	half, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*"))
	for _, path := range half {
		// Nobody takes an hour between making a folder and locking it.
		if fi, err := os.Lstat(path); err == nil && time.Since(fi.ModTime()) > time.Hour {
			os.RemoveAll(path)
		}
	}
	for _, path := range folders(dir) {
		sweepFolder(path)
	}
}

func sweepFolder(path string) {
	lock := openLock(path)
	if lock == nil {
		return
	}
	defer lock.Close()
	if flock(lock, syscall.LOCK_EX) != nil {
		return
	}
	data := filepath.Join(path, "data")
	if pid := serverIn(data); pid != 0 {
		if _, err := os.Lstat(filepath.Join(path, keepFile)); err == nil {
			return
		}
		if !stopLeftover(pid) {
			return
		}
	}
	os.RemoveAll(path)
}

// serverIn returns the process id of the postmaster that runs in a data directory, or 0. The file alone is not
// believed: after a crash it stays, and its process id may be anybody's by now.
func serverIn(data string) int {
	lines := postmasterPid(data)
	if len(lines) == 0 {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 || !alive(pid) {
		return 0
	}
	// A postmaster's working directory is its data directory.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil {
		if cwd == data {
			return pid
		}
		return 0
	}
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err == nil && strings.Contains(string(out), data) {
		return pid
	}
	return 0
}

// stopLeftover stops a postmaster that is no child of ours.
func stopLeftover(pid int) bool {
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if err := syscall.Kill(pid, sig); err != nil {
			return !alive(pid)
		}
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if !alive(pid) {
				return true
			}
		}
	}
	return false
}
