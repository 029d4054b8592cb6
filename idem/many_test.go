package idem_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func batchOf(n int, name string) []idem.Key {
	keys := make([]idem.Key, n)
	for i := range keys {
		keys[i] = stripe.Key(fmt.Sprint(name, i))
	}
	return keys
}

// Two batches of the same keys, in opposite order and at once, never deadlock, and one of them has all the effects.
func TestBatchesInOppositeOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t, pgtest.Pool(t))
	for round := range 200 {
		keys := batchOf(20, fmt.Sprint("r", round, "_"))
		turned := slices.Clone(keys)
		slices.Reverse(turned)
		fresh, errs := make(chan int, 2), make(chan error, 2)
		for _, keys := range [][]idem.Key{keys, turned} {
			go func() {
				errs <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					n := 0
					_, err := idem.Once{}.DoMany(ctx, tx, keys, func(_ context.Context, _ pgx.Tx, places []int) error {
						n = len(places)
						return nil
					})
					fresh <- n
					return err
				})
			}()
		}
		require.NoError(t, <-errs, "round %d", round)
		require.NoError(t, <-errs, "round %d", round)
		require.Equal(t, 20, <-fresh+<-fresh, "round %d", round)
	}
}

// A batch of 10,000 keys is one statement.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t, pgtest.Pool(t))
	keys := batchOf(10_000, "evt")
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			results, err := idem.Once{}.DoMany(ctx, tx, keys, func(context.Context, pgx.Tx, []int) error { return nil })
			require.Len(t, results, len(keys))
			for _, r := range results {
				require.Equal(t, idem.Result{Outcome: want}, r)
			}
			return err
		}))
	}
}
