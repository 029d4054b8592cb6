package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Call makes one call to somebody else's system happen once for a key, as far as that system allows: a charge, a mail, a
// shipment. It reserves the key, calls Send, and then applies and confirms the answer in one transaction. Whatever dies on
// the way, the next delivery goes on, with the same external key.
//
//   - A provider that honours idempotency keys for longer than deliveries come (Remembers): the effect happens once.
//   - One that forgets keys after a time, or knows none (Remembers 0): at most once. Where an attempt was interrupted and
//     may be forgotten, no other is made, and the key stays with [ErrUnknown] until somebody has looked; see [Once.Pending].
//
// Both hold as long as the database keeps what it has committed: synchronous_commit off, or a failover to a replica that
// lags, can lose the reservation of a call that has been made.
//
// A pooler must keep a transaction on one connection. PgBouncer in statement mode does not: Send is called, and then
// its answer cannot be stored.
//
// A Call is a plain value, safe for concurrent use, and usually a field of the service that uses it.
type Call[T any] struct {
	// Once holds the settings: Table, Tries, TxOptions (of the transaction of Apply), Observer, and MaxWait. A living
	// reservation is reported at once; what MaxWait bounds is the wait for a transaction that holds the key, as the one in
	// which another attempt applies and confirms its answer.
	Once Once

	// Lease is how long one attempt may take. Send's context ends with it, and no delivery waits for longer than that for
	// an attempt that died. It must be positive.
	Lease time.Duration

	// Remembers is how long after the first attempt the provider still knows External(). Stripe's v1 API prunes keys that
	// are at least 24 hours old, so 23 hours are safe there. 0: it knows none, so that an interrupted attempt is ErrUnknown.
	// Otherwise it must not be shorter than Lease.
	Remembers time.Duration

	// Send makes the call, and passes externalKey to the provider. It runs outside of any transaction, and may run again,
	// with the same externalKey, when an attempt was interrupted. It must heed its context: a request that leaves after
	// the lease may meet another attempt, or a provider that has forgotten the key. It must not be nil. Its error comes
	// wrapped, so that [Retryable] knows whether the next delivery makes another attempt, and is one of three: marked by
	// [Final], no retry can mend it, and it is stored; marked by [Unsent], nothing was sent; any other one, a time-out
	// among them, leaves open what happened, and the next delivery tries again while the provider remembers.
	Send func(ctx context.Context, externalKey string) (T, error)

	// Apply writes what the answer means to the database, in the transaction that settles the key. It may be nil. As fn of
	// [Run], it may run more than once, must leave the transaction's end to its owner, and gets errors of its own back. After
	// one of those the call has been made all the same: the next delivery asks the provider again, and applies its answer;
	// where the provider does not remember, the answer is gone, and the next delivery gets [ErrUnknown].
	Apply func(ctx context.Context, tx pgx.Tx, v T) error
}

// Run makes the call for key.
//
//   - First call: Send, then Apply and the confirmation in one transaction. It returns the answer and Executed.
//   - Duplicate: the stored answer and Duplicate; nothing is called, nothing written. A key that was settled without an
//     answer, as by [Do], is an *[Error] of stage "value".
//   - Concurrent duplicate: [ErrInProgress] at once, with nothing called. Only for a transaction that holds the key (another
//     attempt that applies its answer, a [Do] or Run of the same key) does it wait; see MaxWait.
//   - A final failure: *[FinalError], now and for every duplicate.
//   - Interrupted before: taken over with the next attempt, or [ErrUnknown].
//   - An attempt that outlives its lease, and was taken over: [ErrLostLease]; the other attempt answers for the key.
//
// A ctx that ends before Send is called releases the key. One that ends later ends Send's context; but an answer that has
// been had is applied and confirmed all the same, for which there are 5 seconds more. A Send or Apply that panics, or ends
// the goroutine, leaves the key to the next delivery, as an error does.
//
// Run owns its transactions; a connection that is in one is refused. Of the settings, Tries and TxOptions are those of the
// last transaction, which may not be read-only: that is refused before anything is reserved. A reservation is tried once: a
// conflict at REPEATABLE READ, where that is the server's default, or a lost connection comes as it is, before anything was
// sent, and is [Retryable]. Safe for concurrent use where db is. An answer that cannot be stored (as JSON of at most
// dedup.MaxValueBytes) is an *[Error] of stage "value", and as good as none.
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

// Final marks an error of [Call].Send that no retry can mend: a declined card, an order that is closed. Its text is stored,
// 4,096 bytes of it at the most, and given to duplicates in a *[FinalError]; so it must hold no secret. It must be certain that the provider refused:
// a time-out is not that. Mark an error last: what is wrapped around the mark is dropped. Final(nil) is nil.
func Final(err error) error { return front.Mark(err, true) }

// Unsent marks an error of [Call].Send that came before anything was sent: no connection could be had, say. The
// reservation is released, and the next delivery begins anew. Unsent(nil) is nil.
func Unsent(err error) error { return front.Mark(err, false) }
