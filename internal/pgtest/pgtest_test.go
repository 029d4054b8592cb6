package pgtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestPool(t *testing.T) {
	t.Parallel()
	for range 5 {
		var n int
		require.NoError(t, pgtest.Pool(t).QueryRow(t.Context(), `SELECT 1`).Scan(&n))
		require.Equal(t, 1, n)
	}
}
