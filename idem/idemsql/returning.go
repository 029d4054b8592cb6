package idemsql

import (
	"context"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Returning is [idem.Returning] over database/sql: a [Once] whose fn returns a value, which a duplicate gets. Storing
// costs the first delivery one more round trip. The zero value works. It is safe for concurrent use.
type Returning[T any] struct {
	// Once holds the settings. Calls of one table and key must agree on T.
	Once Once
}

// Do is [idem.Returning.Do] over database/sql: [Do] with a value.
func (r Returning[T]) Do(
	ctx context.Context, tx Conn, key idem.Key, fn func(context.Context, Tx) (T, error),
) (T, idem.Outcome, error) {
	ctx, tx = whole(ctx, tx)
	c, v, err := r.claim(key)
	if err != nil {
		return *v, 0, err
	}
	seam, err := open(ctx, tx)
	if err != nil {
		return r.end(key, v, claim.Result{}, c.Refused(ctx, err))
	}
	res, err := claim.Do(ctx, seam, c, func(ctx context.Context, tx pg.Tx) error { return keep(ctx, c, tx, v, fn) })
	return r.end(key, v, res, err)
}

// Run is [Run] with a value, and with the rules of [Returning.Do].
func (r Returning[T]) Run(
	ctx context.Context, db DB, key idem.Key, fn func(context.Context, Tx) (T, error),
) (T, idem.Outcome, error) {
	c, v, err := r.claim(key)
	if err != nil {
		return *v, 0, err
	}
	res, err := claim.Run(ctx, pg.FromSQLDB(db, r.Once.TxOptions), c, func(ctx context.Context, tx pg.Tx) error {
		return keep(ctx, c, tx, v, fn)
	})
	return r.end(key, v, res, err)
}

// claim is that of a Once, and a place for the value.
func (r Returning[T]) claim(key idem.Key) (*claim.Claim, *T, error) {
	v := new(T)
	c, err := r.Once.claim(key)
	if err == nil {
		c.Value = front.Into(v)
	}
	return c, v, err
}

// end is what a call returns. With an error there is no value: fn may have returned one before its transaction failed.
func (r Returning[T]) end(key idem.Key, v *T, res claim.Result, err error) (T, idem.Outcome, error) {
	if err != nil {
		*v = *new(T)
	}
	return *v, idem.Outcome(res.Outcome), r.Once.translate(key.Scope(), err)
}

// keep calls fn and stores what it returns, both in tx.
func keep[T any](ctx context.Context, c *claim.Claim, tx pg.Tx, v *T, fn func(context.Context, Tx) (T, error)) error {
	err := run(ctx, tx, func(ctx context.Context, tx Tx) (err error) {
		*v, err = fn(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	return front.Store(ctx, c, tx, *v)
}
