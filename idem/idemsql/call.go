package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Call is [idem.Call] over database/sql: it makes one call to somebody else's system happen once for a key, as far as that
// system allows. It reserves the key, calls Send, and then applies and confirms the answer in one transaction; whatever dies
// on the way, the next delivery goes on, with the same external key. Where the provider forgets keys, or knows none, it is
// at most once, and an interrupted attempt ends in [idem.ErrUnknown] until somebody has looked; see [Once.Pending].
//
// A pooler must keep a transaction on one connection. PgBouncer in statement mode does not: Run fails, and Send is not
// called.
//
// A Call is a plain value, safe for concurrent use, and usually a field of the service that uses it.
type Call[T any] struct {
	// Once holds the settings. TxOptions are those of the transaction of Apply, and MaxWait bounds the wait for a transaction
	// that holds the key; a living reservation is reported at once.
	Once Once

	// Lease is how long one attempt may take: Send's context ends with it. It must be positive.
	Lease time.Duration

	// Remembers is how long after the first attempt the provider still knows externalKey: 23 hours are safe with
	// Stripe's v1 API. 0: it knows none, so that an interrupted attempt is idem.ErrUnknown. Otherwise it must not be
	// shorter than Lease.
	Remembers time.Duration

	// Send makes the call, and passes externalKey to the provider. It runs outside of any transaction, holds no connection
	// of the pool, and may run again with the same externalKey. It must heed its context, and not be nil. Its error comes
	// wrapped, so that [idem.Retryable] knows whether the next delivery makes another attempt, and is one of three: marked
	// by [idem.Final], no retry can mend it, and it is stored; marked by [idem.Unsent], nothing was sent; any other one, a
	// time-out among them, leaves open what happened, and the next delivery tries again while the provider remembers.
	Send func(ctx context.Context, externalKey string) (T, error)

	// Apply writes what the answer means to the database, in the transaction that settles the key. It may be nil. As fn of
	// [Run], it may run more than once, gets a tx without an end, and errors of its own come back as they are. After one of
	// those the call has been made all the same: the next delivery asks the provider again, and applies its answer; where
	// the provider does not remember, the answer is gone, and the next delivery gets idem.ErrUnknown.
	Apply func(ctx context.Context, tx Tx, v T) error
}

// Run makes the call for key.
//
//   - First call: Send, then Apply and the confirmation in one transaction. It returns the answer and Executed.
//   - Duplicate: the stored answer and Duplicate; nothing is called, nothing written. A key that was settled without an
//     answer, as by [Do], is an *[idem.Error] of stage "value".
//   - Concurrent duplicate: [idem.ErrInProgress] at once, with nothing called. Only for a transaction that holds the key
//     does it wait; see MaxWait.
//   - A final failure: *[idem.FinalError], now and for every duplicate.
//   - Interrupted before: taken over with the next attempt, or [idem.ErrUnknown].
//   - An attempt that outlives its lease, and was taken over: [idem.ErrLostLease]; the other attempt answers for the key.
//
// A ctx that ends before Send is called releases the key. One that ends later ends Send's context; but an answer that has
// been had is applied and confirmed all the same, for which there are 5 seconds more. A Send or Apply that panics, or ends
// the goroutine, leaves the key to the next delivery, as an error does.
//
// Run owns its transactions: the reservation is one, as is each end of an attempt (see [Once.Reserve]), and Apply with the
// confirmation is the last. Of the settings, Tries and TxOptions are those of the last one, which may not be read-only: that
// is refused before anything is reserved. A COMMIT of it whose reply is lost is settled as [Run] does, by looking at the row.
// A reservation is tried once: a conflict, or a lost connection, comes as it is, before anything was sent, and is retryable.
// Safe for concurrent use where db is. An answer that cannot be stored (as JSON of at most dedup.MaxValueBytes) is an
// *[idem.Error] of stage "value", and as good as none.
func (c Call[T]) Run(ctx context.Context, db DB, key idem.Key) (T, idem.Outcome, error) {
	engine, err := c.Once.claim(key)
	if err != nil {
		return *new(T), 0, err
	}
	apply := func(ctx context.Context, tx pg.Tx, v T) error {
		if c.Apply == nil {
			return nil
		}
		return run(ctx, tx, func(ctx context.Context, tx Tx) error { return c.Apply(ctx, tx, v) })
	}
	v, res, err := front.Call[T]{
		Lease: c.Lease, Remembers: c.Remembers, External: key.External(), Send: c.Send, Apply: apply,
		ReadOnly: c.Once.TxOptions.ReadOnly,
		Conn:     pg.FromSQLAlone(db), DB: pg.FromSQLDB(db, c.Once.TxOptions),
	}.Run(ctx, engine)
	return v, idem.Outcome(res.Outcome), c.Once.translate(key.Scope(), err)
}
