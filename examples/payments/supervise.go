package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"time"
)

// supervised is the API as a process, which is killed and started again.
type supervised struct {
	cancel context.CancelFunc
	ended  chan struct{}
	kills  int
	err    error
}

// supervise starts the API, and kills it at random up to so many times.
func supervise(ctx context.Context, c config) *supervised {
	ctx, cancel := context.WithCancel(ctx)
	s := &supervised{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for ctx.Err() == nil && s.err == nil {
			var killed bool
			if killed, s.err = life(ctx, c, s.kills < c.kills); killed {
				s.kills++
			}
		}
	}()
	return s
}

// stop ends the API, and returns how often it was killed before.
func (s *supervised) stop() (kills int, err error) {
	s.cancel()
	<-s.ended
	return s.kills, s.err
}

// life is one process, from its start to its end, which is random where it is to be killed.
func life(ctx context.Context, c config, kill bool) (killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.Command(self, "-serve", c.serve, "-provider", c.provider, "-dsn", c.dsn)
	cmd.Stderr = os.Stderr
	parent, err := cmd.StdinPipe() // closed when this process ends, in whatever way
	if err != nil {
		return false, err
	}
	defer parent.Close()
	if err := cmd.Start(); err != nil {
		return false, err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan struct{})
	go up(ctx, c.serve, ready)
	var end <-chan time.Time
	for {
		select {
		case <-ready:
			ready = nil
			if kill {
				end = time.After(rand.N(250 * time.Millisecond))
			}
		case err := <-exited:
			return false, fmt.Errorf("the API ended by itself: %w", err)
		case <-ctx.Done():
			return false, sigkill(cmd, exited)
		case <-end:
			return true, sigkill(cmd, exited)
		}
	}
}

// sigkill ends the process in a way that it cannot notice, and so cannot clean up.
func sigkill(cmd *exec.Cmd, exited <-chan error) error {
	err := cmd.Process.Kill()
	<-exited
	return err
}

// up closes ready when somebody listens.
func up(ctx context.Context, address string, ready chan<- struct{}) {
	for ctx.Err() == nil {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			close(ready)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
