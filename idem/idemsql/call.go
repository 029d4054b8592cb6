package idemsql

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Call is [idem.Call] over database/sql: it makes one call to another system happen once for a key, as far as that
// system allows. It is a plain value, safe for concurrent use, and usually a field of the service that uses it.
//
// A pooler must keep a transaction on one connection. PgBouncer in statement mode does not: Run fails, and Send is not
// called.
type Call[T any] struct {
	// Once holds the settings, as in [idem.Call].
	Once Once

	// Lease is how long one attempt may take: Send's context ends with it. It must be positive.
	Lease time.Duration

	// Remembers is how long after the first attempt the provider still knows externalKey, as in [idem.Call]. 0: it
	// knows none. Else it must not be shorter than Lease.
	Remembers time.Duration

	// Send makes the call, and passes externalKey to the provider. It runs outside any transaction, holds no connection
	// of the pool, and may run again with the same externalKey. It must obey its context, and not be nil. Its error
	// means what it means in [idem.Call].
	Send func(ctx context.Context, externalKey string) (T, error)

	// Apply writes what the answer means to the database, in the transaction that settles the key, as in [idem.Call].
	// It may run more than once. It may be nil.
	Apply func(ctx context.Context, tx Tx, v T) error
}

// Run makes the call for key, as [idem.Call.Run] does: first, as a duplicate, beside another, after a failure, and when
// ctx ends.
//
// It owns its transactions: one for the reservation, one for each end of an attempt (see [Once.Reserve]), and the last
// for Apply with the confirmation. A COMMIT of the last whose reply is lost is settled as [Run] does. Safe for
// concurrent use if db is.
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
