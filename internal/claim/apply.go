package claim

import (
	"context"
	"slices"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Apply claims the key, has the effects done and commits, in one round trip where the key is new, and with the retries of
// [Run]. An error of an effect comes back as it is, every other one as a *Failure.
func Apply(ctx context.Context, db pg.DB, c *Claim, effects pg.Whole) (Result, error) {
	return c.Told(ctx, func() (Result, error) {
		if err := c.outside(ctx, StageClaim); err != nil {
			return Result{}, err
		}
		a := apply{run: run{Claim: c, db: db, fn: effects.SendIn, left: c.MaxWait}, effects: effects, own: newToken(false)}
		return a.until(ctx, a.try)
	})
}

// apply is the state of one Apply across its tries.
type apply struct {
	run
	effects pg.Whole

	// The token of each try is the same. Which of them were committed may be open of more than one at a time: a
	// connection that is lost does not tell how far the server came. One of them at the most was, and its row says so.
	own int64
}

// try is one transaction.
func (a *apply) try(ctx context.Context) (res Result, err error) {
	a.again = false
	if err := ctx.Err(); err != nil {
		return Result{}, &Failure{Stage: StageClaim, Err: err}
	}
	ins, m := a.insertStmt(false), a.look(&a.own)
	ins.Args[len(ins.Args)-1] = a.own
	stmts := []*pg.Stmt{ins}
	var l *look
	if a.MaxWait > 0 {
		l = newLook(a.left)
		stmts = slices.Concat(l.before(a.Claim), stmts, l.after())
	}
	stmts = append(stmts, &pg.Stmt{SQL: a.SQL.text[stmtProve], Args: a.args(a.own)})

	begun := time.Now()
	committed, broken := a.effects.Send(ctx, stmts, m.stmts())
	res.Waited = time.Since(begun)
	a.left -= res.Waited
	switch {
	case broken != nil && l != nil && broken.Stmt == ins && l.ended(StageClaim, broken.Err, begun) == errTimeUp:
		return a.tryFrom(ctx, func(ctx context.Context) (pg.OwnTx, bool, error) { return a.beginWithin(ctx, newLastLook()) })
	case broken != nil:
		return res, a.broke(ctx, broken)
	case committed:
		res.Outcome = Executed
		return res, nil
	}
	met, err := a.answer(m)
	met.Waited = res.Waited
	return met, err
}

// broke is the error of a try that failed, and keeps what is needed to settle it where that is open.
func (a *apply) broke(ctx context.Context, broken *pg.Broken) error {
	err := broken.Err
	if !broken.Undone && (broken.At != pg.AtCommit || pgerr.CommitUnknown(err)) {
		a.lostToken, a.lost, a.again = &a.own, err, ctx.Err() == nil
		return a.failed(StageCommit, err)
	}
	switch broken.At {
	case pg.AtClaim:
		err = a.failed(StageClaim, err)
	case pg.AtConfirm:
		err = a.failed(StageConfirm, err)
	case pg.AtCommit:
		err = a.failed(StageCommit, err)
	}
	if !broken.Unsent && (broken.At == pg.AtEffect || broken.At == pg.AtCommit) {
		a.lostToken, a.lost = nil, nil // the key was free: an earlier try was not committed
	}
	a.again = ctx.Err() == nil && retryable(err)
	return err
}
