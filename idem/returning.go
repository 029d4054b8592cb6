package idem

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Returning is a [Once] whose fn returns a value. It is stored with the key, in the same transaction, and a duplicate
// gets it. The zero value works. It is safe for concurrent use.
//
// The value is kept as JSON, of at most dedup.MaxValueBytes. A duplicate gets what JSON keeps: no unexported fields, no
// bytes that are not UTF-8 in a string, no spelling of a json.RawMessage. T must be one that JSON decodes into, not an
// interface with methods. Numbers that T holds as any become float64 (9007199254740993 ends in 2): give them a type.
//
// Storing costs the first delivery one more statement; with Run, the row is written a second time. If fn has undone the
// claim, that is an *[Error] of stage "store", and nothing is committed. So it is if fn's search path leads an
// unqualified table name elsewhere.
type Returning[T any] struct {
	// Once holds the settings. Calls of one table and key must agree on T.
	Once Once
}

// Do is [Do] with a value; a duplicate gets the first call's T. A stored row without a value, or with one that is no T,
// is an *[Error] of stage "value" which names the scope; fn is not called. A value that is too large, or cannot be
// encoded, fails the call and tx, as an error of fn does.
func (r Returning[T]) Do(
	ctx context.Context, tx pgx.Tx, key Key, fn func(context.Context, pgx.Tx) (T, error),
) (T, Outcome, error) {
	c, v, err := r.claim(key)
	if err != nil {
		return *v, 0, err
	}
	res, err := claim.Do(inside(ctx, tx), pg.FromPgxTx(tx), c, func(ctx context.Context, tx pg.Tx) error {
		return keep(ctx, c, tx, v, fn)
	})
	return r.end(key, v, res, err)
}

// Run is [Run] with a value, and with the rules of [Returning.Do].
func (r Returning[T]) Run(
	ctx context.Context, db DB, key Key, fn func(context.Context, pgx.Tx) (T, error),
) (T, Outcome, error) {
	c, v, err := r.claim(key)
	if err != nil {
		return *v, 0, err
	}
	res, err := claim.Run(ctx, pg.FromPgxLender(db, lender(db), r.Once.TxOptions), c,
		func(ctx context.Context, tx pg.Tx) error {
			return keep(ctx, c, tx, v, fn)
		})
	return r.end(key, v, res, err)
}

// claim is that of a Once, and a place for the value.
func (r Returning[T]) claim(key Key) (*claim.Claim, *T, error) {
	v := new(T)
	c, err := r.Once.claim(key)
	if err == nil {
		c.Value = front.Into(v)
	}
	return c, v, err
}

// end is what a call returns. With an error there is no value: fn may have returned one before its transaction failed.
func (r Returning[T]) end(key Key, v *T, res claim.Result, err error) (T, Outcome, error) {
	if err != nil {
		*v = *new(T)
	}
	return *v, Outcome(res.Outcome), r.Once.translate(key.Scope(), err)
}

// keep calls fn and stores what it returns, both in tx.
func keep[T any](
	ctx context.Context, c *claim.Claim, tx pg.Tx, v *T, fn func(context.Context, pgx.Tx) (T, error),
) error {
	err := run(ctx, tx, func(ctx context.Context, owned pgx.Tx) (err error) {
		*v, err = fn(ctx, owned)
		return err
	})
	if err != nil {
		return err
	}
	return front.Store(ctx, c, tx, *v)
}
