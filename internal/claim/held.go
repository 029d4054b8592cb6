package claim

import (
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

var (
	errLease   = errors.New("the lease must be positive")
	errNotHeld = errors.New("this Reservation holds nothing; take one that Reserve returned with Executed")
)

// Held is a reservation: its lease, and the claim that reserved it. The zero Held holds nothing, and refuses every
// move. A Held is a value that does not change, and is safe for concurrent use.
type Held struct {
	claim *Claim
	Lease
}

// Confirm settles the key as done, in the caller's transaction. A holder that lost its lease must not have its effects
// committed, whatever the caller does with the error: any error fails tx, but that of a call that sent nothing.
func (h Held) Confirm(ctx context.Context, tx pg.Tx, value []byte) error {
	err := h.settle(ctx, tx, StageConfirm, stmtConfirm, value, newToken(false))
	if err != nil && !unsent(err) {
		_ = tx.Fail(ctx)
	}
	return err
}

// Fail settles it with a final failure.
func (h Held) Fail(ctx context.Context, conn pg.Conn, value []byte) error {
	return h.settle(ctx, conn, StageFail, stmtFail, value)
}

// settle is a move that stores a value.
func (h Held) settle(ctx context.Context, conn pg.Conn, stage Stage, stmt statement, value []byte, more ...any) error {
	if h.claim != nil {
		if err := h.claim.fits(value); err != nil {
			return err
		}
	}
	return h.move(ctx, conn, stage, stmt, append([]any{bytes(value)}, more...)...)
}

// Extend prolongs the lease.
func (h Held) Extend(ctx context.Context, conn pg.Conn, lease time.Duration) error {
	if h.claim != nil && lease <= 0 {
		return &Failure{Stage: StageExtend, Err: errLease}
	}
	return h.move(ctx, conn, StageExtend, stmtExtend, max(lease, time.Microsecond).Microseconds())
}

// End ends the lease early; what came of the attempt is open.
func (h Held) End(ctx context.Context, conn pg.Conn) error {
	return h.move(ctx, conn, StageEnd, stmtEnd)
}

// Release ends an attempt that sent nothing. Of the first attempt nothing stays; after it, an earlier one may have
// sent.
func (h Held) Release(ctx context.Context, conn pg.Conn) error {
	if h.Attempt == 1 {
		return h.move(ctx, conn, StageRelease, stmtVoid)
	}
	return h.move(ctx, conn, StageRelease, stmtRelease)
}

// Void deletes the key of which it is known that nothing was sent by any attempt.
func (h Held) Void(ctx context.Context, conn pg.Conn) error {
	return h.move(ctx, conn, StageVoid, stmtVoid)
}

// move sends one of the moves of a holder.
func (h Held) move(ctx context.Context, conn pg.Conn, stage Stage, stmt statement, args ...any) error {
	if h.claim == nil {
		return &Failure{Stage: StageReserve, Err: errNotHeld}
	}
	if err := h.claim.outside(ctx, stage); err != nil {
		return err
	}
	s := h.stmt(stmt, args...)
	var proof int64 // the row's token, or its attempt
	s.Dest = []any{&proof}
	if err := conn.Send(ctx, s); err != nil {
		return h.claim.sent(stage, err, s)
	}
	if s.Rows != 0 {
		return nil
	}
	// Lost either way. Whether there is a row at all is worth another look, for the way out is another one.
	_, err := h.claim.Lookup(ctx, conn)
	return h.claim.lostLease(stage, errors.Is(err, ErrNotFound))
}

func (h Held) stmt(stmt statement, args ...any) *pg.Stmt {
	return &pg.Stmt{SQL: h.claim.SQL.text[stmt], Args: h.claim.args(append([]any{h.Attempt, h.Born}, args...)...)}
}

// lostLease is the failure of a holder whose move found no row of its own; none: no row of the key at all.
func (c *Claim) lostLease(stage Stage, none bool) *Failure {
	f := &Failure{Stage: stage, Err: ErrLostLease}
	if none {
		f.Hint = "this transaction sees no row of the key: it was deleted, is newer than the transaction's snapshot, or " +
			c.astray()
	}
	return f
}

// bytes is nil as NULL.
func bytes(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// Finish confirms and runs fn in one transaction of its own, with the retries of [Run]. The confirmation comes first:
// it locks the row, so that nobody takes over meanwhile.
func (h Held) Finish(ctx context.Context, db pg.DB, value []byte, fn func(context.Context, pg.Tx) error) error {
	c := h.claim
	if err := c.fits(value); err != nil {
		return err
	}
	r := run{Claim: c, db: db, fn: c.guard(fn)}
	for try := 1; ; try++ {
		err := r.finish(ctx, h, value)
		if err == nil {
			return nil
		}
		if !r.again || try >= c.Tries || !pause(ctx, try) {
			return r.final(err)
		}
	}
}

// finish is one transaction of Finish.
func (r *run) finish(ctx context.Context, h Held, value []byte) error {
	r.again = false
	stmt := stmtConfirm
	if r.db.NeedsMark() {
		stmt = stmtConfirmMarked
	}
	r.token = nil
	s := h.stmt(stmt, bytes(value), newToken(r.db.NeedsMark()))
	s.Dest = []any{&r.token}
	tx, err := r.db.Begin(ctx, s)
	if err != nil {
		r.again = ctx.Err() == nil && retryable(err)
		return r.failed(StageConfirm, err)
	}
	confirmed, err := r.wrote(StageConfirm, s)
	switch {
	case err != nil:
		_ = tx.Rollback(ctx)
		return err
	case !confirmed:
		return r.finished(ctx, tx, h.Lease)
	}
	r.lostToken, r.lost = nil, nil
	if err := r.effect(ctx, tx); err != nil {
		return err
	}
	return r.commit(ctx, tx)
}

// finished tells a lease that was lost from a COMMIT that took place, though its reply was lost: then the row holds the
// token of that try. Where the row is gone, or is another one, it cannot tell.
func (r *run) finished(ctx context.Context, tx pg.OwnTx, l Lease) error {
	var rec Record
	read := r.readStmt(&rec)
	err := tx.SendAndRollback(ctx, read)
	switch {
	case err != nil && r.lost == nil:
		return r.lostLease(StageConfirm, false)
	case err != nil:
		r.again = ctx.Err() == nil && retryable(err)
		return r.failed(StageConfirm, err)
	}
	own := rec.holds(r.lostToken)
	if read.Rows != 0 && rec.ProcessedAt == l.Born {
		r.lostToken, r.lost = nil, nil
	}
	if own {
		return nil
	}
	return r.lostLease(StageConfirm, read.Rows == 0)
}
