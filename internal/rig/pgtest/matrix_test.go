package pgtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatrix(t *testing.T) {
	all := []string{"a", "b", "c"}
	self := func(s string) string { return s }
	t.Setenv("PGONCE_MATRIX", "")
	require.Equal(t, []string{"c", "a"}, Matrix(all, self, "c", "a"))
	require.Panics(t, func() { Matrix(all, self, "d") }, "a name that is gone would run nothing")
	require.Panics(t, func() { Matrix(all, self) })
	t.Setenv("PGONCE_MATRIX", "1")
	require.Equal(t, all, Matrix(all, self, "a"))
}
