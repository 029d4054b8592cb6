package idem

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// ownedTx is the transaction as fn sees it: everything but its end.
type ownedTx struct {
	nestedTx
	refused bool
}

// nestedTx is a transaction that fn has begun in its own, and that knows as well inside of which fn it is.
type nestedTx struct {
	pgx.Tx
	inside claim.Inside
}

func (t *nestedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &nestedTx{tx, t.inside}, nil
}

func (t *nestedTx) insideOf() claim.Inside { return t.inside }

// inside returns ctx with what tx knows of the fn that it belongs to, so that a call with another context is found,
// too.
func inside(ctx context.Context, tx pgx.Tx) context.Context {
	if t, ok := tx.(interface{ insideOf() claim.Inside }); ok {
		return t.insideOf().In(ctx)
	}
	return ctx
}

var errOwned = errors.New("fn may not commit or roll back the transaction it was given; return nil or an error instead")

func (t *ownedTx) Commit(context.Context) error   { t.refused = true; return errOwned }
func (t *ownedTx) Rollback(context.Context) error { t.refused = true; return errOwned }

// run calls fn with tx behind the wrapper. Where fn tried to end tx and returned nil, it believes that it has: that
// is an error. Where it returned an error of its own, that one says more.
func run(ctx context.Context, tx pg.Tx, fn func(context.Context, pgx.Tx) error) error {
	owned := &ownedTx{nestedTx: nestedTx{pg.PgxOf(tx), claim.InsideOf(ctx)}}
	if err := fn(ctx, owned); err != nil {
		return err
	}
	if owned.refused {
		return &claim.Failure{Stage: claim.StageFn, Err: errOwned}
	}
	return nil
}
