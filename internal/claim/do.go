package claim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// looks is how often a key is claimed whose row can be neither inserted nor read. One purge in between makes two.
const looks = 3

// Do claims the key in the caller's transaction and runs fn when the row is new. An error of fn comes back as it is,
// every other one as a *Failure. fn's failure, of any kind, fails the transaction, and so does a statement's: no commit
// may bring a key without its effect.
func Do(ctx context.Context, tx pg.Tx, c *Claim, fn func(context.Context, pg.Tx) error) (Result, error) {
	return c.Told(ctx, func() (Result, error) { return c.do(ctx, tx, fn) })
}

func (c *Claim) do(ctx context.Context, tx pg.Tx, fn func(context.Context, pg.Tx) error) (Result, error) {
	if err := c.outside(ctx, StageClaim); err != nil {
		return Result{}, err
	}
	begun := time.Now()
	fresh, res, err := c.claim(ctx, tx)
	claimed := time.Now()
	res.Waited = claimed.Sub(begun)
	if f, ok := err.(*Failure); ok && f.unclear {
		_ = tx.Fail(ctx)
	}
	if err != nil || !fresh {
		return res, err
	}
	err = effect(ctx, tx, *c.token, c.guard(fn), tx.Fail)
	res.Held = time.Since(claimed)
	if err != nil {
		return res, err
	}
	res.Outcome = Executed
	return res, nil
}

