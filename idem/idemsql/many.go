package idemsql

import (
	"cmp"
	"context"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// DoMany is [idem.Once.DoMany] over database/sql: [Do] for a batch, claimed in one statement. tx is what Do takes, and
// after an error it is as Do leaves it.
func (o Once) DoMany(
	ctx context.Context, tx Conn, keys []idem.Key, fn func(ctx context.Context, tx Tx, fresh []int) error,
) ([]idem.Result, error) {
	claims, faults, err := o.settings().Claims(len(keys),
		func(i int) (front.Facts, error) { return front.FactsOf(keys[i]), keys[i].Validate() })
	if err != nil {
		return nil, o.translate(idem.Scope{}, err)
	}
	ctx, tx = whole(ctx, tx)
	seam, err := open(ctx, tx)
	if err != nil {
		return nil, o.translate(idem.Scope{}, err)
	}
	answers, err := claim.DoMany(ctx, seam, claims, func(ctx context.Context, tx pg.Tx, fresh []int) error {
		return run(ctx, tx, func(ctx context.Context, tx Tx) error { return fn(ctx, tx, fresh) })
	})
	if err != nil {
		return nil, o.translate(idem.Scope{}, err)
	}
	all := make([]idem.Result, len(keys))
	for i, a := range answers {
		all[i] = idem.Result{Outcome: idem.Outcome(a.Outcome), Err: o.translate(keys[i].Scope(), cmp.Or(faults[i], a.Err))}
	}
	return all, nil
}
