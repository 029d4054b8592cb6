//go:build linux || darwin || freebsd

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// alive says whether a process is there and has not ended. A zombie has ended: where process 1 reaps nobody, as in many
// containers, it stays for ever.
func alive(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	_, state, ok := stat(pid)
	return !ok || state != "Z"
}

// hasStopped says whether a process is stopped, or has ended.
func hasStopped(pid int) (bool, error) {
	if !alive(pid) {
		return true, nil
	}
	_, state, ok := stat(pid)
	if !ok {
		out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			if !alive(pid) {
				return true, nil
			}
			return false, fmt.Errorf("pgserver: look at process %d: %w", pid, err)
		}
		state = strings.TrimSpace(string(out))
	}
	// "T" is stopped by a signal, "t" by a debugger; ps adds more letters.
	return state == "" || strings.ContainsAny(state[:1], "TtZX"), nil
}

// children returns the process ids of a process's children.
func children(pid int) ([]int, error) {
	var kids []int
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(names) == 0 {
		return childrenByPs(pid)
	}
	for _, name := range names {
		child, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if parent, _, ok := stat(child); ok && parent == pid {
			kids = append(kids, child)
		}
	}
	return kids, nil
}

// stat returns a process's parent and state from Linux's /proc.
func stat(pid int) (parent int, state string, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", false
	}
	// "pid (name) state parent ...": the name may hold anything, a parenthesis too.
	line := string(b)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 2 {
		return 0, "", false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[0], err == nil
}

// childrenByPs is for systems without /proc.
func childrenByPs(pid int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("pgserver: list processes: %w", err)
	}
	var kids []int
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 2 || f[1] != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, err
		}
		kids = append(kids, child)
	}
	return kids, nil
}
