package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// result is what became of a delivery. The zero result comes with an error.
type result struct {
	outcome idem.Outcome
	stale   bool // the effect is made, and a newer state of the subscription stays
}

// counts are the sums of results.
type counts struct {
	executed, duplicates, stale, failed int

	errs []error // of the failed deliveries, the first few
}

const maxErrs = 10

func (c counts) deliveries() int { return c.executed + c.duplicates + c.failed }

func (c counts) String() string {
	return fmt.Sprintf("%d deliveries, %d effects, %d duplicates, %d failed", c.deliveries(), c.executed, c.duplicates,
		c.failed)
}

// failures returns an error that lists the first failed deliveries, or nil where none failed.
func (c counts) failures() error {
	if c.failed == 0 {
		return nil
	}
	return fmt.Errorf("%d deliveries failed, with these errors at first:\n%w", c.failed, errors.Join(c.errs...))
}

// tally adds results up. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	c  counts
}

func (t *tally) now() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.c
}

func (t *tally) handled(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.outcome == idem.Executed {
		t.c.executed++
	} else {
		t.c.duplicates++
	}
	if r.stale {
		t.c.stale++
	}
}

func (t *tally) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.failed++
	if len(t.c.errs) < maxErrs {
		t.c.errs = append(t.c.errs, err)
	}
}

// show prints the counts every second, until the returned function is called.
func (t *tally) show(w io.Writer) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintln(w, t.now())
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
