package idemhttp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxKey)
	for _, c := range []struct {
		lines []string
		key   string
		err   error
	}{
		{nil, "", errMissing},
		{[]string{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`}, "8e03978e-40d5-43e8-bc93-6894a57f9324", nil},
		{[]string{`8e03978e-40d5-43e8-bc93-6894a57f9324`}, "8e03978e-40d5-43e8-bc93-6894a57f9324", nil},
		{[]string{"  \"a\"\t"}, "a", nil},
		{[]string{" a\t"}, "a", nil},
		{[]string{`"a b, c; d"`}, "a b, c; d", nil},
		{[]string{`"\"\\"`}, `"\`, nil},
		{[]string{"a/+=:.~!$'"}, "a/+=:.~!$'", nil},
		{[]string{`"` + long + `"`}, long, nil},
		{[]string{long}, long, nil},
		{[]string{`"` + long + `x"`}, "", errLong},
		{[]string{long + "x"}, "", errLong},
		{[]string{""}, "", errBlank},
		{[]string{"  "}, "", errBlank},
		{[]string{`""`}, "", errBlank},
		{[]string{`"  "`}, "", errBlank},
		{[]string{"a", "a"}, "", errTwice},
		{[]string{"a,a"}, "", errBare},
		{[]string{"a b"}, "", errBare},
		{[]string{"a;b"}, "", errBare},
		{[]string{`a"`}, "", errBare},
		{[]string{`a\`}, "", errBare},
		{[]string{"é"}, "", errBare},
		{[]string{"a\x7f"}, "", errBare},
		{[]string{"a\x00"}, "", errBare},
		{[]string{`"`}, "", errQuoted},
		{[]string{`"a`}, "", errQuoted},
		{[]string{`"a\`}, "", errQuoted},
		{[]string{`"a\"`}, "", errQuoted},
		{[]string{`"a\b"`}, "", errQuoted},
		{[]string{`"a" "b"`}, "", errQuoted},
		{[]string{`"a", "b"`}, "", errQuoted},
		{[]string{`"a";b`}, "", errQuoted},
		{[]string{`"é"`}, "", errQuoted},
		{[]string{"\"a\tb\""}, "", errQuoted},
		{[]string{"\"a\x7f\""}, "", errQuoted},
	} {
		key, err := parseKey(c.lines)
		require.Equal(t, c.key, key, "%q", c.lines)
		require.Equal(t, c.err, err, "%q", c.lines)
	}
}

// A key that is taken can be written as a string of Structured Fields, and is the same then.
func FuzzKey(f *testing.F) {
	for _, s := range []string{`"a"`, "a", `"\"\\"`, `"a";p`, "a,b", "", `"`, "\x00", "é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := parseKey([]string{s})
		if err != nil {
			require.Empty(t, key)
			return
		}
		require.NotEmpty(t, strings.TrimSpace(key))
		require.LessOrEqual(t, len(key), maxKey)
		for i := range len(key) {
			require.True(t, ' ' <= key[i] && key[i] <= '~')
		}
		again, err := parseKey([]string{`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`})
		require.NoError(t, err)
		require.Equal(t, key, again)
		if trimmed := strings.Trim(s, " \t"); trimmed[0] != '"' {
			require.Equal(t, trimmed, key)
		}
	})
}
