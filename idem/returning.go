package idem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Returning is a [Once] whose fn returns a value: it is stored with the key, in the same transaction, and a duplicate
// gets the stored one. The value is kept as JSON, of at most dedup.MaxValueBytes: what JSON does not keep (fields that are
// not exported, bytes that are not UTF-8 in a string, the spelling of a json.RawMessage) a duplicate gets otherwise, and T
// must be one that JSON decodes into, no interface with methods, say. The zero value works; it is safe for concurrent use.
//
// Storing costs the first delivery one more statement; with Run, the row is written a second time.
type Returning[T any] struct {
	// Once holds the settings. Calls of one table and key must agree on T.
	Once Once
}

// Do is [Do] with a value. A duplicate gets the T of the first call, and fn is not called; where the row holds no value
// (it was claimed without one), or one that is no T, that is an *[Error] of stage "value" which names the scope, and fn
// is not called either. A value that is too large, or cannot be encoded, fails the call and tx, as an error of fn does.
func (r Returning[T]) Do(ctx context.Context, tx pgx.Tx, key Key, fn func(context.Context, pgx.Tx) (T, error)) (T, Outcome, error) {
	return r.call(ctx, key, func(c *claim.Claim) (v T, res claim.Result, err error) {
		res, err = claim.Do(ctx, pg.FromPgxTx(tx), c, func(ctx context.Context) error { return r.run(ctx, c, tx, &v, fn) })
		return v, res, err
	})
}

// Run is [Run] with a value, and with the rules of [Returning.Do].
func (r Returning[T]) Run(ctx context.Context, db DB, key Key, fn func(context.Context, pgx.Tx) (T, error)) (T, Outcome, error) {
	return r.call(ctx, key, func(c *claim.Claim) (v T, res claim.Result, err error) {
		var tx pgx.Tx
		begun := func(t pgx.Tx) { tx = t }
		res, err = claim.Run(ctx, pg.FromPgxDB(db, r.Once.TxOptions, begun), c, func(ctx context.Context) error {
			return r.run(ctx, c, tx, &v, fn)
		})
		return v, res, err
	})
}

func (r Returning[T]) call(ctx context.Context, key Key, engine func(*claim.Claim) (T, claim.Result, error)) (v T, out Outcome, err error) {
	out, err = r.Once.call(ctx, key, func(c *claim.Claim) (res claim.Result, err error) {
		if v, res, err = engine(c); err == nil && res.Outcome == claim.Duplicate {
			if v, err = decode[T](res.Value); err != nil {
				return claim.Result{}, &claim.Failure{Stage: "value", Err: err}
			}
		}
		return res, err
	})
	if err != nil {
		var zero T // fn may have set it, before its transaction failed
		return zero, 0, err
	}
	return v, out, nil
}

// run calls fn and stores what it returns, both in tx.
func (r Returning[T]) run(ctx context.Context, c *claim.Claim, tx pgx.Tx, v *T, fn func(context.Context, pgx.Tx) (T, error)) error {
	return run(ctx, tx, func(ctx context.Context, owned pgx.Tx) (err error) {
		if *v, err = fn(ctx, owned); err != nil {
			return err
		}
		value, err := encodeValue(*v)
		if err != nil {
			return &claim.Failure{Stage: "value", Err: err}
		}
		t := pg.FromPgxTx(tx)
		if err := t.Check(ctx, 0); err != nil {
			return nil // the engine's own check finds it, and says more than a statement that fails would
		}
		return c.Store(ctx, t, value)
	})
}

var (
	errNoValue  = errors.New("the key's row holds no value; it was claimed without one")
	errTooLarge = fmt.Errorf("the value is larger than %d bytes", dedup.MaxValueBytes)
)

// encodeValue and decode never put a value into their errors; those of encoding/json may quote one.
func encodeValue[T any](v T) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("the value, a %v, cannot be encoded as JSON", reflect.TypeFor[T]())
	}
	if len(b) > dedup.MaxValueBytes {
		return nil, errTooLarge
	}
	return b, nil
}

func decode[T any](b []byte) (v T, err error) {
	if b == nil {
		return v, errNoValue
	}
	if json.Unmarshal(b, &v) != nil {
		var zero T
		return zero, fmt.Errorf("the stored value cannot be decoded into a %v", reflect.TypeFor[T]())
	}
	return v, nil
}
