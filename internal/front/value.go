package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

var (
	errNoValue  = errors.New("the key's row holds no value; it was claimed without one")
	errTooLarge = fmt.Errorf("the value is larger than %d bytes", dedup.MaxValueBytes)
)

// encode and decode never put a value into their errors; those of encoding/json may quote one.
func encode[T any](v T) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, valueFailure(fmt.Errorf("the value, a %v, cannot be encoded as JSON", reflect.TypeFor[T]()))
	}
	return b, checkSize(b)
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

func checkSize(b []byte) error {
	if len(b) > dedup.MaxValueBytes {
		return valueFailure(errTooLarge)
	}
	return nil
}

func valueFailure(err error) error { return &claim.Failure{Stage: "value", Err: err} }

// Stored makes of an engine that sets *v, when the effect runs, one that sets it for a duplicate, too, from what is stored,
// and leaves nothing there, and no outcome, with an error.
func Stored[T any](v *T, engine func(*claim.Claim, *T) (claim.Result, error)) func(*claim.Claim) (claim.Result, error) {
	return func(c *claim.Claim) (res claim.Result, err error) {
		res, err = engine(c, v)
		if err == nil && res.Outcome == claim.Duplicate {
			*v, err = decode[T](res.Value)
		}
		if err != nil {
			var zero T // fn may have set it, before its transaction failed
			*v, res.Outcome = zero, 0
		}
		return res, err
	}
}

// Store keeps what fn returned in the key's row, in the transaction that claimed it. Where fn has left that failed or ended
// nothing is stored, and that is no error here: the engine's own check finds it, and says more.
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
