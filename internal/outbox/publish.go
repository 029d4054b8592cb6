package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// outcome is what became of a batch.
type outcome struct {
	published []row
	failed    []failure
	behind    []row // their key has failed: they are moved out of the way
	idle      bool  // nothing could be published
	down      bool
	err       error
}

type failure struct {
	row
	err error
}

// ErrPanic: the publisher panicked.
var ErrPanic = errors.New("the publisher panicked")

// ErrUnavailable is for a publisher to wrap: no event is to blame.
var ErrUnavailable = errors.New("outbox: the broker is unavailable")

var errShort = errors.New("the publisher's error list has not as many entries as there are events")

// publish hands a batch to the publisher. Where that says only that the batch failed, it is tried again one event at
// a time, so that one bad event neither stalls the others nor has their attempts counted.
func (w *Worker) publish(ctx context.Context, limit time.Time, rows []row) outcome {
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	var o outcome
	var batch []row
	for _, r := range rows {
		if r.behind {
			o.behind = append(o.behind, r)
			continue
		}
		batch = append(batch, r)
	}
	if len(batch) == 0 {
		return o
	}
	res := w.call(ctx, batch)
	switch {
	case len(batch) == 1 && res.Err != nil && res.Each == nil:
		w.blame(ctx, &o, res, batch)
	case res.Each != nil:
		o.take(batch, res)
	case res.Err == nil:
		o.published = batch
	case down(res) || ctx.Err() != nil:
		o.down, o.err = true, res.Err
	default:
		w.singly(ctx, &o, batch)
		if o.err == nil {
			o.err = res.Err
		}
	}
	// What has an error of its own is out of the way. And where all that was tried had failed before, the lane is
	// not to blame: what is new in it must not wait for them.
	fresh := slices.ContainsFunc(batch, func(r row) bool { return !r.failed })
	o.idle = len(o.published) == 0 && (o.down || res.Err != nil && res.Each == nil && fresh)
	return o
}

// singly publishes one event after the other. It stops at the first failure before anything was published: then it
// may be the broker that is to blame, and only that one event has its attempt counted.
func (w *Worker) singly(ctx context.Context, o *outcome, batch []row) {
	for i, r := range batch {
		if o.hasFailed(r) {
			o.behind = append(o.behind, r)
			continue
		}
		res := w.call(ctx, batch[i:i+1])
		switch {
		case res.Each != nil:
			o.take(batch[i:i+1], res)
		case res.Err == nil:
			o.published = append(o.published, r)
		default:
			w.blame(ctx, o, res, batch[i:i+1])
		}
		if o.down || len(o.failed) > 0 && len(o.published) == 0 {
			o.holdBack(batch[i+1:])
			return
		}
	}
}

// blame takes the error of a call with one event for the event's own, unless the broker was down or the time was
// over.
func (w *Worker) blame(ctx context.Context, o *outcome, res Result, one []row) {
	o.err = res.Err
	if down(res) || errors.Is(ctx.Err(), context.Canceled) {
		o.down = true
		return
	}
	o.failed = append(o.failed, failure{one[0], res.Err})
}

func down(res Result) bool { return errors.Is(res.Err, ErrUnavailable) }

// take sorts events by what the publisher said of each. Of a key the first that failed has its attempt counted.
func (o *outcome) take(batch []row, res Result) {
	o.err = res.Err
	for i, r := range batch {
		switch {
		case res.Each[i] == nil:
			o.published = append(o.published, r)
		case o.hasFailed(r):
			o.behind = append(o.behind, r)
		case errors.Is(res.Each[i], ErrUnavailable):
			o.down = true // it stays where it is
		default:
			o.failed = append(o.failed, failure{r, res.Each[i]})
		}
	}
}

// holdBack moves those of the rest whose key has failed; the others are left where they are.
func (o *outcome) holdBack(rest []row) {
	for _, r := range rest {
		if o.hasFailed(r) {
			o.behind = append(o.behind, r)
		}
	}
}

func (o *outcome) hasFailed(r row) bool {
	if r.Key == "" {
		return false
	}
	for _, f := range o.failed {
		if f.Key == r.Key {
			return true
		}
	}
	return false
}

// call calls the publisher. A panic is an error of its: the relay goes on with other events.
func (w *Worker) call(ctx context.Context, rows []row) (res Result) {
	if err := ctx.Err(); err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = r.Event
	}
	defer func() {
		if p := recover(); p != nil {
			res = Result{Err: fmt.Errorf("%w: %v", ErrPanic, p)}
		}
	}()
	res = w.Publish(ctx, events)
	if res.Each != nil && len(res.Each) != len(rows) {
		return Result{Err: fmt.Errorf("%w: %w", errShort, res.Err)}
	}
	return res
}
