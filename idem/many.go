package idem

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Result is what became of one key of [Once.DoMany].
type Result struct {
	Outcome Outcome

	// Err is the trouble of this key alone: a *[KeyError], a *[FinalError], or an *[Error] with [ErrPayloadMismatch],
	// [ErrInProgress] (a reservation holds it), [ErrUnfinished], [ErrExpired] or [ErrFuture]. Then Outcome is zero.
	Err error
}

// DoMany is [Do] for a batch: it claims all keys in one statement, and calls fn once, with the places in keys of the
// new ones. It takes two round trips, one if every key is new. There is a [Result] for each key, in order; a batch of
// 10,000 keys is still one statement.
//
//   - First call: the rows are new, fn runs, and their Results say Executed. They count when the caller commits.
//   - Duplicates: their Results say Duplicate. If nothing is new, fn is not called.
//   - A key that is twice in the batch counts once; the later ones are duplicates. Each is answered by its own payload
//     hash, and its own time.
//   - Concurrent duplicates: DoMany waits. With MaxWait, the batch is ErrInProgress after that long in all, nothing of
//     it is claimed, and tx stays usable. If a purge made DoMany claim twice, and the second claim waited in vain, tx
//     is failed.
//   - Trouble of one key ([Result].Err) does not stop the others.
//   - fn fails: as with Do, tx is failed, and no key of the batch stays.
//
// Any other error is of the whole batch, leaves tx as Do does, and comes without Results. Two batches that share keys
// do not deadlock: the keys have an order of their own. A batch and single calls in one transaction can, see Do.
//
// In fn, a call of any new key of the batch is [ErrNested]. The observer is told of each key. The caller owns tx. fn
// must not be nil.
func (o Once) DoMany(
	ctx context.Context, tx pgx.Tx, keys []Key, fn func(ctx context.Context, tx pgx.Tx, fresh []int) error,
) ([]Result, error) {
	claims, faults, err := o.settings().Claims(len(keys),
		func(i int) (front.Facts, error) { return keys[i].facts, keys[i].Validate() })
	if err != nil {
		return nil, o.translate(Scope{}, err)
	}
	answers, err := claim.DoMany(inside(ctx, tx), pg.FromPgxTx(tx), claims,
		func(ctx context.Context, tx pg.Tx, fresh []int) error {
			return run(ctx, tx, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, tx, fresh) })
		})
	if err != nil {
		return nil, o.translate(Scope{}, err)
	}
	all := make([]Result, len(keys))
	for i, a := range answers {
		all[i] = Result{Outcome(a.Outcome), o.translate(keys[i].Scope(), cmp.Or(faults[i], a.Err))}
	}
	return all, nil
}
