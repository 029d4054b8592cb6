package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

var errNoValue = errors.New("the key's row holds no value; it was claimed without one")

// encode and decode never put a value into their errors; those of encoding/json may quote one.
func encode[T any](v T) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, valueFailure(fmt.Errorf("the value, a %v, cannot be encoded as JSON", reflect.TypeFor[T]()))
	}
	return b, nil
}

func decode[T any](b []byte) (v T, err error) {
	if b == nil {
		return v, valueFailure(errNoValue)
	}
	if json.Unmarshal(b, &v) != nil {
		var zero T
		return zero, valueFailure(fmt.Errorf("the stored value cannot be decoded into a %v", reflect.TypeFor[T]()))
	}
	return v, nil
}

func valueFailure(err error) error { return &claim.Failure{Stage: claim.StageValue, Err: err} }

// Into returns what decodes into v the value that is stored with a duplicate's key.
func Into[T any](v *T) func([]byte) error {
	return func(stored []byte) (err error) {
		*v, err = decode[T](stored)
		return err
	}
}

// Store keeps what fn returned in the key's row, in the transaction that claimed it. Where fn has left that failed or
// ended nothing is stored, and that is no error here: the engine's own check finds it, and says more.
func Store[T any](ctx context.Context, c *claim.Claim, tx pg.Tx, v T) error {
	value, err := encode(v)
	if err != nil {
		return err
	}
	if !tx.NeedsMark() && tx.Check(ctx, 0) != nil {
		return nil
	}
	if err := c.Store(ctx, tx, value); !pg.WasOver(err) {
		return err
	}
	return nil
}
