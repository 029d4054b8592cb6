//go:build linux || darwin || freebsd

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// errShared refuses what would surprise the other processes.
var errShared = errors.New("pgserver: the server is shared with other processes")

// Stop stops the server and removes its folder. Sessions that are still there are cut off. A server that is shared
// goes only with the last of the processes that share it, two seconds after that. Stopping twice is no error.
//
// An owner that ends without Stop, by os.Exit, a panic or SIGKILL, is noticed all the same: the shell process between
// it and the server reads from a pipe whose other end only the owner holds, and does the same at its end.
func (s *Server) Stop() error {
	switch {
	case s.folder == nil:
		return nil
	case s.shared:
		return s.leave()
	default:
		return s.destroy()
	}
}

// destroy stops the server and removes everything.
func (s *Server) destroy() error {
	// The data goes next, so there is no reason to have it written down first.
	err := s.halt(syscall.SIGQUIT)
	err = errors.Join(err, s.folder.remove())
	s.folder = nil
	return err
}

// Kill ends the server and all its sessions by SIGKILL; the data stays as it was at that moment. See [Server.Restart].
func (s *Server) Kill() error {
	if s.shared {
		return errShared
	}
	return s.kill()
}

func (s *Server) kill() error {
	p := s.proc
	if p == nil {
		return nil
	}
	err := p.killTree()
	if err == nil {
		p.release()
		s.proc = nil
	}
	return err
}

// Restart starts the server again on the same data and the same port: after Kill, or after a shutdown in good order,
// which it does itself when the server still runs. Connection strings stay valid.
func (s *Server) Restart(ctx context.Context) error {
	if s.shared {
		return errShared
	}
	if s.folder == nil {
		return errors.New("pgserver: restart after Stop")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.halt(syscall.SIGINT); err != nil {
		return err
	}
	for failed := 0; ; {
		// While no server listened, the port may have become the local end of somebody's connection, mostly for a short time.
		if portIsFree(s.port) {
			err := s.run(ctx)
			if failed++; err == nil || ctx.Err() != nil || failed == 3 {
				return err
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("pgserver: wait for port %d: %w", s.port, ctx.Err())
		}
	}
}

// halt sends the postmaster sig, and stronger ones when it takes its time, until it has ended.
func (s *Server) halt(sig syscall.Signal) error {
	p := s.proc
	if p == nil {
		return nil
	}
	for _, sig := range []syscall.Signal{sig, syscall.SIGQUIT} {
		if err := p.signal(sig); err != nil {
			return fmt.Errorf("pgserver: stop postgres: %w", err)
		}
		select {
		case <-p.done:
			p.release()
			s.proc = nil
			return nil
		case <-time.After(10 * time.Second):
		}
	}
	return s.kill()
}

// Keep lets the server outlive its owner: it is neither stopped nor removed at the owner's end, and only a later Start
// removes the folder, once the server has been stopped by hand. It returns the command that stops it.
func (s *Server) Keep() (stop string, err error) {
	lines := postmasterPid(s.folder.data())
	if len(lines) == 0 {
		return "", errors.New("pgserver: no server to keep")
	}
	if err := s.folder.create(keepFile, ""); err != nil {
		return "", err
	}
	guard := s.door
	if s.proc != nil {
		guard = s.proc.pipe
	}
	if _, err := guard.WriteString(wordKeep + "\n"); err != nil {
		return "", err
	}
	return "kill -INT " + lines[0], nil
}
