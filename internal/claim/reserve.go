package claim

import (
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// ErrLostLease and ErrUnknown are what a holder can get beyond the errors of a claim.
var (
	ErrLostLease = errors.New("the reservation is no longer this holder's: another attempt took over, or it has ended")
	ErrUnknown   = errors.New("an attempt was interrupted, and the provider may have forgotten it: whether it took effect must be settled by looking there")
)

// Lease is a reservation as its holder knows it.
type Lease struct {
	Attempt, Born int64
	Since         time.Time // by the holder's clock; the server began the lease no earlier
}

// Reserve reserves the key for lease, in a transaction of its own. remembers limits a take-over, see takeOverSQL; negative:
// for ever. The row of a key that is settled already comes back with its Result; then the Lease is nil.
func (c *Claim) Reserve(ctx context.Context, conn pg.Conn, lease, remembers time.Duration) (*Lease, Record, Result, error) {
	if err := c.outside(ctx, stageReserve); err != nil {
		return nil, Record{}, Result{}, err
	}
	lease = max(lease, time.Microsecond)
	deadline := time.Now().Add(c.MaxWait)
	end, same := ErrInProgress, 0
	for range looks {
		got := Lease{Since: time.Now()}
		ins, m := c.reserveStmt(&got, lease), c.look(nil)
		if err := c.within(ctx, conn, deadline, append([]*pg.Stmt{ins}, m.stmts()...)...); err != nil {
			return nil, Record{}, Result{}, err
		}
		if ins.Rows == 1 {
			err := c.renew(ctx, conn, &got, lease)
			if errors.Is(err, ErrLostLease) {
				end = ErrInProgress
				continue
			}
			return &got, Record{}, Result{}, err
		}
		res, err := c.verdict(m)
		switch {
		case err == nil:
			return nil, m.record, res, nil
		case errors.Is(err, errAgain):
			end = errHidden
			continue
		case !errors.Is(err, ErrUnfinished):
			return nil, m.record, res, &Failure{Stage: stageReserve, Err: err}
		}
		end = ErrInProgress
		got.Since = time.Now()
		take := c.takeOverStmt(&got, lease, remembers, m.record)
		if err := c.within(ctx, conn, deadline, take); err != nil {
			return nil, Record{}, Result{}, err
		}
		if take.Rows == 1 {
			return &got, Record{}, Result{}, nil
		}
		// Somebody was faster, and the next look says so; or the provider's memory is over.
		again, err := c.Lookup(ctx, conn)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return nil, Record{}, Result{}, err
		case forgotten(again, lease, remembers):
			return nil, again, Result{}, &Failure{Stage: stageReserve, Err: ErrUnknown}
		case again.State() == Unfinished && again.Attempt == m.record.Attempt && again.ProcessedAt == m.record.ProcessedAt:
			// Once it can be chance, as above. A row that is the same after every try is one that does not change.
			if same++; same == looks {
				end = errFixed
			}
		}
	}
	return nil, Record{}, Result{}, &Failure{Stage: stageReserve, Err: end}
}

// renew begins a first attempt's lease anew where much of it went by before the server answered: the INSERT counts it from its own
// beginning, before it waits for a transaction that holds the key, and could return a reservation that is over. Why not a
// later attempt's too: it would have to end within the provider's memory.
func (c *Claim) renew(ctx context.Context, conn pg.Conn, l *Lease, lease time.Duration) error {
	if time.Since(l.Since) <= lease/2 {
		return nil
	}
	l.Since = time.Now()
	return c.Extend(ctx, conn, *l, lease)
}

// forgotten says of a row that could not be taken over whether that is because there is no time for another attempt in the
// provider's memory. Why not simply because the row is still there: the holder may have extended its lease in between, and
// let it run out again. What is left of a memory only gets less, so that what is true of this later look stays true.
func forgotten(r Record, lease, remembers time.Duration) bool {
	return !r.Done && !r.Leased && remembers >= 0 && r.AgeMicros+lease.Microseconds() > remembers.Microseconds()
}

