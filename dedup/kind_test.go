package dedup_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
)

// Every kind has a name of its own, by which it is found again; a name that is not known is an error.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{dedup.Kind(0).String(): true}
	for k := dedup.KindTableMissing; k <= dedup.KindNotDurable; k++ {
		require.False(t, seen[k.String()], "%d is %s", k, k)
		seen[k.String()] = true
		text, err := json.Marshal(dedup.Problem{Kind: k})
		require.NoError(t, err)
		require.Contains(t, string(text), `"`+k.String()+`"`)
		var back dedup.Problem
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, k, back.Kind)
	}
	var k dedup.Kind
	for _, name := range []string{"", "unknown", "asynchronous comit"} {
		require.Error(t, k.UnmarshalText([]byte(name)))
	}
	require.Zero(t, k)
	require.Equal(t, "unknown", dedup.Kind(255).String())
}
