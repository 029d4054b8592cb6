package idemtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Up to six deliveries are made in every order, each once; more of them in a sample, which the seed gives again. In
// each order every delivery is there, and some more than once.
func TestOrders(t *testing.T) {
	t.Parallel()
	lists := func(n int, seed uint64) [][]int {
		return (&lab[int]{Kit: Kit[int]{Deliveries: make([]int, n)}, rand: rand.New(rand.NewPCG(seed, 0))}).orders()
	}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 6, 5: 120, 6: 720, 7: sampleOrders, 12: sampleOrders} {
		all := lists(n, 1)
		require.Len(t, all, want)
		seen := map[string]bool{}
		for _, order := range all {
			require.Greater(t, len(order), n, "with duplicates mixed in")
			var first []int // each delivery where it comes for the first time
			came := map[int]bool{}
			for _, d := range order {
				if !came[d] {
					came[d], first = true, append(first, d)
				}
			}
			require.Len(t, first, n)
			seen[fmt.Sprint(first)] = true
		}
		if n <= allOrders {
			require.Len(t, seen, want, "no order twice")
		}
		require.Equal(t, all, lists(n, 1))
		if n > 2 {
			require.NotEqual(t, all, lists(n, 2))
		}
	}
}
