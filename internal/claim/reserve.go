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
	ErrUnknown   = errors.New("an attempt was interrupted, and the provider may have forgotten it: whether it took " +
		"effect must be settled by looking there")
)

// Lease is a reservation as its holder knows it.
type Lease struct {
	Attempt, Born int64
	Since         time.Time // by the holder's clock; the server began the lease no earlier
}

// Reserve reserves the key for lease, in a transaction of its own. remembers limits a take-over, see takeOverSQL;
// negative: for ever. The row of a key that is settled already comes back with its Result; then the Held is nil.
func (c *Claim) Reserve(
	ctx context.Context, conn pg.Conn, lease, remembers time.Duration,
) (*Held, Record, Result, error) {
	if lease <= 0 {
		return nil, Record{}, Result{}, &Failure{Stage: StageReserve, Err: errLease}
	}
	if err := c.outside(ctx, StageReserve); err != nil {
		return nil, Record{}, Result{}, err
	}
	r := reserving{
		claim: c, conn: conn, lease: max(lease, time.Microsecond), remembers: remembers,
		deadline: time.Now().Add(c.MaxWait), end: ErrInProgress,
	}
	for range looks {
		held, row, res, err := r.try(ctx)
		if !errors.Is(err, errAgain) {
			return held, row, res, err
		}
	}
	return nil, Record{}, Result{}, &Failure{Stage: StageReserve, Err: r.end}
}

// reserving is one call of [Claim.Reserve].
type reserving struct {
	claim            *Claim
	conn             pg.Conn
	lease, remembers time.Duration
	deadline         time.Time

	end  error // of the call, should no further try settle it
	same int   // how often a row could not be taken over, and was the same afterwards
}

// try inserts the row, or else looks at the one that is there and takes it over if it may; errAgain asks for another
// try.
func (r *reserving) try(ctx context.Context) (*Held, Record, Result, error) {
	c := r.claim
	got := &Held{claim: c, Lease: Lease{Since: time.Now()}}
	ins, m := c.reserveStmt(&got.Lease, r.lease), c.look(nil)
	if err := r.send(ctx, append([]*pg.Stmt{ins}, m.stmts()...)...); err != nil {
		return nil, Record{}, Result{}, err
	}
	if ins.Rows == 1 {
		err := got.renew(ctx, r.conn, r.lease)
		if errors.Is(err, ErrLostLease) {
			return nil, Record{}, Result{}, r.again(ErrInProgress)
		}
		return got, Record{}, Result{}, err
	}
	res, err := c.verdict(m)
	switch {
	case err == nil:
		return nil, m.record, res, nil
	case errors.Is(err, errAgain):
		return nil, Record{}, Result{}, r.again(errHidden)
	case !errors.Is(err, ErrUnfinished):
		return nil, m.record, res, &Failure{Stage: StageReserve, Err: err}
	}
	got, row, err := r.takeOver(ctx, m.record)
	return got, row, Result{}, err
}

// takeOver takes the reservation of the row found, whose lease has run out.
func (r *reserving) takeOver(ctx context.Context, found Record) (*Held, Record, error) {
	c := r.claim
	got := &Held{claim: c, Lease: Lease{Since: time.Now()}}
	take := c.takeOverStmt(&got.Lease, r.lease, r.remembers, found)
	if err := r.send(ctx, take); err != nil {
		return nil, Record{}, err
	}
	if take.Rows == 1 {
		return got, Record{}, nil
	}
	// Somebody was faster, and the next look says so; or the provider's memory is over.
	end := ErrInProgress
	now, err := c.Lookup(ctx, r.conn)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return nil, Record{}, err
	case forgotten(now, r.lease, r.remembers):
		return nil, now, &Failure{Stage: StageReserve, Err: ErrUnknown}
	case now.State() == Unfinished && now.Attempt == found.Attempt && now.ProcessedAt == found.ProcessedAt:
		// Once it can be chance, as above. A row that is the same after every try is one that does not change.
		if r.same++; r.same == looks {
			end = errFixed
		}
	}
	return nil, Record{}, r.again(end)
}

// again asks for another try; end is the call's answer where that was the last.
func (r *reserving) again(end error) error {
	r.end = end
	return errAgain
}

// renew begins a first attempt's lease anew where much of it went by before the server answered: the INSERT counts it
// from its own beginning, before it waits for a transaction that holds the key, and could return a reservation that
// is over. Why not a later attempt's too: it would have to end within the provider's memory.
func (h *Held) renew(ctx context.Context, conn pg.Conn, lease time.Duration) error {
	if time.Since(h.Since) <= lease/2 {
		return nil
	}
	h.Since = time.Now()
	return h.Extend(ctx, conn, lease)
}

// forgotten says of a row that could not be taken over whether that is because there is no time for another attempt
// in the provider's memory. Why not simply because the row is still there: the holder may have extended its lease in
// between, and let it run out again. What is left of a memory only gets less, so that what is true of this later look
// stays true.
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

// send sends stmts as one implicit transaction. With a MaxWait, other transactions that hold the row are waited for
// until the deadline: a holder that confirms, and one whose machine is gone while it did.
func (r *reserving) send(ctx context.Context, stmts ...*pg.Stmt) error {
	c, conn := r.claim, r.conn
	if c.MaxWait <= 0 {
		if err := conn.Send(ctx, stmts...); err != nil {
			return c.failed(StageReserve, err)
		}
		return nil
	}
	begun, l := time.Now(), newLook(time.Until(r.deadline))
	err := conn.Send(ctx, append(l.before(c), stmts...)...)
	if err == nil {
		return nil
	}
	end := l.ended(StageReserve, err, begun)
	if end != errTimeUp {
		return c.failed(StageReserve, err)
	}
	begun, l = time.Now(), newLastLook()
	for _, s := range stmts {
		s.Rows, s.Done = 0, false
	}
	// The lock of a table can only be taken in a transaction that was begun.
	tx, err := l.begin(ctx, pg.DBOf(conn), c, stmts...)
	if err == nil {
		if err = tx.Commit(ctx); err != nil {
			return c.failed(StageReserve, err)
		}
		return nil
	}
	if end := l.ended(StageReserve, err, begun); end != nil {
		return end
	}
	return l.failure(c.failed(StageReserve, err), c)
}
