package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Call makes one call to another system happen once for a key, as far as that system allows: a charge, a mail, a
// shipment. It reserves the key, calls Send, then applies and confirms the answer in one transaction. After a crash the
// next delivery goes on, with the same external key.
//
//   - If the provider keeps idempotency keys for longer than deliveries come (Remembers), the effect happens once.
//   - If it forgets keys, or knows none (Remembers 0), at most once. An interrupted attempt that may be forgotten is
//     not repeated: the key stays with [ErrUnknown] until somebody has looked; see [Once.Pending].
//
// With synchronous_commit off, or a failover to a replica that lags, the reservation of a call can be lost. A pooler
// must keep a transaction on one connection. PgBouncer in statement mode does not: Send is called, and its answer
// cannot be stored.
//
// A Call is a plain value, safe for concurrent use, and usually a field of the service that uses it.
type Call[T any] struct {
	// Once holds the settings: Table, Tries, TxOptions (of the transaction of Apply), Observer, and MaxWait, which
	// bounds the wait for a transaction that holds the key. A living reservation is reported at once.
	Once Once

	// Lease is how long one attempt may take, and the longest that a delivery waits for an attempt that died. Send's
	// context ends with it. It must be positive.
	Lease time.Duration

	// Remembers is how long after the first attempt the provider still knows External(). Stripe's v1 API prunes keys
	// that are at least 24 hours old, so 23 hours are safe there. 0: it knows none, so an interrupted attempt is
	// ErrUnknown. Else it must not be shorter than Lease.
	Remembers time.Duration

	// Send makes the call, and passes externalKey to the provider. It runs outside any transaction, and again with the
	// same externalKey after an interrupted attempt. It must obey its context: a request that leaves after the lease
	// may meet another attempt, or a provider that has forgotten the key. It must not be nil. Its error comes wrapped,
	// for [Retryable]:
	//
	//   - marked by [Final], no retry can help, and it is stored;
	//   - marked by [Unsent], nothing was sent;
	//   - any other, a time-out among them, leaves open what happened: the next delivery tries again while the provider
	//     remembers.
	Send func(ctx context.Context, externalKey string) (T, error)

	// Apply writes what the answer means to the database, in the transaction that settles the key. It may be nil. As fn
	// of [Run], it may run more than once, must not end the transaction, and gets its own errors back. After such an
	// error the next delivery asks the provider again, and applies its answer. If the provider does not remember, the
	// answer is gone: [ErrUnknown].
	Apply func(ctx context.Context, tx pgx.Tx, v T) error
}

// Run makes the call for key.
//
//   - First call: Send, then Apply and the confirmation in one transaction. It returns the answer and Executed.
//   - Duplicate: the stored answer and Duplicate; nothing is called, nothing written. A key that was settled without an
//     answer, as by [Do], is an *[Error] of stage "value".
//   - Concurrent duplicate: [ErrInProgress] at once; nothing is called. It waits only for a transaction that holds the
//     key; see MaxWait.
//   - A final failure: *[FinalError], now and for every duplicate.
//   - Interrupted before: taken over with the next attempt, or [ErrUnknown].
//   - An attempt that outlives its lease, and was taken over: [ErrLostLease]; the other attempt answers for the key.
//
// A ctx that ends before Send is called releases the key. One that ends later ends Send's context; an answer that has
// come is still applied and confirmed, within 5 more seconds. A Send or Apply that panics, or ends the goroutine,
// leaves the key to the next delivery, as an error does. An answer that cannot be stored (as JSON of at most
// dedup.MaxValueBytes) is an *[Error] of stage "value", and as good as none.
//
// Run owns its transactions; it refuses a connection that is in one. Tries and TxOptions are those of the last; a
// read-only one is refused before anything is reserved. The reservation is tried once: a conflict at REPEATABLE READ,
// or a lost connection, is returned before anything was sent, and is [Retryable]. Safe for concurrent use if db is.
func (c Call[T]) Run(ctx context.Context, db DB, key Key) (T, Outcome, error) {
	engine, err := c.Once.claim(key)
	if err != nil {
		return *new(T), 0, err
	}
	apply := func(ctx context.Context, tx pg.Tx, v T) error {
		if c.Apply == nil {
			return nil
		}
		return run(ctx, tx, func(ctx context.Context, tx pgx.Tx) error { return c.Apply(ctx, tx, v) })
	}
	v, res, err := front.Call[T]{
		Lease: c.Lease, Remembers: c.Remembers, External: key.External(), Send: c.Send, Apply: apply,
		ReadOnly: c.Once.TxOptions.AccessMode == pgx.ReadOnly,
		Conn:     pg.FromPgxAlone(db), DB: pg.FromPgxLender(db, lender(db), c.Once.TxOptions),
	}.Run(ctx, engine)
	return v, Outcome(res.Outcome), c.Once.translate(key.Scope(), err)
}

// Final marks an error of [Call].Send that no retry can help: a declined card, a closed order. The provider must
// certainly have refused; a time-out is not that. Up to 4,096 bytes of its text are stored, and given to duplicates in
// a *[FinalError]: it must hold no secret. Mark an error last: what is wrapped around the mark is dropped. Final(nil)
// is nil.
func Final(err error) error { return front.Mark(err, true) }

// Unsent marks an error of [Call].Send that came before anything was sent, such as a refused connection. The
// reservation is released, and the next delivery begins anew. Unsent(nil) is nil.
func Unsent(err error) error { return front.Mark(err, false) }
