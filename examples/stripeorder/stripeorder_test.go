package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Whatever the order, the end is the same; and a second run on the same database changes nothing.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	for range 3 {
		seed := uint64(time.Now().UnixNano())
		t.Logf("again with: go run ./examples/stripeorder -seed %d", seed)
		dsn := pgtest.DSN(t)
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), dsn, seed, &out))
		require.Contains(t, out.String(), fmt.Sprintf("%d of %[1]d subscriptions ended canceled", subscriptions))
		out.Reset()
		require.NoError(t, run(t.Context(), dsn, seed+1, &out))
		require.Contains(t, out.String(), "inserted      0")
		require.Contains(t, out.String(), "updated       0")
	}
}
