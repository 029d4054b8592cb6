package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Reservation is [idem.Reservation] over database/sql: a key held for one attempt at an effect outside of the database.
// [Call] makes the usual use of it; take the parts where that does not fit. It is a small value, safe to copy, and its
// methods are safe for concurrent use where what they are given is.
//
// Every method changes the row in one statement that only the holder of this attempt can make: after a take-over each of
// them returns [idem.ErrLostLease] and changes nothing. On any other error it is open whether the change was made; called
// again, ErrLostLease may then mean that it was.
type Reservation struct {
	Key     idem.Key
	Attempt int // from 1; more than 1: earlier attempts were interrupted, and may have taken effect

	// Value is, for a Duplicate, what Confirm stored; else nil.
	Value []byte

	once Once
	held claim.Held
}

// Reserve commits a pending row for key, for an effect that must not happen inside of a transaction. lease is how long
// the attempt may take, by the server's clock; it must be positive.
//
//   - First call: Executed, and the reservation is this caller's: act, then Confirm.
//   - The key is done: Duplicate, with the stored Value, and no write. It ended in a final failure: *[idem.FinalError].
//   - Another holder's lease lives: [idem.ErrInProgress]. It never lasts longer than that lease.
//   - A transaction holds the key, as one that confirms it: Reserve waits for it. With [Once.MaxWait], ErrInProgress after
//     that long in all.
//   - The lease ran out: taken over, Executed with the next attempt number. The earlier attempt may have taken effect:
//     pass the same Key.External() to the provider again, and only while it remembers.
//   - The key's time lies before the retention, and there is no row: [idem.ErrExpired].
//
// Reserve owns a transaction, at the server's default isolation, in which it inserts the row and reads what is there; a
// take-over is one more. It tries once: a conflict at REPEATABLE READ, or a lost connection, is retryable. Where the reply
// to its COMMIT is lost, the row may be reserved until the lease ends. The Observer is not told, for the effect is not
// Reserve's. Safe for concurrent use where db is.
//
// A pooler must keep a transaction on one connection. PgBouncer in statement mode does not: Reserve fails, and nothing
// is reserved.
func (o Once) Reserve(ctx context.Context, db DB, key idem.Key, lease time.Duration) (Reservation, idem.Outcome, error) {
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

// Confirm settles the key as done, with a value for duplicates (at most dedup.MaxValueBytes; nil: none), in the caller's
// transaction: what the answer of the provider leads to in the database belongs into the same one. The lease may have run
// out meanwhile, as long as nobody took over. A tx at REPEATABLE READ whose snapshot is older than the reservation does not
// see it: that is [idem.ErrLostLease], too. After an error, ErrLostLease among them, tx is failed, as after an SQL error,
// so that this holder's writes cannot be committed; unless nothing was sent, see [Do]. The caller owns tx; like [Do],
// Confirm refuses a *sql.DB.
//
// Duplicates of a [Call] decode value as JSON: to settle one of those by hand, give it the JSON of its answer.
func (r Reservation) Confirm(ctx context.Context, tx Conn, value []byte) error {
	ctx, tx = whole(ctx, tx)
	seam, err := open(ctx, tx)
	if err != nil {
		return r.translate(err)
	}
	return r.translate(r.held.Confirm(ctx, seam, value))
}

// Fail settles the key with a failure that no retry can mend; duplicates get value in a *[idem.FinalError]. db may be a
// *sql.DB, a connection or a transaction.
func (r Reservation) Fail(ctx context.Context, db Conn, value []byte) error {
	return r.translate(r.held.Fail(ctx, pg.FromSQL(db), value))
}

// Extend prolongs the lease to lease from now, by the server's clock; it never shortens it. lease must be positive. For an
// attempt that takes longer than was thought.
func (r Reservation) Extend(ctx context.Context, db Conn, lease time.Duration) error {
	return r.translate(r.held.Extend(ctx, pg.FromSQL(db), lease))
}

// Release ends an attempt that is known to have sent nothing. After a first attempt the key is as if it had never been
// seen; after a later one it is unfinished, for an earlier attempt may have sent.
func (r Reservation) Release(ctx context.Context, db Conn) error {
	return r.translate(r.held.Release(ctx, pg.FromSQL(db)))
}

// Void deletes the key, of which it was found out that no attempt took effect: the next delivery begins anew. It is one of
// the ways to settle a key of [idem.ErrUnknown]; Confirm and Fail are the others. Void only once no request of an earlier
// attempt can still be on its way.
func (r Reservation) Void(ctx context.Context, db Conn) error {
	return r.translate(r.held.Void(ctx, pg.FromSQL(db)))
}

func (r Reservation) translate(err error) error { return r.once.translate(r.Key.Scope(), err) }

// Open lists up to limit keys that are reserved or unfinished, those open for the longest first; an empty Source or
// Operation of scope stands for all. It is what a reconciliation begins with: reserve each unfinished key, then look at
// the provider, then Confirm, Fail or Void; why in this order is said at [idem.Once.Pending].
//
// It reads the whole table: the lease has no index, which keeps claims and extensions cheap. db may be a *sql.DB, a
// connection or a transaction.
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
