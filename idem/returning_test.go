package idem_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// A number comes back as it was in a T that has a type for it, and rounded in an any: the reason for what Returning
// says.
func TestReturningNumbers(t *testing.T) {
	t.Parallel()
	const n = 1<<53 + 1
	s := newSite(t)
	typed, loose := stripe.Key("typed"), stripe.Key("loose")
	for range 2 {
		v, _, err := idem.Returning[map[string]int64]{}.Run(s.ctx, s.sound, typed,
			func(context.Context, pgx.Tx) (map[string]int64, error) {
				return map[string]int64{"n": n}, nil
			})
		require.NoError(t, err)
		require.Equal(t, int64(n), v["n"])
	}
	fn := func(context.Context, pgx.Tx) (map[string]any, error) { return map[string]any{"n": int64(n)}, nil }
	first, _, err := idem.Returning[map[string]any]{}.Run(s.ctx, s.sound, loose, fn)
	require.NoError(t, err)
	require.Equal(t, int64(n), first["n"])
	again, _, err := idem.Returning[map[string]any]{}.Run(s.ctx, s.sound, loose, fn)
	require.NoError(t, err)
	require.Equal(t, float64(n-1), again["n"])
}
