package dedup_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// unqualifiedOperator finds an operator whose schema is not named; one that assigns has := or stands in a SET.
	unqualifiedOperator = regexp.MustCompile(`\s(=|<|>|<=|>=|<>|~|/|\+|-|\|\|)\s`)
	calledFunction      = regexp.MustCompile(`(^|[^\w.])([a-z_]+)\(`)
	quotedText          = regexp.MustCompile(`'[^']*'`)
	setLine             = regexp.MustCompile(`^SET\b|USING ERRCODE|EXCLUDED\.`)
)

// The steps that change a layout are run by an owner, and their triggers by whoever claims. An operator or a function
// of theirs whose schema is not named could be made in another schema of the search path.
func TestLayoutsAreQualified(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("layouts/*/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, complaint := range unqualified(string(text)) {
			t.Errorf("%s: %s", file, complaint)
		}
	}
	require.Len(t, unqualified("SELECT now()\n WHERE a = b AND c <> 'x = y' -- c = d\n"), 3, "what it is for")
}

func unqualified(sql string) (complaints []string) {
	for line := range strings.Lines(sql) {
		code, _, _ := strings.Cut(line, "--")
		code = quotedText.ReplaceAllString(code, "''")
		if setLine.MatchString(strings.TrimSpace(code)) {
			continue
		}
		for _, m := range unqualifiedOperator.FindAllString(code, -1) {
			complaints = append(complaints, "operator"+m+"in "+line)
		}
		for _, m := range calledFunction.FindAllStringSubmatch(code, -1) {
			if !strings.HasPrefix(m[2], "processed_events_") { // the step's own trigger
				complaints = append(complaints, "function "+m[2]+" in "+line)
			}
		}
	}
	return complaints
}
