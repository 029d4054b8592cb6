package idem

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
)

// ownedTx is the transaction as fn sees it: everything but its end.
type ownedTx struct {
	pgx.Tx
	refused bool
}

var errOwned = errors.New("fn may not commit or roll back the transaction it was given; return nil or an error instead")

func (t *ownedTx) Commit(context.Context) error   { t.refused = true; return errOwned }
func (t *ownedTx) Rollback(context.Context) error { t.refused = true; return errOwned }

// run calls fn with tx behind the wrapper. Where fn tried to end tx and returned nil, it believes that it has: that is an
// error. Where it returned an error of its own, that one says more.
func run(ctx context.Context, tx pgx.Tx, fn func(context.Context, pgx.Tx) error) error {
	owned := &ownedTx{Tx: tx}
	if err := fn(ctx, owned); err != nil {
		return err
	}
	if owned.refused {
		return &claim.Failure{Stage: "fn", Err: errOwned}
	}
	return nil
}
