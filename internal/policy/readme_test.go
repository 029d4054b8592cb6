package policy

import (
	"fmt"
	"go/ast"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxReadme   = 150 // lines
	testCommand = "go test ./... ./examples/..."
	runCommand  = "go run ./examples/quickstart"
)

// repository is what README's claims are held against.
type repository struct {
	paths map[string]bool     // of files and folders
	code  []string            // of Go files, each with single blanks
	tests map[string][]string // test, example and fuzz functions, and their files
	docs  map[string]string   // Markdown files
}

func readRepository(t *testing.T) repository {
	r := repository{map[string]bool{".": true}, nil, map[string][]string{}, map[string]string{}}
	for _, f := range tree(t) {
		for p := f.path; p != "."; p = path.Dir(p) {
			r.paths[p] = true
		}
		if path.Ext(f.path) == ".md" {
			r.docs[f.path] = f.text
		}
	}
	for _, f := range goFiles(t) {
		r.code = append(r.code, oneSpace(f.text))
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.test && fn.Recv == nil && testName.MatchString(fn.Name.Name) {
				r.tests[fn.Name.Name] = append(r.tests[fn.Name.Name], f.path)
			}
		}
	}
	return r
}

func TestReadme(t *testing.T) {
	text := find(t, "README.md")
	r := readRepository(t)
	report(t, r.checkReadme(text))
	report(t, r.checkCode("README.md", text))
	report(t, r.checkPromises("README.md", text, "promise", "mechanism", "test"))

	const name = ".github/README.pt-BR.md"
	portuguese := find(t, name)
	report(t, r.checkReadme(portuguese))
	report(t, r.checkCode(name, portuguese))
	report(t, r.checkPromises(name, portuguese, "promessa", "mecanismo", "teste"))
	// The two say the same: each promise has the tests of its twin, and each program is the other's.
	if a, b := testName.FindAllString(text, -1), testName.FindAllString(portuguese, -1); !slices.Equal(a, b) {
		t.Errorf("%s names other tests: %v, not %v", name, b, a)
	}
	if a, b := fences(text), fences(portuguese); len(a) != len(b) || !slices.EqualFunc(a, b, func(a, b fence) bool {
		return a.code == b.code
	}) {
		t.Errorf("%s shows other code", name)
	}
}

// TestLinks follows the relative links of every Markdown file.
func TestLinks(t *testing.T) {
	r := readRepository(t)
	if len(r.docs) == 0 {
		t.Error("no Markdown file")
	}
	for name, text := range r.docs {
		report(t, r.checkLinks(name, text))
	}
}

// TestCommand checks that CI runs the commands that README gives, the tests with -race.
func TestCommand(t *testing.T) {
	ci := find(t, ".ci/run")
	_, packages, _ := strings.Cut(testCommand, "go test ")
	hasLine := func(parts ...string) bool {
		return slices.ContainsFunc(strings.Split(ci, "\n"), func(line string) bool {
			return !strings.HasPrefix(strings.TrimSpace(line), "#") &&
				!slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
		})
	}
	if !hasLine("-race", packages) {
		t.Errorf(".ci/run does not run %q with -race", testCommand)
	}
	if !hasLine(runCommand) {
		t.Errorf(".ci/run does not run %q", runCommand)
	}
}

func (r repository) checkReadme(text string) (complaints []string) {
	if n := strings.Count(text, "\n"); n > maxReadme {
		complaints = append(complaints, fmt.Sprintf("README.md: %d lines, more than %d", n, maxReadme))
	}
	for _, cmd := range []string{testCommand, runCommand} {
		if !strings.Contains(text, cmd) {
			complaints = append(complaints, fmt.Sprintf("README.md does not give the command %q", cmd))
		}
	}
	return complaints
}

// checkCode looks for each Go block in the repository's Go files, white space aside: what README shows is compiled, and
// where it comes from an Example it is run.
func (r repository) checkCode(name, text string) (complaints []string) {
	n := 0
	for _, f := range fences(text) {
		if f.lang != "go" {
			continue
		}
		n++
		if strings.HasPrefix(f.code, "package main\n") {
			continue // a program, which TestFirstMinute in idem builds and runs
		}
		code := oneSpace(f.code)
		if !slices.ContainsFunc(r.code, func(c string) bool { return strings.Contains(c, code) }) {
			complaints = append(complaints,
				fmt.Sprintf("%s:%d: this Go code is in no Go file: take it from an Example", name, f.line))
		}
	}
	if n == 0 {
		complaints = append(complaints, name+": no Go code")
	}
	return complaints
}

