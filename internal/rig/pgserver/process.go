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
	"sync"
	"syscall"
	"time"
)

// guard runs a program for its owners and outlives neither. It is the program's parent, so the process id stays the
// program's own for as long as it can send signals to it. It reads from descriptor 3, a pipe that only the
// owners can write to: end of file means that they are gone, however they went.
//
// The pipe of a shared server has a name, its door, and new owners come in by it and say hello. The guard waits a while
// for the next one. Then it closes the door, and only after that looks once more whether somebody came in between.
//
// Why not Pdeathsig: it is Linux alone, knows only one owner, and fires when the thread that forked ends, which
// the Go runtime does as it likes.
const guard = `
dir=$1 linger=$2; shift 2
"$@" 3<&- &
child=$!
echo "$child" >"$dir/child.new" && mv "$dir/child.new" "$dir/child"
(
	open=1
	while :; do
		came=
		while read -r word <&3; do
			[ "$word" = ` + wordKeep + ` ] && exit
			came=1
		done
		if [ "$came" ]; then
			sleep "$linger"
		elif [ "$open" ]; then
			mv "$dir/` + doorFile + `" "$dir/closed"
			open=
		else
			break
		fi
	done
	: >"$dir/orphan"
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		kill -QUIT "$child" # again and again: a background job ignores it until it has its own way with it
		sleep 1
		kill -0 "$child" || exit
	done
	kill -KILL "$child"
) 2>/dev/null &
watch=$!
wait "$child"; code=$?
if [ -e "$dir/orphan" ]; then
	cd / && rm -rf "$dir"
else
	kill "$watch" 2>/dev/null
fi
exit "$code"
`

// wordKeep tells the guard that the program may stay without an owner.
const wordKeep = "keep"

// process is a program under guard.
type process struct {
	pid  int           // the program's, not the guard's
	done chan struct{} // closed when it has ended
	err  error         // valid then: how it ended

	once sync.Once
	pipe *os.File
}

// spawn runs a program as the folder's account, with the log as its output. The door may be nil; spawn takes it over.
func (f *folder) spawn(d *door, name string, args ...string) (*process, error) {
	if d == nil {
		// Both ends close on exec (os.Pipe sees to it), so no other child of ours can hold the owner's end open.
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		d = &door{r, w}
	}
	defer d.r.Close()
	p := &process{done: make(chan struct{}), pipe: d.w}
	if err := f.startGuard(p, d.r, name, args); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func (f *folder) startGuard(p *process, r *os.File, name string, args []string) error {
	if err := os.Remove(filepath.Join(f.path, "child")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := os.OpenFile(filepath.Join(f.path, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	linger := strconv.FormatFloat(f.linger.Seconds(), 'f', -1, 64)
	cmd := exec.Command("/bin/sh", append([]string{"-c", guard, "pgserver", f.path, linger, name}, args...)...)
	cmd.Dir = f.path // the caller's may be one that the account cannot enter
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// Never the caller's own output: "go test" waits for everybody who holds it.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{r}
	// A session of its own, so that Ctrl-C in the terminal ends the owner alone, and the guard does the rest.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: f.as.credential()}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	p.pid, err = f.childPid(p.done)
	return err
}

// childPid waits for the guard to tell the process id of its program.
func (f *folder) childPid(done <-chan struct{}) (int, error) {
	ended := false
	for {
		b, err := os.ReadFile(filepath.Join(f.path, "child"))
		if err == nil {
			return strconv.Atoi(strings.TrimSpace(string(b)))
		}
		if ended {
			return 0, fmt.Errorf("the shell ended early: %w", err)
		}
		select {
		case <-done:
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
}

// release gives the guard up. A program that still runs is then stopped by it, and its folder removed.
func (p *process) release() { p.once.Do(func() { p.pipe.Close() }) }

// signal sends sig to the program; one that has ended is no error.
func (p *process) signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	return sendTo(p.pid, sig)
}

// kill ends the program alone.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// killTree ends the program and all that it has started.
func (p *process) killTree() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// Stopped first, so that it starts no child that we do not see, nor any clean-up after the ones that we kill.
	deadline := time.Now().Add(10 * time.Second)
	tree, err := stopBelow(p.pid, deadline)
	for _, pid := range tree {
		err = errors.Join(err, sendTo(pid, syscall.SIGKILL))
	}
	if err := errors.Join(err, p.kill()); err != nil {
		return err
	}
	for _, pid := range tree {
		for alive(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("pgserver: process %d survives SIGKILL", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// stopBelow waits until a process that was sent SIGSTOP has stopped. Then it stops its children in the same way, and
// returns the process ids of all below it. The signal alone is not enough: until it arrives the process may fork.
func stopBelow(pid int, deadline time.Time) ([]int, error) {
	for {
		stopped, err := hasStopped(pid)
		if err != nil {
			return nil, err
		}
		if stopped {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("pgserver: process %d does not stop", pid)
		}
		time.Sleep(time.Millisecond)
	}
	kids, err := children(pid)
	if err != nil {
		return nil, err
	}
	tree := kids
	for _, kid := range kids {
		if err := sendTo(kid, syscall.SIGSTOP); err != nil {
			return tree, err
		}
		below, err := stopBelow(kid, deadline)
		if err != nil {
			return tree, err
		}
		tree = append(tree, below...)
	}
	return tree, nil
}

// sendTo sends a signal to a process; one that has ended is no error.
func sendTo(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