func (c *Claim) reserveStmt(got *Lease, lease time.Duration) *pg.Stmt {
	var hash any
	if c.PayloadHash != nil {
		hash = c.PayloadHash
	}
	s := &pg.Stmt{
		SQL: c.SQL.text[stmtReserve], Args: append(c.key(), hash, lease.Microseconds()),
		Dest: []any{&got.Attempt, &got.Born},
	}
	if c.Timed {
		s.SQL = c.SQL.text[stmtReserveTimed]
		s.Args = append(s.Args, c.At, c.Retention.Microseconds(), c.Skew.Microseconds())
	}
	s.Args = append(s.Args, newToken(false))
	return s
}

func (c *Claim) takeOverStmt(got *Lease, lease, remembers time.Duration, r Record) *pg.Stmt {
	var memory any
	if remembers >= 0 {
		memory = remembers.Microseconds()
	}
	return &pg.Stmt{
		SQL: c.SQL.text[stmtTakeOver], Args: c.args(lease.Microseconds(), memory, r.ProcessedAt, newToken(false)),
		Dest: []any{&got.Attempt, &got.Born},
	}
}

// within sends stmts as one implicit transaction. With a MaxWait, other transactions that hold the row are waited for
// until deadline: a holder that confirms, and one whose machine is gone while it did.
func (c *Claim) within(ctx context.Context, conn pg.Conn, deadline time.Time, stmts ...*pg.Stmt) error {
	if c.MaxWait <= 0 {
		if err := conn.Send(ctx, stmts...); err != nil {
			return c.failed(stageReserve, err)
		}
		return nil
	}
	begun, l := time.Now(), newLook(time.Until(deadline))
	err := conn.Send(ctx, append(l.before(c), stmts...)...)
	if err == nil {
		return nil
	}
	end := l.ended(stageReserve, err, begun)
	if end != errTimeUp {
		return c.failed(stageReserve, err)
	}
	begun, l = time.Now(), newLastLook()
	for _, s := range stmts {
		s.Rows, s.Done = 0, false
	}
	// The lock of a table can only be taken in a transaction that was begun.
	tx, err := l.begin(ctx, pg.DBOf(conn), c, stmts...)
	if err == nil {
		if err = tx.Commit(ctx); err != nil {
			return c.failed(stageReserve, err)
		}
		return nil
	}
	if end := l.ended(stageReserve, err, begun); end != nil {
		return end
	}
	return l.failure(c.failed(stageReserve, err), c)
}

// move sends one of the moves of a holder.
func (c *Claim) move(ctx context.Context, conn pg.Conn, stage, sql string, l Lease, args ...any) error {
	if err := c.outside(ctx, stage); err != nil {
		return err
	}
	s := c.moveStmt(sql, l, args...)
	var proof int64 // the row's token, or its attempt
	s.Dest = []any{&proof}
	if err := conn.Send(ctx, s); err != nil {
		return c.sent(stage, err, s)
	}
	if s.Rows != 0 {
		return nil
	}
	// Lost either way. Whether there is a row at all is worth another look, for the way out is another one.
	_, err := c.Lookup(ctx, conn)
	return c.lostLease(stage, errors.Is(err, ErrNotFound))
}

// lostLease is the failure of a holder whose move found no row of its own; none: no row of the key at all.
func (c *Claim) lostLease(stage string, none bool) *Failure {
	f := &Failure{Stage: stage, Err: ErrLostLease}
	if none {
		f.Hint = "this transaction sees no row of the key: it was deleted, is newer than the transaction's snapshot, or " + c.astray()
	}
	return f
}

func (c *Claim) moveStmt(sql string, l Lease, args ...any) *pg.Stmt {
	return &pg.Stmt{SQL: sql, Args: c.args(append([]any{l.Attempt, l.Born}, args...)...)}
}

// Confirm settles the key in the caller's transaction. A holder that lost its lease must not have its effects committed,
// whatever the caller does with the error: the front door fails the transaction after any but that of Unsent.
func (c *Claim) Confirm(ctx context.Context, tx pg.Tx, l Lease, value []byte) error {
	return c.move(ctx, tx, stageConfirm, c.SQL.text[stmtConfirm], l, bytes(value), newToken(false))
}

// Fail settles the key with a final failure.
func (c *Claim) Fail(ctx context.Context, conn pg.Conn, l Lease, value []byte) error {
	return c.move(ctx, conn, "fail", c.SQL.text[stmtFail], l, bytes(value))
}

