package outbox

import (
	"context"
	"time"
)

// Run relays until ctx ends, and returns its error. After a step that found nothing it waits for poll, or for wake. It tells
// of every step that did something or failed.
func (w *Worker) Run(ctx context.Context, poll time.Duration, wake <-chan struct{}, tell func(s Stats, published, err error)) error {
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

// Drain relays until nothing is due. It returns the first error of the publisher's, and ends at one of the database's.
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
