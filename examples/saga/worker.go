package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	workers  = 4
	patience = 30 * time.Second // without any order that comes to its end
	pending  = `SELECT id, product, amount, card, address FROM saga_orders WHERE state = 'pending' ORDER BY random()`
)

// work is the process that is killed: it runs the sagas of all orders that are pending, until there is none. It ends by
// itself when its standard input does, which is when its parent has died.
func work(ctx context.Context, c config, _ io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	pool, err := pgxpool.New(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	s := saga{pool, c.payment, c.shipping}
	var mu sync.Mutex
	var last error
	progress := time.Now()
	for {
		rows, err := pool.Query(ctx, pending)
		if err != nil {
			return err
		}
		open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[order])
		if err != nil || len(open) == 0 {
			return err
		}
		if time.Since(progress) > patience {
			return fmt.Errorf("no order comes to its end any more: %w", last)
		}
		queue := make(chan order, len(open))
		for _, o := range open {
			queue <- o
		}
		close(queue)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for o := range queue {
					// Whatever went wrong (a reply that was lost, a step that a dead process holds), the order is still
					// pending, and its saga is run again.
					err := s.run(ctx, o)
					mu.Lock()
					if last = err; err == nil {
						progress = time.Now()
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// untilDone starts the worker process, kills it at random up to so many times, and returns when one has come to its
// end.
func untilDone(ctx context.Context, c config) (kills int, err error) {
	for {
		killed, err := life(ctx, c, kills < c.kills)
		if err != nil || !killed {
			return kills, err
		}
		kills++
	}
}

// life is one process, from its start to its end, which is random where it is to be killed.
func life(ctx context.Context, c config, kill bool) (killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, self, "-work", "-dsn", c.dsn, "-payment", c.payment, "-shipping", c.shipping)
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
	var end <-chan time.Time
	if kill {
		end = time.After(50*time.Millisecond + rand.N(300*time.Millisecond))
	}
	select {
	case <-end:
		err := cmd.Process.Kill() // SIGKILL: it cannot clean up
		if errors.Is(err, os.ErrProcessDone) {
			return false, <-exited
		}
		<-exited
		return true, err
	case err := <-exited:
		if err != nil {
			return false, fmt.Errorf("the worker failed: %w", err)
		}
		return false, nil
	}
}
