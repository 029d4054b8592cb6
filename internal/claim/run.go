package claim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Run claims the key in a transaction of its own, runs fn when the row is new, and commits. It begins anew after
// serialization failures, deadlocks and lost connections, and settles a COMMIT whose answer was lost by claiming again.
func Run(ctx context.Context, db pg.DB, c *Claim, fn func(context.Context, pg.Tx) error) (Result, error) {
	return c.Told(ctx, func() (Result, error) { return c.run(ctx, db, fn) })
}

func (c *Claim) run(ctx context.Context, db pg.DB, fn func(context.Context, pg.Tx) error) (Result, error) {
	if err := c.outside(ctx, StageClaim); err != nil {
		return Result{}, err
	}
	r := run{Claim: c, db: db, fn: c.guard(fn), left: c.MaxWait}
	return r.until(ctx, r.try)
}

// until tries until there is an answer, or none is to be had.
func (r *run) until(ctx context.Context, once func(context.Context) (Result, error)) (Result, error) {
	for try, hidden := 1, 0; ; {
		res, err := once(ctx)
		switch {
		case err == nil:
			return res, nil
		case errors.Is(err, errAgain):
			if hidden++; hidden < looks {
				continue
			}
			return res, r.final(&Failure{Stage: StageConfirm, Err: errHidden})
		case !r.again || try >= r.Tries || !pause(ctx, try):
			return res, r.final(err)
		}
		try++
	}
}

// run is the state of one Run across its tries.
type run struct {
	*Claim
	db   pg.DB
	fn   func(context.Context, pg.Tx) error
	left time.Duration // of MaxWait

	// A COMMIT that has not been answered: the token of its try, and what came instead.
	lostToken *int64
	lost      error

	again bool // may the last error be met by another try
}

// try is one transaction.
func (r *run) try(ctx context.Context) (res Result, err error) {
	return r.tryFrom(ctx, r.begin)
}

// tryFrom is try, with what begins and claims.
func (r *run) tryFrom(
	ctx context.Context, begin func(context.Context) (pg.OwnTx, bool, error),
) (res Result, err error) {
	r.again = false
	begun := time.Now()
	tx, fresh, err := begin(ctx)
	claimed := time.Now()
	res.Waited = claimed.Sub(begun)
	r.left -= res.Waited
	if err != nil {
		r.again = ctx.Err() == nil && retryable(err) && !errors.Is(err, ErrInProgress)
		return res, err
	}
	if !fresh {
		met, err := r.meet(ctx, tx)
		met.Waited = res.Waited
		return met, err
	}
	// The key was free, or held by a transaction that has rolled back: an earlier COMMIT did not take place.
	r.lostToken, r.lost = nil, nil
	err = r.effect(ctx, tx)
	if err == nil {
		err = r.commit(ctx, tx)
	}
	res.Held = time.Since(claimed)
	if err == nil {
		res.Outcome = Executed
	}
	return res, err
}

// begin begins and claims, in one round trip where the driver can.
func (r *run) begin(ctx context.Context) (tx pg.OwnTx, fresh bool, err error) {
	if r.MaxWait <= 0 {
		return r.beginWithin(ctx, nil)
	}
	tx, fresh, err = r.beginWithin(ctx, newLook(r.left))
	if err == errTimeUp {
		tx, fresh, err = r.beginWithin(ctx, newLastLook())
	}
	return tx, fresh, err
}

// beginWithin is begin within a look, where l is not nil.
func (r *run) beginWithin(ctx context.Context, l *look) (tx pg.OwnTx, fresh bool, err error) {
	begun, ins := time.Now(), r.insertStmt(r.db.NeedsMark())
	if l == nil {
		tx, err = r.db.Begin(ctx, ins)
	} else {
		tx, err = l.begin(ctx, r.db, r.Claim, ins)
	}
	if err == nil {
		if fresh, err = r.claimed(ctx, tx, ins); err != nil {
			_ = tx.Rollback(ctx)
		}
		return tx, fresh, err
	}
	if l == nil {
		return nil, false, r.failed(StageClaim, err)
	}
	if end := l.ended(StageClaim, err, begun); end != nil {
		return nil, false, end
	}
	return nil, false, l.failure(r.failed(StageClaim, err), r.Claim)
}