// checkPromises looks for the tests that the table of promises names.
func (r repository) checkPromises(name, text, promise, mechanism, test string) (complaints []string) {
	complain := func(format string, args ...any) {
		complaints = append(complaints, name+": "+fmt.Sprintf(format, args...))
	}
	tb, col, ok := tableWith(text, promise, mechanism, test)
	if !ok || len(tb.rows) == 0 {
		complain("no table with the columns %s, %s, %s", promise, mechanism, test)
	}
	for _, row := range tb.rows {
		if cell(row, col[mechanism]) == "" || !testName.MatchString(cell(row, col[test])) {
			complain("the promise %q needs a mechanism and the name of a test", cell(row, col[promise]))
		}
	}
	text = stripCode(text)
	for _, test := range testName.FindAllString(text, -1) {
		if len(r.tests[test]) == 0 {
			complain("there is no test %s", test)
		}
	}
	for _, m := range namedLink.FindAllStringSubmatch(text, -1) {
		test, file := testName.FindString(m[1]), path.Clean(m[2])
		if test != "" && len(r.tests[test]) > 0 && !slices.ContainsFunc(r.tests[test], func(p string) bool {
			return p == file || path.Dir(p) == file
		}) {
			complain("%s is in %s, not in %s", test, strings.Join(r.tests[test], ", "), file)
		}
	}
	return complaints
}

var namedLink = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s#:]+)\)`)

func (r repository) checkLinks(name, text string) (complaints []string) {
	for _, m := range link.FindAllStringSubmatch(stripCode(text), -1) {
		u, err := url.Parse(m[1])
		if err != nil {
			complaints = append(complaints, fmt.Sprintf("%s: link %q: %v", name, m[1], err))
			continue
		}
		if u.IsAbs() || u.Host != "" {
			continue
		}
		target := name
		if u.Path != "" {
			target = path.Join(path.Dir(name), u.Path)
		}
		if !r.paths[target] {
			complaints = append(complaints, fmt.Sprintf("%s: link to %s, which is not there", name, m[1]))
		} else if doc, ok := r.docs[target]; ok && u.Fragment != "" && !anchors(doc)[u.Fragment] {
			complaints = append(complaints, fmt.Sprintf("%s: link to %s, where no such heading is", name, m[1]))
		}
	}
	return complaints
}

func TestReadmeSeesOffenders(t *testing.T) {
	r := repository{
		paths: map[string]bool{"README.md": true, "idem": true, "idem/do_test.go": true, "docs/a.md": true},
		code:  []string{"func f() { a := 1 }"},
		tests: map[string][]string{"TestDo": {"idem/do_test.go"}, "FuzzKey": {"idem/key_test.go"}},
		docs:  map[string]string{"README.md": "# The `Do` function, once\n"},
	}
	promises := func(name, text string) []string {
		return r.checkPromises(name, text, "promise", "mechanism", "test")
	}
	const head = "| Promise | Mechanism | Test |\n|---|---|---|\n"
	for _, tc := range []struct {
		name  string
		check func(name, text string) []string
		text  string
		want  string
	}{
		{"code", r.checkCode, "```go\nfunc f() {\n\ta := 1\n}\n```\n", ""},
		{"other code", r.checkCode, "```go\nfunc f() {\n\ta := 2\n}\n```\n", "README.md:2: this Go code"},
		{"no code", r.checkCode, "```sh\ngo run x\n```\n", "no Go code"},
		{"promise", promises, head + "| once | PRIMARY KEY | [`TestDo`](idem/do_test.go), `FuzzKey` |\n", ""},
		{"promise, link to the package", promises, head + "| once | PRIMARY KEY | [`TestDo`](idem) |\n", ""},
		{"promise, test gone", promises, head + "| once | PRIMARY KEY | `TestGone` |\n", "no test TestGone"},
		{
			"promise, test elsewhere", promises, head + "| once | PRIMARY KEY | [`FuzzKey`](idem/do_test.go) |\n",
			"not in idem/do_test.go",
		},
		{"promise without a test", promises, head + "| once | PRIMARY KEY | |\n", "needs a mechanism"},
		{"promise without a mechanism", promises, head + "| once | | `TestDo` |\n", "needs a mechanism"},
		{"promise, short row", promises, head + "| once |\n", "needs a mechanism"},
		{"no promises", promises, head, "no table"},
		{"test in the text", promises, head + "| once | PRIMARY KEY | `TestDo` |\n\nSee `TestGone`.\n", "no test TestGone"},
		{"link", r.checkLinks, "[a](idem) [b](idem/do_test.go) [c](https://example.com/x) [d](#the-do-function-once)", ""},
		{"link to nothing", r.checkLinks, "[a](idem/gone.go)", "not there"},
		{"link to no heading", r.checkLinks, "[a](README.md#gone)", "no such heading"},
	} {
		t.Run(tc.name, func(t *testing.T) { expect(t, tc.check("README.md", tc.text), tc.want) })
	}
	expect(t, r.checkLinks("docs/a.md", "[a](../idem) [b](a.md)"), "")
	expect(t, r.checkLinks("docs/a.md", "[a](idem)"), "not there")
	expect(t, r.checkReadme(testCommand+"\n"+runCommand+strings.Repeat("\n", maxReadme-1)), "")
	expect(t, r.checkReadme(testCommand+"\n"+runCommand+strings.Repeat("\n", maxReadme)), "more than")
	expect(t, r.checkReadme(testCommand), "does not give the command")
}
