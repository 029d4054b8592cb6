package dedup_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
)

// Every kind has a name of its own, by which it is found again; a name that is not known is an error.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{dedup.Kind(0).String(): true}
	for k := dedup.KindTableMissing; k <= dedup.KindSpread; k++ {
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

// What the checks below dedup report has a kind here, or Verify would fail where it finds it.
func TestKindsOfTheChecks(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../internal/schema/*.go")
	require.NoError(t, err)
	group := regexp.MustCompile(`(?ms)^const \(\n.*?^\)`)
	constant := regexp.MustCompile(`(?m)^\t\w+\s*= "([a-z][a-zA-Z ]+)"$`)
	found := 0
	for _, file := range append(files, "../internal/boxes/catalog.go", "../internal/inbox/verify.go", "../internal/outbox/verify.go") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, g := range group.FindAllString(string(text), -1) {
			for _, m := range constant.FindAllStringSubmatch(g, -1) {
				var k dedup.Kind
				require.NoError(t, k.UnmarshalText([]byte(m[1])), file)
				found++
			}
		}
	}
	require.GreaterOrEqual(t, found, int(dedup.KindSpread))
}