// Extend prolongs the lease.
func (c *Claim) Extend(ctx context.Context, conn pg.Conn, l Lease, lease time.Duration) error {
	return c.move(ctx, conn, "extend", c.SQL.text[stmtExtend], l, max(lease, time.Microsecond).Microseconds())
}

// End ends the lease early; what came of the attempt is open.
func (c *Claim) End(ctx context.Context, conn pg.Conn, l Lease) error {
	return c.move(ctx, conn, "end", c.SQL.text[stmtEnd], l)
}

// Release ends an attempt that sent nothing. Of the first attempt nothing stays; after it, an earlier one may have sent.
func (c *Claim) Release(ctx context.Context, conn pg.Conn, l Lease) error {
	sql := c.SQL.text[stmtRelease]
	if l.Attempt == 1 {
		sql = c.SQL.text[stmtVoid]
	}
	return c.move(ctx, conn, "release", sql, l)
}

// Void deletes the key of which it is known that nothing was sent by any attempt.
func (c *Claim) Void(ctx context.Context, conn pg.Conn, l Lease) error {
	return c.move(ctx, conn, "void", c.SQL.text[stmtVoid], l)
}

// bytes is nil as NULL.
func bytes(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// Finish confirms and runs fn in one transaction of its own, with the retries of [Run]. The confirmation comes first: it
// locks the row, so that nobody takes over meanwhile.
func (c *Claim) Finish(ctx context.Context, db pg.DB, l Lease, value []byte, fn func(context.Context, pg.Tx) error) error {
	r := run{Claim: c, db: db, fn: c.guard(fn)}
	for try := 1; ; try++ {
		err := r.finish(ctx, l, value)
		if err == nil {
			return nil
		}
		if !r.again || try >= c.Tries || !pause(ctx, try) {
			return r.final(err)
		}
	}
}

// finish is one transaction of Finish.
func (r *run) finish(ctx context.Context, l Lease, value []byte) error {
	r.again = false
	sql := r.SQL.text[stmtConfirm]
	if r.db.NeedsMark() {
		sql = r.SQL.text[stmtConfirmMarked]
	}
	r.token = nil
	s := r.moveStmt(sql, l, bytes(value), newToken(r.db.NeedsMark()))
	s.Dest = []any{&r.token}
	tx, err := r.db.Begin(ctx, s)
	if err != nil {
		r.again = ctx.Err() == nil && retryable(err)
		return r.failed(stageConfirm, err)
	}
	confirmed, err := r.wrote(stageConfirm, s)
	switch {
	case err != nil:
		_ = tx.Rollback(ctx)
		return err
	case !confirmed:
		return r.finished(ctx, tx, l)
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
		return r.lostLease(stageConfirm, false)
	case err != nil:
		r.again = ctx.Err() == nil && retryable(err)
		return r.failed(stageConfirm, err)
	}
	own := rec.holds(r.lostToken)
	if read.Rows != 0 && rec.ProcessedAt == l.Born {
		r.lostToken, r.lost = nil, nil
	}
	if own {
		return nil
	}
	return r.lostLease(stageConfirm, read.Rows == 0)
}

// Open is a key that is reserved or unfinished.
type Open struct {
	Source, Operation, Key string
	Record
	At int64 // of a table of layout Weekly: the key's time
}

// OpenKeys lists them; empty source or operation stand for all.
func (c *Claim) OpenKeys(ctx context.Context, conn pg.Conn, limit int) ([]Open, error) {
	var all []Open
	err := conn.Query(ctx, c.SQL.text[stmtOpen], []any{c.Source, c.Operation, int64(limit)}, func(scan func(...any) error) error {
		var o Open
		dest := []any{&o.Source, &o.Operation, &o.Key, &o.Attempt, &o.ProcessedAt, &o.AgeMicros, &o.Leased, (*hexed)(&o.PayloadHash)}
		if c.SQL.weekly {
			dest = append(dest, &o.At)
		}
		err := scan(dest...)
		all = append(all, o)
		return err
	})
	if err != nil {
		return nil, c.failed("open", err)
	}
	return all, nil
}
