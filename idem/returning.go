package idem

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Returning is a [Once] whose fn returns a value: it is stored with the key, in the same transaction, and a duplicate
// gets the stored one. The value is kept as JSON, of at most dedup.MaxValueBytes: what JSON does not keep (fields
// that are not exported, bytes that are not UTF-8 in a string, the spelling of a json.RawMessage) a duplicate gets
// otherwise, and T must be one that JSON decodes into, no interface with methods, say. What T holds as any loses
// precision on the way back, for numbers become float64 (9007199254740993 ends in 2): give it a type, or decode it
// once before it is returned. The zero value works; it is safe for concurrent use.
//
// Storing costs the first delivery one more statement; with Run, the row is written a second time. The value goes
// into the row that this call has claimed, and into no other. Where fn has changed the search path, so that an
// unqualified table name leads elsewhere, or has undone the claim, that is an *[Error] of stage "store", and nothing
// is committed.
type Returning[T any] struct {
	// Once holds the settings. Calls of one table and key must agree on T.
	Once Once
}

// Do is [Do] with a value. A duplicate gets the T of the first call, and fn is not called; where the row holds no value
// (it was claimed without one), or one that is no T, that is an *[Error] of stage "value" which names the scope, and fn
// is not called either. A value that is too large, or cannot be encoded, fails the call and tx, as an error of fn does.
func (r Returning[T]) Do(ctx context.Context, tx pgx.Tx, key Key, fn func(context.Context, pgx.Tx) (T, error)) (T, Outcome, error) {
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
func (r Returning[T]) Run(ctx context.Context, db DB, key Key, fn func(context.Context, pgx.Tx) (T, error)) (T, Outcome, error) {
	c, v, err := r.claim(key)
	if err != nil {
		return *v, 0, err
	}
	res, err := claim.Run(ctx, pg.FromPgxLender(db, lender(db), r.Once.TxOptions), c, func(ctx context.Context, tx pg.Tx) error {
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
func keep[T any](ctx context.Context, c *claim.Claim, tx pg.Tx, v *T, fn func(context.Context, pgx.Tx) (T, error)) error {
	err := run(ctx, tx, func(ctx context.Context, owned pgx.Tx) (err error) {
		*v, err = fn(ctx, owned)
		return err
	})
	if err != nil {
		return err
	}
	return front.Store(ctx, c, tx, *v)
}
