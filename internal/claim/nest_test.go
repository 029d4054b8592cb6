package claim

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

func claimOf(t *testing.T, table, key string) *Claim {
	t.Helper()
	sql, err := For(table, false, false)
	require.NoError(t, err)
	return &Claim{SQL: sql, Source: "s", Operation: "o", Key: key}
}

// Which calls are refused inside of an fn: those that may be of the same row.
func TestMeets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		outer, inner string
		want         bool
	}{
		{"", "", true},
		{"", "processed_events", true},
		{"", "public.processed_events", true},
		{"public.processed_events", "", true},
		{"public.processed_events", `"public"."processed_events"`, true},
		{"public.processed_events", "other.processed_events", false},
		{"", "Processed_Events", false},
		{"group_a", "group_b", false},
	} {
		outer, inner := claimOf(t, tc.outer, "k"), claimOf(t, tc.inner, "k")
		require.Equal(t, tc.want, outer.meets(inner), "%q in %q", tc.inner, tc.outer)
		for _, other := range []func(*Claim){
			func(c *Claim) { c.Source = "x" }, func(c *Claim) { c.Operation = "x" }, func(c *Claim) { c.Key = "x" },
		} {
			inner := *inner
			other(&inner)
			require.False(t, outer.meets(&inner))
		}
	}
}

// What is known of a ctx and of a transaction is put together, and only what still runs counts.
func TestInside(t *testing.T) {
	t.Parallel()
	a, b := claimOf(t, "", "a"), claimOf(t, "", "b")
	var after context.Context
	err := a.guard(func(inA context.Context, _ pg.Tx) error {
		require.NoError(t, b.outside(inA, StageClaim))
		ctx := InsideOf(inA).In(t.Context())
		require.Equal(t, InsideOf(inA), InsideOf(ctx))
		require.Equal(t, ctx, InsideOf(inA).In(ctx), "known already")
		return b.guard(func(inB context.Context, _ pg.Tx) error {
			after = inB
			both := InsideOf(inB)
			require.Len(t, both, 2)
			require.Equal(t, both, InsideOf(both.In(inA)), "in order, each once")
			require.Len(t, InsideOf(inA), 1, "what the outer fn knows is as it was")
			return nil
		})(inA, nil)
	})(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, a.outside(after, StageClaim), "has returned")

	// A refused call fails every fn around it, up to the one of its key; whatever else fn returns says more.
	c := claimOf(t, "", "c")
	errOwn := errors.New("own")
	var inB error
	err = c.guard(func(ctx context.Context, _ pg.Tx) error {
		err := a.guard(func(ctx context.Context, _ pg.Tx) error {
			inB = b.guard(func(ctx context.Context, _ pg.Tx) error {
				require.ErrorIs(t, a.outside(ctx, StageClaim), ErrNested)
				require.ErrorIs(t, a.outside(ctx, StageClaim), ErrNested, "and again")
				return nil
			})(ctx, nil)
			return errOwn
		})(ctx, nil)
		require.Same(t, errOwn, err)
		return nil
	})(t.Context(), nil)
	require.ErrorIs(t, inB, ErrNested)
	require.NoError(t, err, "not around it")

	// However fn ends, it runs no more.
	require.Panics(t, func() {
		_ = a.guard(func(ctx context.Context, _ pg.Tx) error { after = ctx; panic(1) })(t.Context(), nil)
	})
	require.NoError(t, a.outside(after, StageClaim))
}
