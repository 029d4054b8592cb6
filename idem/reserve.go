package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// What a holder of a reservation can get beyond the errors of [Do].
var (
	// ErrLostLease: the reservation is no longer this holder's. Another attempt took over after the lease ran out, or
	// the key was settled or released. Nothing was changed.
	ErrLostLease = claim.ErrLostLease

	// ErrUnknown: an attempt was interrupted, and the provider may have forgotten it by now, so none is made again.
	// Find out there whether it took effect, and settle the key; see [Once.Pending].
	ErrUnknown = claim.ErrUnknown
)

// Reservation is a key held for one attempt at an effect outside the database. [Call] makes the usual use of it. It is
// a small value, safe to copy, and its methods are safe for concurrent use.
//
// Every method changes the row in one statement that only the holder of this attempt can make; after a take-over each
// returns [ErrLostLease] and changes nothing. Any other error leaves open whether the change was made; called again,
// ErrLostLease may then mean that it was.
type Reservation struct {
	Key     Key
	Attempt int // from 1; more than 1: earlier attempts were interrupted, and may have taken effect

	// Value is, for a Duplicate, what Confirm stored; else nil.
	Value []byte

	once Once
	held claim.Held
}

// Reserve commits a pending row for key, for an effect that must not happen inside a transaction. lease is how long the
// attempt may take, by the server's clock; it must be positive.
//
//   - First call: Executed, and the reservation is this caller's: act, then Confirm.
//   - The key is done: Duplicate, with the stored Value; nothing is written. It ended in a final failure:
//     *[FinalError].
//   - Another holder's lease lives: [ErrInProgress], for no longer than that lease.
//   - A transaction holds the key: Reserve waits for it. With [Once.MaxWait], ErrInProgress after that long in all.
//   - The lease ran out: taken over, Executed with the next attempt number. The earlier attempt may have taken effect:
//     pass the same Key.External() to the provider again, and only while it remembers.
//   - The key's time lies before the retention, and there is no row: [ErrExpired].
//
// Reserve owns a transaction, refuses a connection that is in one, and tries once: a conflict at REPEATABLE READ, or a
// lost connection, is retryable. If its reply is lost, the row may be reserved until the lease ends. The Observer is
// not told. Safe for concurrent use if db is. Behind PgBouncer in statement mode Reserve succeeds, and no transaction
// begins in which Confirm could settle the key.
func (o Once) Reserve(ctx context.Context, db DB, key Key, lease time.Duration) (Reservation, Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return Reservation{}, 0, err
	}
	held, rec, _, err := c.Reserve(ctx, pg.FromPgxAlone(db), lease, -1)
	switch {
	case err != nil:
		return Reservation{}, 0, o.translate(key.Scope(), err)
	case held == nil:
		return Reservation{Key: key, Attempt: int(rec.Attempt), Value: rec.Value}, Duplicate, nil
	}
	return Reservation{Key: key, Attempt: int(held.Attempt), once: o, held: *held}, Executed, nil
}

// Confirm settles the key as done, with a value for duplicates (at most dedup.MaxValueBytes; nil: none), in the
// caller's transaction, which also applies the provider's answer. The lease may have run out, as long as nobody took
// over. Duplicates of a [Call] decode value as JSON.
//
// It is [ErrLostLease], too, if tx at REPEATABLE READ has a snapshot older than the reservation, or the search path
// leads an unqualified table name to another table; if there is no row at all, the error's text names both reasons.
// After an error, ErrLostLease among them, tx is failed, so that this holder's writes cannot be committed; unless
// nothing was sent, see [Do]. The caller owns tx.
func (r Reservation) Confirm(ctx context.Context, tx pgx.Tx, value []byte) error {
	return r.translate(r.held.Confirm(inside(ctx, tx), pg.FromPgxTx(tx), value))
}

// Fail settles the key with a failure that no retry can help; duplicates get value in a *[FinalError]. db may be a
// pool, a connection or a transaction.
func (r Reservation) Fail(ctx context.Context, db dedup.Querier, value []byte) error {
	return r.translate(r.held.Fail(ctx, pg.FromPgx(db), value))
}

// Extend makes the lease end lease from now, by the server's clock, and never earlier than it would. lease must be
// positive.
func (r Reservation) Extend(ctx context.Context, db dedup.Querier, lease time.Duration) error {
	return r.translate(r.held.Extend(ctx, pg.FromPgx(db), lease))
}

// Release ends an attempt that certainly sent nothing. After a first attempt the key is as if never seen. After a later
// one it is unfinished, for an earlier attempt may have sent.
func (r Reservation) Release(ctx context.Context, db dedup.Querier) error {
	return r.translate(r.held.Release(ctx, pg.FromPgx(db)))
}

// Void deletes a key of which no attempt took effect, as somebody has found out; the next delivery begins anew. It
// settles a key of [ErrUnknown], as Confirm and Fail do. Void only once no request of an earlier attempt can still be
// on its way.
func (r Reservation) Void(ctx context.Context, db dedup.Querier) error {
	return r.translate(r.held.Void(ctx, pg.FromPgx(db)))
}

func (r Reservation) translate(err error) error { return r.once.translate(r.Key.Scope(), err) }

// PendingKey is a key that is reserved or unfinished.
type PendingKey struct {
	Key Key // as it was claimed, less its time, where the table does not need it; its payload hash is in the Record
	Record
}

// Pending lists up to limit keys that are reserved or unfinished, those open for the longest first. An empty Source or
// Operation of scope stands for all. A reconciliation, by a person or a job, begins with it. For each unfinished key:
//
//  1. [Once.Reserve] it. That takes it over whatever the provider remembers, and fences every earlier attempt.
//  2. Look at the provider, by Key.External() or by what else it knows. Not earlier: between a look and the reservation
//     a delivery could make another attempt.
//  3. Confirm with the answer, Fail, or Void. If none is done in time, the lease runs out, and the key is open again.
//
// It reads the whole table: the lease has no index, which keeps claims cheap. db may be a pool, a connection or a
// transaction.
func (o Once) Pending(ctx context.Context, db dedup.Querier, scope Scope, limit int) ([]PendingKey, error) {
	found, err := o.settings().Pending(ctx, pg.FromPgx(db), scope.Source, scope.Operation, limit)
	if err != nil {
		return nil, o.translate(scope, err)
	}
	all := make([]PendingKey, len(found))
	for i, f := range found {
		all[i] = PendingKey{Key{facts: f.Facts}, record(f.Record)}
	}
	return all, nil
}