// effect runs fn on the transaction of a new claim, and undoes it unless fn returned nil and left tx able to go on.
// undo is deferred, and nothing recovered: a panic keeps its stack, and runtime.Goexit (t.FailNow) is covered too.
// Where undo finds that tx had ended before, the key may be committed with half of the effect, and fn's error alone
// would hide it.
func effect(
	ctx context.Context, tx pg.Tx, token int64, fn func(context.Context, pg.Tx) error, undo func(context.Context) error,
) (err error) {
	var unanswered error // by Check, after fn had returned nil
	good := false
	defer func() {
		if good {
			return
		}
		ended := undo(ctx)
		switch {
		case unanswered != nil:
			err = notAnswered(unanswered, ended)
		case errors.Is(ended, pg.ErrCanceled) && errors.Is(err, sql.ErrTxDone):
			err = &Failure{Stage: StageConfirm, Err: fmt.Errorf("%w, and fn returned: %w", ended, err)}
		case err != nil && errors.Is(ended, pg.ErrTxEnded) && !errors.Is(err, pg.ErrTxEnded):
			err = &Failure{
				Stage: StageFn, Err: fmt.Errorf("%w, and fn returned: %w", ended, err),
				Hint: "fn ended the transaction in SQL text: look what it committed, for the key may be there without the whole effect",
			}
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	switch err := tx.Check(ctx, token); {
	case errors.Is(err, pg.ErrNoAnswer):
		unanswered = err
		return err
	case errors.Is(err, pg.ErrCanceled):
		return &Failure{Stage: StageConfirm, Err: err}
	case err != nil:
		return Misuse(err)
	}
	good = true
	return nil
}

// notAnswered is the failure of a call whose fn returned nil, and whose transaction then did not answer. ended is
// what the roll back found. Where the connection is lost, or the server says why, fn has no part in it.
func notAnswered(err, ended error) error {
	switch {
	case pgerr.Code(err) != "", errors.Is(err, context.DeadlineExceeded):
	case errors.Is(ended, pg.ErrLost) && pgerr.Retryable(err):
	default: // rows are open
		return Misuse(err)
	}
	return &Failure{Stage: StageConfirm, Err: err}
}

// Misuse is the failure of a call whose fn returned nil and left its transaction in a state that nil does not stand
// for.
func Misuse(err error) *Failure {
	return &Failure{
		Stage: StageFn, Err: err,
		Hint: "fn returned nil; it must return the error that it saw, close its rows, and leave the end of the transaction " +
			"to its owner",
	}
}

// claim inserts the key; where it is there already, it says what its row means.
func (c *Claim) claim(ctx context.Context, tx pg.Tx) (fresh bool, res Result, err error) {
	deadline := time.Now().Add(c.MaxWait)
	for range looks {
		if fresh, err = c.insert(ctx, tx, time.Until(deadline)); err != nil || fresh {
			return fresh, Result{}, err
		}
		m := c.look(nil)
		if err := tx.Send(ctx, m.stmts()...); err != nil {
			return false, Result{}, c.sent(StageConfirm, err, m.read)
		}
		switch res, err = c.verdict(m); err {
		case nil:
			return false, res, nil
		case errAgain:
		default:
			return false, res, &Failure{Stage: StageClaim, Err: err}
		}
	}
	return false, Result{}, &Failure{Stage: StageConfirm, Err: errHidden}
}

// insert sends the claim, limited to left where there is a MaxWait; then tx stays usable after ErrInProgress.
func (c *Claim) insert(ctx context.Context, tx pg.Tx, left time.Duration) (fresh bool, err error) {
	if c.MaxWait <= 0 {
		ins := c.insertStmt(tx.NeedsMark())
		if err := tx.Send(ctx, ins); err != nil {
			return false, c.sent(StageClaim, err, ins)
		}
		return c.claimed(ctx, tx, ins)
	}
	save := &pg.Stmt{SQL: savepointSQL}
	fresh, err = c.insertWithin(ctx, tx, newLook(left), save)
	if err == errTimeUp {
		fresh, err = c.insertWithin(ctx, tx, newLastLook(), save)
	}
	if errors.Is(err, ErrInProgress) {
		if err := tx.Send(ctx, &pg.Stmt{SQL: releaseSQL}); err != nil {
			return false, c.failed(StageClaim, err)
		}
	}
	return fresh, err
}

// insertWithin is insert within a look, behind save, unless that is done already. After errTimeUp and ErrInProgress
// tx is as it was there.
func (c *Claim) insertWithin(ctx context.Context, tx pg.Tx, l *look, save *pg.Stmt) (fresh bool, err error) {
	begun, ins, before := time.Now(), c.insertStmt(tx.NeedsMark()), l.before(c)
	if l.last {
		err = tx.Send(ctx, before...)
		before = nil
	} else {
		before = append([]*pg.Stmt{save}, before...)
	}
	if err == nil {
		// The savepoint is released in the same batch. Kept open during fn, its name would be shared with a nested call, and
		// the outer rollback would stop at the inner savepoint.
		err = tx.Send(ctx, slices.Concat(before, []*pg.Stmt{ins}, l.after(), []*pg.Stmt{{SQL: releaseSQL}})...)
	}
	if err == nil {
		return c.claimed(ctx, tx, ins)
	}
	end := l.ended(StageClaim, err, begun)
	if end == nil || !save.Done || ins.Done {
		return false, l.failure(c.sent(StageClaim, err, save), c)
	}
	// Rolling back to the savepoint restores the settings, too. Why not what follows in the same round trip: in a failed
	// transaction the server prepares nothing but statements that end it, and pgx would prepare the others first.
	if err := tx.Send(ctx, &pg.Stmt{SQL: rollbackSQL}); err != nil {
		return false, c.failed(StageClaim, err)
	}
	return false, end
}

// retryable reports whether the whole transaction may be run again at once.
func retryable(err error) bool {
	var f *Failure
	switch {
	case errors.As(err, &f) && f.Stage == StageClaim && pgerr.Is(err, "23505"):
		// While the index of the key is rebuilt concurrently, ON CONFLICT may meet the index that is being built, which
		// it does not absorb. So it is with another unique constraint of the table, where the same event comes twice at
		// once. It's never a duplicate.
		return true
	case pgerr.Is(err, "55P03"), pgerr.Is(err, "25006"):
		// The caller's own lock_timeout has said how long to wait; and the pool's next connection leads to the same standby.
		return false
	}
	return pgerr.Retryable(err)
}
