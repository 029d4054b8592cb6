package front

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

var (
	errReadOnly  = errors.New("TxOptions are read-only: what Send brings could never be confirmed")
	errNoSend    = errors.New("no Send: it is nil")
	errLongLease = errors.New("the lease is longer than the provider remembers, so that no second attempt could ever be made")
)

// Call is one run of a front door's Call: a call to somebody else's system, between a reservation and its settlement.
type Call[T any] struct {
	Lease, Remembers time.Duration

	External string // the key for the provider
	Send     func(ctx context.Context, external string) (T, error)
	Apply    func(ctx context.Context, tx pg.Tx, v T) error

	ReadOnly bool // the transactions that DB begins

	Conn pg.Conn // what it sends is committed when Send returns
	DB   pg.DB
}

// Run reserves the key, sends, and applies and confirms the answer. With an error there is none, and no outcome.
func (c Call[T]) Run(ctx context.Context, engine *claim.Claim) (v T, res claim.Result, err error) {
	res, err = engine.Told(ctx, func() (res claim.Result, err error) {
		v, res, err = c.run(ctx, engine)
		return res, err
	})
	if err != nil {
		v = *new(T)
	}
	return v, res, err
}

func (c Call[T]) run(ctx context.Context, engine *claim.Claim) (v T, res claim.Result, err error) {
	if err := c.check(); err != nil {
		return v, res, &claim.Failure{Stage: claim.StageReserve, Err: err}
	}
	begun := time.Now()
	held, rec, res, err := engine.Reserve(ctx, c.Conn, c.Lease, max(c.Remembers, 0))
	res.Waited = time.Since(begun)
	if err != nil {
		return v, res, err
	}
	if held == nil {
		v, err = decode[T](rec.Value)
		return v, res, err
	}
	// Whatever ends the attempt and leaves the key open, a panic too, ends the lease: the next delivery need not wait.
	// Where that cannot be said, it runs out by itself; and after a take-over it changes nothing.
	settled := false
	defer func() {
		if !settled {
			_ = detached(ctx, func(ctx context.Context) error { return held.End(ctx, c.Conn) })
		}
		res.Held = time.Since(begun) - res.Waited
	}()
	// The server began the lease later than held.Since, when it had the statement: Send's context ends before it.
	if v, settled, err = c.send(ctx, *held, held.Since.Add(c.Lease)); err != nil {
		return v, res, err
	}
	value, err := encode(v)
	if err != nil {
		return v, res, err
	}
	ctx, cancel := outliving(ctx)
	defer cancel()
	err = held.Finish(ctx, c.DB, value, func(ctx context.Context, tx pg.Tx) error { return c.Apply(ctx, tx, v) })
	if err != nil {
		return v, res, err
	}
	settled = true
	res.Outcome = claim.Executed
	return v, res, nil
}

// check refuses what could never end well, before anything is reserved.
func (c Call[T]) check() error {
	switch {
	case c.Send == nil:
		return errNoSend
	case c.ReadOnly:
		return errReadOnly
	case c.Remembers > 0 && c.Lease > c.Remembers:
		return errLongLease
	}
	return nil
}

// send makes one attempt, and says whether that has settled or released the key.
func (c Call[T]) send(ctx context.Context, held claim.Held, until time.Time) (v T, settled bool, err error) {
	release := func(ctx context.Context) error { return held.Release(ctx, c.Conn) }
	sendCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := sendCtx.Err(); err != nil {
		settled, err = settle(ctx, err, &claim.Failure{Stage: claim.StageSend, Err: err}, release)
		return v, settled, err
	}
	v, err = c.Send(sendCtx, c.External)
	var m *marked
	if err == nil || !errors.As(err, &m) {
		if err != nil {
			err = &Attempt{err, c.Remembers > 0}
		}
		return v, false, err
	}
	// Without the mark, and what was wrapped around it: a Send that makes a Call of its own must give its word itself.
	err = m.err
	if !m.final {
		settled, err = settle(ctx, err, &Attempt{err, true}, release)
		return v, settled, err
	}
	text := failureText(err)
	settled, err = settle(ctx, err, &claim.Failure{Stage: claim.StageSend, Err: &claim.Final{Value: text, Err: err}},
		func(ctx context.Context) error { return held.Fail(ctx, c.Conn, text) })
	return v, settled, err
}

// failureText is what is stored of a final failure.
func failureText(err error) []byte {
	return cut(err.Error())
}

func cut(s string) []byte {
	const most = 4096
	return []byte(s[:min(len(s), most)])
}

// settle records how an attempt ended, and returns end. Where it cannot be recorded the key stays open, and the error
// says so, and what the call ended in.
func settle(ctx context.Context, cause, end error, move func(context.Context) error) (settled bool, err error) {
	err = detached(ctx, move)
	if err == nil {
		return true, end
	}
	var f *claim.Failure
	if errors.As(err, &f) {
		f.Err = fmt.Errorf("%w; the call had ended in: %w", f.Err, cause)
	}
	return false, err
}

// detached calls f with a context that does not end with ctx: what an attempt leaves behind is cleaned up all the same.
func detached(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := pg.Detached(ctx)
	defer cancel()
	return f(ctx)
}

// outliving returns a context that ends when ctx has been done for pg.CleanUpTime.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pg.CleanUpTime, cancel) })
	return longer, func() { stop(); cancel() }
}
