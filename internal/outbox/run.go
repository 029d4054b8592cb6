package outbox

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Options are the settings of a relay as a front door gets them: 0 is a default.
type Options struct {
	Table              string
	Publish            func(context.Context, []Event) Result // nil where there is no publisher
	Batch, Workers     int
	Lease, Poll        time.Duration
	Wake               <-chan struct{}
	MaxAttempts        int
	MinRetry, MaxRetry time.Duration
}

const maxBatchBytes = 8 << 20

// Relay returns the settings of a relay, or what is wrong with them.
func (o Options) Relay() (Relay, error) {
	name, err := ParseName(o.Table)
	switch {
	case err != nil:
		return Relay{}, err
	case o.Publish == nil:
		return Relay{}, errors.New("the relay has no publisher")
	case o.Batch < 0 || o.Workers < 0 || o.MaxAttempts < 0:
		return Relay{}, errors.New("the relay's batch, workers or attempts are negative")
	case o.Lease < 0 || o.Poll < 0 || o.MinRetry < 0 || o.MaxRetry < 0:
		return Relay{}, errors.New("a time of the relay's is negative")
	case o.Lease > time.Hour:
		return Relay{}, errors.New("the relay's lease is longer than an hour")
	}
	r := Relay{
		SQL: For(name), Publish: o.Publish,
		Batch: cmp.Or(o.Batch, 100), MaxBytes: maxBatchBytes, Lease: cmp.Or(o.Lease, 30*time.Second),
		MaxAttempts: cmp.Or(o.MaxAttempts, 20),
		MinRetry:    cmp.Or(o.MinRetry, time.Second), MaxRetry: min(cmp.Or(o.MaxRetry, time.Hour), 10*365*24*time.Hour),
	}
	if r.MaxRetry < r.MinRetry {
		return Relay{}, errors.New("the relay's longest time between two attempts is shorter than the first")
	}
	return r, nil
}

// Run runs the workers until ctx ends, and returns its error, or at once what is wrong with o. tell is called by all
// of them.
func (o Options) Run(ctx context.Context, conn pg.Conn, db pg.DB, tell func(s Stats, published, err error)) error {
	r, err := o.Relay()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range max(o.Workers, 1) {
		wg.Go(func() { _ = r.New(conn, db).Run(ctx, cmp.Or(o.Poll, 25*time.Millisecond), o.Wake, tell) })
	}
	wg.Wait()
	return ctx.Err()
}

// Run relays until ctx ends, and returns its error. After a step that found nothing it waits for poll, or for wake.
// It tells of every step that did something or failed.
func (w *Worker) Run(
	ctx context.Context, poll time.Duration, wake <-chan struct{}, tell func(s Stats, published, err error),
) error {
	fails := 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, found, published, err := w.Step(ctx)
		if ctx.Err() != nil && s == (Stats{}) {
			continue
		}
		if found || err != nil {
			tell(s, published, err)
		}
		pause := poll
		switch {
		case err != nil:
			fails++
			w.Reset()
			pause = max(poll, restAfter(fails))
		case found:
			fails = 0
			continue
		default:
			fails = 0
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.C:
		case _, open := <-wake:
			if !open {
				wake = nil
			}
		}
		t.Stop()
	}
}

// Drain relays until nothing is due. It returns the first error of the publisher's, and ends at one of the
// database's.
func (w *Worker) Drain(ctx context.Context) (all Stats, published, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return all, published, err
		}
		s, found, p, err := w.Step(ctx)
		all.Add(s)
		if published == nil {
			published = p
		}
		if err != nil || !found {
			return all, published, err
		}
	}
}
