package policy

import (
	"fmt"
	"net/url"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// badWord is something that no file of the repository may say. The patterns are written so that they do not match
// themselves.
type badWord struct {
	pattern *regexp.Regexp
	why     string
}

func badWords() []badWord {
	return []badWord{
		{
			regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|TB` + `D)\b`),
			"finish it, or leave it out: what is not there needs no note",
		},
		{regexp.MustCompile(`(^|[^\w.\-])/wo` + `rk(/|\b)`), "a folder that only one machine has"},
		{regexp.MustCompile(`\.\./sha` + `red/`), "a folder that only one machine has"},
		{regexp.MustCompile(`(?i)\bissue` + ` #?\d+\b`), "say what the matter is: a number is of use only where its list is"},
	}
}

func checkWords(f textFile, bad []badWord) (complaints []string) {
	n := 0
	for line := range strings.Lines(f.text) {
		n++
		for _, w := range bad {
			if m := w.pattern.FindString(line); m != "" {
				complaints = append(complaints, fmt.Sprintf("%s:%d: %q: %s", f.path, n, strings.TrimSpace(m), w.why))
			}
		}
	}
	return complaints
}

func TestWords(t *testing.T) {
	bad := badWords()
	// Where this machine gets its modules from is its own business.
	out, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatalf("go env GOPROXY: %v", err)
	}
	for _, proxy := range strings.FieldsFunc(strings.TrimSpace(string(out)),
		func(r rune) bool { return r == ',' || r == '|' }) {
		if u, err := url.Parse(proxy); err == nil && u.Host != "" {
			bad = append(bad, badWord{regexp.MustCompile(regexp.QuoteMeta(u.Host)), "the address of a module proxy"})
		}
	}
	for _, f := range tree(t) {
		if path.Base(f.path) != "go.sum" && path.Base(f.path) != "go.work.sum" {
			report(t, checkWords(f, bad))
		}
	}
}

func TestWordsSeesOffenders(t *testing.T) {
	for text, want := range map[string]string{
		"// TO" + "DO: later":               "finish it",
		"ctx := context.TO" + "DO()":        "finish it",
		"see /wo" + "rk/main":               "only one machine",
		"`/wo" + "rk`":                      "only one machine",
		"../../sha" + "red/data":            "only one machine",
		"fixes issue" + " #12":              "a number is of use",
		"go.work, https://a.b/workers":      "",
		"shared/exclusive locks, worktodo":  "",
		"the issue is that 2 workers claim": "",
	} {
		expect(t, checkWords(textFile{"x.md", "first line\n" + text + "\n"}, badWords()), want)
	}
}

// topLevel is what the repository's root holds beside hidden files.
var topLevel = []string{
	"LICENSE", "README.md", "doc.go", "go.mod", "go.sum", "go.work", "go.work.sum",
	"dedup", "examples", "idem", "internal", "pgerr", "upsert",
}

func TestTopLevel(t *testing.T) {
	for _, f := range tree(t) {
		first, _, _ := strings.Cut(f.path, "/")
		if first[0] != '.' && !slices.Contains(topLevel, first) {
			t.Errorf("%s: the root holds these alone: %s", f.path, strings.Join(topLevel, " "))
		}
	}
}
