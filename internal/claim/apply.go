package claim

import (
	"context"
	"slices"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Apply claims the key, has the effects done and commits, in one round trip where the key is new, and with the
// retries of [Run]. An error of an effect comes back as it is, every other one as a *Failure.
func Apply(ctx context.Context, db pg.DB, c *Claim, effects pg.Whole) (Result, error) {
	return c.Told(ctx, func() (Result, error) {
		if err := c.outside(ctx, StageClaim); err != nil {
			return Result{}, err
		}
		a := apply{run: run{Claim: c, db: db, fn: effects.SendIn, left: c.MaxWait}, effects: effects}
		return a.until(ctx, a.try)
	})
}

// apply is the state of one Apply across its tries.
type apply struct {
	run
	effects pg.Whole
	own     int64 // the token of the current try. A row with that of an earlier one must not let the effects happen again
}

// try is one transaction.
func (a *apply) try(ctx context.Context) (res Result, err error) {
	a.again = false
	if err := ctx.Err(); err != nil {
		return Result{}, &Failure{Stage: StageClaim, Err: err}
	}
	if a.lost != nil {
		// A claim that is answered before COMMIT is sent settles it. Another one that is lost would leave two open.
		return a.tryFrom(ctx, a.begin)
	}
	ins, m := a.insertStmt(false), a.look(nil)
	a.own, ins.Dest = ins.Args[len(ins.Args)-1].(int64), nil // stmtProve is asked instead
	alone := &pg.Stmt{SQL: pinnedAlone}
	stmts := []*pg.Stmt{alone, m.read, ins}
	var l *look
	if a.MaxWait > 0 {
		// Nothing may wait for the table's lock outside the limit, nor have a limit of its own.
		l = newLook(a.left)
		stmts = slices.Concat([]*pg.Stmt{alone}, l.before(a.Claim), []*pg.Stmt{ins}, l.after())
	}
	stmts = append(stmts, &pg.Stmt{SQL: a.SQL.text[stmtProve], Args: a.args(a.own)})

	begun := time.Now()
	committed, broken := a.effects.Send(ctx, stmts, func() []*pg.Stmt {
		// A row that was there before this transaction wrote anything is somebody else's, and committed. One that the
		// statements behind it would find could be made by a trigger, and would be gone with the transaction.
		if m.read.Rows > 0 {
			return nil
		}
		m = a.look(nil)
		return m.stmts()
	})
	res.Waited = time.Since(begun)
	a.left -= res.Waited
	switch {
	case broken != nil && broken.Stmt == alone && broken.Undone && pgerr.Is(broken.Err, pg.NotNew):
		return a.tryFrom(ctx, a.begin)
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
		own := a.own
		a.lostToken, a.lost, a.again = &own, err, ctx.Err() == nil
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
	a.again = ctx.Err() == nil && retryable(err)
	return err
}
