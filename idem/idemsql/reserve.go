package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Reservation is [idem.Reservation] over database/sql: a key held for one attempt at an effect outside the database. It
// is a small value, safe to copy. Its methods are safe for concurrent use if their arguments are.
type Reservation struct {
	Key     idem.Key
	Attempt int // from 1; more than 1: earlier attempts were interrupted, and may have taken effect

	// Value is, for a Duplicate, what Confirm stored; else nil.
	Value []byte

	once Once
	held claim.Held
}

// Reserve is [idem.Once.Reserve] over database/sql: it commits a pending row for key. Executed means that the
// reservation is this caller's: act, then Confirm. A duplicate gets the stored Value. While another lease lives it is
// [idem.ErrInProgress]; one that ran out is taken over.
//
// Reserve owns a transaction, at the server's default isolation; a take-over is one more. It tries once: a conflict at
// REPEATABLE READ, or a lost connection, is retryable. If the reply to its COMMIT is lost, the row may be reserved
// until the lease ends. Safe for concurrent use if db is. Behind PgBouncer in statement mode it fails, and reserves
// nothing.
func (o Once) Reserve(
	ctx context.Context, db DB, key idem.Key, lease time.Duration,
) (Reservation, idem.Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return Reservation{}, 0, err
	}
	held, rec, _, err := c.Reserve(ctx, pg.FromSQLAlone(db), lease, -1)
	switch {
	case err != nil:
		return Reservation{}, 0, o.translate(key.Scope(), err)
	case held == nil:
		return Reservation{Key: key, Attempt: int(rec.Attempt), Value: rec.Value}, idem.Duplicate, nil
	}
	return Reservation{Key: key, Attempt: int(held.Attempt), once: o, held: *held}, idem.Executed, nil
}

// Confirm is [idem.Reservation.Confirm]: it settles the key as done, with a value for duplicates, in the caller's
// transaction. After an error tx is failed, as there. The caller owns tx. Like [Do], Confirm refuses a *sql.DB.
func (r Reservation) Confirm(ctx context.Context, tx Conn, value []byte) error {
	ctx, tx = whole(ctx, tx)
	seam, err := open(ctx, tx)
	if err != nil {
		return r.translate(err)
	}
	return r.translate(r.held.Confirm(ctx, seam, value))
}

// Fail is [idem.Reservation.Fail]: it settles the key with a failure that no retry can help. db may be a *sql.DB, a
// connection or a transaction.
func (r Reservation) Fail(ctx context.Context, db Conn, value []byte) error {
	return r.translate(r.held.Fail(ctx, pg.FromSQL(db), value))
}

// Extend is [idem.Reservation.Extend]: it makes the lease end lease from now, and never earlier.
func (r Reservation) Extend(ctx context.Context, db Conn, lease time.Duration) error {
	return r.translate(r.held.Extend(ctx, pg.FromSQL(db), lease))
}

// Release is [idem.Reservation.Release]: it ends an attempt that certainly sent nothing.
func (r Reservation) Release(ctx context.Context, db Conn) error {
	return r.translate(r.held.Release(ctx, pg.FromSQL(db)))
}

// Void is [idem.Reservation.Void]: it deletes a key of which no attempt took effect.
func (r Reservation) Void(ctx context.Context, db Conn) error {
	return r.translate(r.held.Void(ctx, pg.FromSQL(db)))
}

func (r Reservation) translate(err error) error { return r.once.translate(r.Key.Scope(), err) }

// Pending is [idem.Once.Pending]: it lists up to limit keys that are reserved or unfinished. There stands how to settle
// them. db may be a *sql.DB, a connection or a transaction.
func (o Once) Pending(ctx context.Context, db Conn, scope idem.Scope, limit int) ([]idem.PendingKey, error) {
	found, err := o.settings().Pending(ctx, pg.FromSQL(db), scope.Source, scope.Operation, limit)
	if err != nil {
		return nil, o.translate(scope, err)
	}
	all := make([]idem.PendingKey, len(found))
	for i, f := range found {
		front.Restore(&all[i].Key, f.Facts)
		all[i].Record = record(f.Record)
	}
	return all, nil
}
