package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// outcome is what became of a batch.
type outcome struct {
	published []row
	failed    []failure
	behind    []row // their key has failed: they are moved out of the way
	idle      bool  // nothing could be published
	late      bool  // the time was over
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
//
// What has failed before comes after what is new, and in a call of its own: however many events are refused, and
// however long one of them takes, they hold up none of another key. patience is how many new events may fail before
// one is published: until then it may be the broker that is to blame.
func (w *Worker) publish(ctx context.Context, limit time.Time, rows []row, patience int) outcome {
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	var o outcome
	var fresh, again []row
	for _, r := range rows {
		switch {
		case r.behind || o.hasFailed(r):
			o.behind = append(o.behind, r)
		case r.bad != nil:
			o.failed = append(o.failed, failure{r, r.bad})
			o.err = cmp.Or(o.err, r.bad)
		case r.failed:
			again = append(again, r)
		default:
			fresh = append(fresh, r)
		}
	}
	unclear := w.batch(ctx, limit, &o, fresh, patience)
	if !o.down {
		w.batch(ctx, limit, &o, again, len(again))
	}
	// What has an error of its own is out of the way. And where all that was tried had failed before, the lane is
	// not to blame: what is new in it must not wait for them.
	o.idle = len(o.published) == 0 && (o.down || unclear)
	o.late = errors.Is(ctx.Err(), context.DeadlineExceeded)
	return o
}

// batch publishes events of which none or all have failed before. It reports whether the publisher said less than what
// became of each.
func (w *Worker) batch(ctx context.Context, limit time.Time, o *outcome, batch []row, patience int) (unclear bool) {
	if len(batch) == 0 {
		return false
	}
	// Half of the time, for one event that takes all there is can only be told from the others alone.
	whole, cancel := ctx, context.CancelFunc(func() {})
	if len(batch) > 1 {
		whole, cancel = context.WithTimeout(ctx, time.Until(limit)/2)
	}
	defer cancel()
	begun := time.Now()
	res := w.call(whole, batch)
	switch {
	case res.Each != nil:
		o.take(batch, res)
		return false
	case res.Err == nil:
		o.published = append(o.published, batch...)
		return false
	case len(batch) == 1:
		w.blame(ctx, limit, begun, o, res, batch)
	case down(res) || ctx.Err() != nil:
		o.down, o.err = true, cmp.Or(o.err, res.Err)
	default:
		w.singly(ctx, limit, o, batch, patience)
		o.err = cmp.Or(o.err, res.Err)
	}
	return true
}

// singly publishes one event after the other. It stops where patience events have failed before anything was
// published.
func (w *Worker) singly(ctx context.Context, limit time.Time, o *outcome, batch []row, patience int) {
	for i, r := range batch {
		if o.hasFailed(r) {
			o.behind = append(o.behind, r)
			continue
		}
		begun := time.Now()
		res := w.call(ctx, batch[i:i+1])
		switch {
		case res.Each != nil:
			o.take(batch[i:i+1], res)
		case res.Err == nil:
			o.published = append(o.published, r)
		default:
			w.blame(ctx, limit, begun, o, res, batch[i:i+1])
		}
		if o.down || len(o.failed) >= patience && len(o.published) == 0 {
			o.holdBack(batch[i+1:])
			return
		}
	}
}

// blame takes the error of a call with one event for the event's own, unless the broker was down, or the time was over
// and most of it had gone before the call.
func (w *Worker) blame(ctx context.Context, limit, begun time.Time, o *outcome, res Result, one []row) {
	o.err = cmp.Or(o.err, res.Err)
	short := ctx.Err() != nil && limit.Sub(begun) < w.Lease*publishShare/100/4
	if down(res) || errors.Is(ctx.Err(), context.Canceled) || short {
		o.down = true
		return
	}
	o.failed = append(o.failed, failure{one[0], res.Err})
}

func down(res Result) bool { return errors.Is(res.Err, ErrUnavailable) }

// take sorts events by what the publisher said of each. Of a key the first that failed has its attempt counted.
func (o *outcome) take(batch []row, res Result) {
	o.err = cmp.Or(o.err, res.Err)
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
