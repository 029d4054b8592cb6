package inbox

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Options are the settings of a worker as a front door gets them: 0 is a default.
type Options struct {
	Table              Table
	Handle             Handler // nil where there is none
	Workers            int
	Timeout            time.Duration
	Lease, Poll        time.Duration
	Wake               <-chan struct{}
	MaxAttempts        int
	MinRetry, MaxRetry time.Duration
}

// Worker returns a worker, or what is wrong with the settings.
func (o Options) Worker(conn pg.Conn, db pg.DB) (*Worker, error) {
	sql, err := o.Table.SQL()
	switch {
	case err != nil:
		return nil, err
	case o.Handle == nil:
		return nil, errors.New("there is no handler")
	case o.Workers < 0 || o.MaxAttempts < 0:
		return nil, errors.New("the number of workers or of attempts is negative")
	case o.Timeout < 0 || o.Lease < 0 || o.Poll < 0 || o.MinRetry < 0 || o.MaxRetry < 0:
		return nil, errors.New("a time of the worker's is negative")
	case o.Lease > time.Hour:
		return nil, errors.New("the worker's lease is longer than an hour")
	}
	w := &Worker{
		Table: o.Table, SQL: sql, Handle: o.Handle, Timeout: o.Timeout, Lease: cmp.Or(o.Lease, 30*time.Second),
		MaxAttempts: cmp.Or(o.MaxAttempts, 20),
		MinRetry:    cmp.Or(o.MinRetry, time.Second), MaxRetry: min(cmp.Or(o.MaxRetry, time.Hour), 10*365*24*time.Hour),
		Conn: conn, DB: db,
	}
	if w.MaxRetry < w.MinRetry {
		return nil, errors.New("the worker's longest time between two attempts is shorter than the first")
	}
	return w, nil
}

// Run runs the workers until ctx ends, and returns its error, or at once what is wrong with o. tell is called by all
// of them.
func (o Options) Run(ctx context.Context, conn pg.Conn, db pg.DB, tell func(a Attempt, err error)) error {
	w, err := o.Worker(conn, db)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range max(o.Workers, 1) {
		wg.Go(func() { w.run(ctx, cmp.Or(o.Poll, 25*time.Millisecond), o.Wake, tell) })
	}
	wg.Wait()
	return ctx.Err()
}

// run handles messages until ctx ends. After a step that found nothing it waits for poll, or for wake; after an error
// of the database's for longer each time.
func (w *Worker) run(ctx context.Context, poll time.Duration, wake <-chan struct{}, tell func(a Attempt, err error)) {
	for fails := 0; ctx.Err() == nil; {
		a, found, err := w.Step(ctx)
		if a.Result != ResultNone || a.Unknown || err != nil && ctx.Err() == nil {
			w.Table.attempted(ctx, a)
			tell(a, err)
		}
		pause := poll
		switch {
		case err != nil:
			fails++
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

const (
	minRest = 100 * time.Millisecond
	maxRest = 30 * time.Second
)

// restAfter returns how long a worker rests after so many errors of the database's in a row.
func restAfter(fails int) time.Duration {
	d := minRest
	for range fails - 1 {
		if d = d * 2; d >= maxRest {
			return maxRest
		}
	}
	return d
}

// Stats is what a worker has done.
type Stats struct{ Handled, Failed, Dead int64 }

// Drain handles messages until none is due. It returns the first error of a handler's, and ends at one of the
// database's.
func (w *Worker) Drain(ctx context.Context, tell func(a Attempt, err error)) (s Stats, handler, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return s, handler, err
		}
		a, found, err := w.Step(ctx)
		if a.Result != ResultNone || a.Unknown || err != nil {
			w.Table.attempted(ctx, a)
			tell(a, err)
		}
		switch a.Result {
		case ResultHandled:
			s.Handled++
		case ResultFailed:
			s.Failed++
		case ResultDead:
			s.Dead++
			if !errors.Is(a.Err, errGone) {
				s.Failed++
			}
		}
		if handler == nil {
			handler = a.Err
		}
		if err != nil || !found {
			return s, handler, err
		}
	}
}