// meet reads the row that the claim met, ends the transaction, and says what the row means.
func (r *run) meet(ctx context.Context, tx pg.OwnTx) (Result, error) {
	m := r.look(r.lostToken)
	if err := tx.SendAndRollback(ctx, m.stmts()...); err != nil {
		r.again = ctx.Err() == nil && retryable(err)
		return Result{}, r.failed(StageConfirm, err)
	}
	return r.answer(m)
}

// answer says what a row means that was met.
func (r *run) answer(m *met) (Result, error) {
	res, err := r.verdict(m)
	if err == errAgain {
		return res, err
	}
	if m.read.Rows != 0 {
		// The row has answered whose it is. No row is no answer: the claim of a key whose time has passed out of the window
		// meanwhile does not wait for the transaction of the lost COMMIT.
		r.lostToken, r.lost = nil, nil
	}
	if err != nil {
		return res, &Failure{Stage: StageClaim, Err: err}
	}
	return res, nil
}

func (r *run) effect(ctx context.Context, tx pg.OwnTx) error {
	err := effect(ctx, tx, *r.token, func(ctx context.Context, _ pg.Tx) error {
		err := r.fn(ctx, tx)
		if err != nil {
			// Only an error that this transaction met calls for another: fn may have been told the same by somebody else.
			r.again = ctx.Err() == nil && retryable(err) && tx.Check(ctx, *r.token) != nil
		}
		return err
	}, func(ctx context.Context) error {
		state := tx.Check(ctx, *r.token)
		if lost := tx.Rollback(ctx); lost != nil && !errors.Is(state, pg.ErrTxEnded) {
			return lost
		}
		return state
	})
	if f, ok := err.(*Failure); ok && f.Stage == StageConfirm {
		// The connection was lost behind fn. Nothing of it is committed, and the limit of a Check is not the caller's.
		r.again = ctx.Err() == nil && (retryable(err) || errors.Is(err, context.DeadlineExceeded))
	}
	return err
}

// commit commits, and keeps what is needed to settle the answer when it does not come.
func (r *run) commit(ctx context.Context, tx pg.OwnTx) error {
	if err := ctx.Err(); err != nil {
		// Nothing is sent, so that this is a plain no. A Commit with a done context would close the connection.
		_ = tx.Rollback(ctx)
		return &Failure{Stage: StageCommit, Err: err}
	}
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	if !pgerr.CommitUnknown(err) {
		r.again = ctx.Err() == nil && retryable(err)
		return r.failed(StageCommit, err)
	}
	r.lostToken, r.lost = r.token, err
	r.again = ctx.Err() == nil
	return r.failed(StageCommit, err)
}

// final is the error of a Run that gives up: where a COMMIT has not been settled, it says so.
func (r *run) final(err error) error {
	if r.lost == nil {
		return err
	}
	f := &Failure{
		Stage: StageCommit, Err: r.lost, CommitUnknown: true,
		Hint: "the connection was lost before COMMIT was answered, and the row could not be read in time: deliver the same " +
			"key again to find out",
	}
	if !errors.Is(err, r.lost) {
		f.Err = fmt.Errorf("%w; then %w", r.lost, err)
	}
	return f
}

// pause waits before the next try: exponential backoff with full jitter, so that the losers of one conflict do not meet
// again. It reports false when ctx ends first.
func pause(ctx context.Context, try int) bool {
	const base, longest = 5 * time.Millisecond, time.Second
	d := longest
	if try < 9 {
		d = min(base<<try, longest)
	}
	t := time.NewTimer(rand.N(d) + time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
