package policy

import (
	"bufio"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The table of allowed imports is in internal/README.md, so that what people read and what is enforced are one text.
const importTableFile = "internal/README.md"

// Rows of the table that are not about a package's own code.
const (
	everyTest = "every test" // what all tests may import beyond their package's row
	testsOf   = "tests of "  // the same for the tests of one package, which follows
)

// rules is the table of allowed imports: package folder to what it may import, which is another folder of the module or
// the name of a module in the table of dependencies.
type rules struct {
	allowed map[string][]string
	modules map[string]string // name in the table to module path
}

// readRules reads both tables, and complains about what is wrong with them.
func readRules(text string) (r rules, complaints []string) {
	r = rules{map[string][]string{}, map[string]string{}}
	complain := func(format string, args ...any) {
		complaints = append(complaints, importTableFile+": "+fmt.Sprintf(format, args...))
	}
	deps, col, ok := tableWith(text, "name", "module", "reaches users", "why")
	if !ok {
		complain("no table with the columns name, module, reaches users, why")
	}
	for _, row := range deps.rows {
		name, module := words(cell(row, col["name"])), words(cell(row, col["module"]))
		if len(name) != 1 || len(module) != 1 || cell(row, col["why"]) == "" {
			complain("the row %q needs a name and a module, each between backticks, and a reason", row)
			continue
		}
		r.modules[name[0]] = module[0]
	}
	imports, col, ok := tableWith(text, "package", "may import", "why")
	if !ok {
		complain("no table with the columns package, may import, why")
	}
	for _, row := range imports.rows {
		from := words(cell(row, col["package"]))
		switch text := cell(row, col["package"]); {
		case text == everyTest:
			from = []string{everyTest}
		case strings.HasPrefix(text, testsOf) && len(from) == 1:
			from[0] = testsOf + from[0]
		}
		if len(from) != 1 || cell(row, col["why"]) == "" {
			complain("the row %q needs one package between backticks, and a reason", row)
			continue
		}
		if _, twice := r.allowed[from[0]]; twice {
			complain("two rows for %s", from[0])
		}
		r.allowed[from[0]] = words(cell(row, col["may import"]))
	}
	for _, from := range slices.Sorted(maps.Keys(r.allowed)) {
		for _, to := range r.allowed[from] {
			if _, isPackage := r.allowed[to]; !isPackage && r.modules[to] == "" {
				complain("%s may import %s, which neither table has", from, to)
			}
		}
	}
	return r, complaints
}

// target returns what an import path is called in the table, and "" for the standard library.
func (r rules) target(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, modulePath); ok && (rest == "" || rest[0] == '/') {
		return path.Clean(strings.TrimPrefix(rest, "/"))
	}
	if first, _, _ := strings.Cut(importPath, "/"); !strings.Contains(first, ".") {
		return ""
	}
	for name, module := range r.modules {
		if importPath == module || strings.HasPrefix(importPath, module+"/") {
			return name
		}
	}
	return importPath
}

// checkImports compares the imports of the root module with the table.
func (r rules) checkImports(files []goFile) (complaints []string) {
	seen := map[string]bool{everyTest: true}
	for _, f := range files {
		if inExamples(f.dir) {
			continue
		}
		allowed, ok := r.allowed[f.dir]
		if !ok && !seen[f.dir] {
			complaints = append(complaints, fmt.Sprintf(
				"%s: the package is not in the table of imports in %s: add a row that says what it may import and why",
				f.dir, importTableFile))
		}
		seen[f.dir] = true
		if f.test {
			seen[testsOf+f.dir] = true
		}
		if !ok {
			continue
		}
		for _, spec := range f.ast.Imports {
			importPath, _ := strconv.Unquote(spec.Path.Value)
			to := r.target(importPath)
			switch {
			case to == "", slices.Contains(allowed, to):
			case f.test && (to == f.dir || slices.Contains(r.allowed[everyTest], to) ||
				slices.Contains(r.allowed[testsOf+f.dir], to)):
			case inExamples(to):
				complaints = append(complaints, f.at(spec.Pos(), "%s → %s: nothing imports the examples", f.dir, to))
			default:
				complaints = append(complaints, f.at(spec.Pos(),
					"%s → %s is not in the table of imports: do without it, or, where the direction is right, add it to the row "+
						"of `%s` in %s",
					f.dir, to, f.dir, importTableFile))
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(r.allowed)) {
		if !seen[dir] {
			complaints = append(complaints, fmt.Sprintf("%s: a row for `%s`, where there is nothing", importTableFile, dir))
		}
	}
	return complaints
}

// reach returns how the table lets one package get at others: each package that it may import, directly or not, with
// the way there.
func (r rules) reach(from string) map[string]string {
	ways := map[string]string{from: from}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		for _, to := range r.allowed[todo[0]] {
			if ways[to] == "" {
				ways[to] = ways[todo[0]] + " → " + to
				todo = append(todo, to)
			}
		}
	}
	delete(ways, from)
	return ways
}

// directions are what no row of the table may undo, not even by way of other rows. A name ending in /... stands for the
// packages below it too.
var directions = []struct{ from, never, why string }{
	{"pgerr", "*", "pgerr is a leaf: it can be used with nothing else of this module"},
	{"upsert", "*", "upsert is a leaf: it can be used with nothing else of this module"},
	{"dedup/...", "idem/...", "the tables do not know who uses them"},
	{"internal/pg", "internal/...", "every engine stands on this seam"},
	{"internal/pg", "*", "every engine stands on this seam"},
	{"internal/claim", "dedup/...", "the engine stands below the packages that users see"},
	{"internal/claim", "idem/...", "the engine stands below the packages that users see"},
	{"internal/front", "idem/...", "what the front doors share must not know them"},
	{"internal/schema", "dedup/...", "the engine stands below the packages that users see"},
	{"internal/schema", "idem/...", "the engine stands below the packages that users see"},
}

// matches says whether a package is meant by a pattern of directions: "*" is every package that users see.
func matches(pattern, dir string) bool {
	if pattern == "*" {
		return !isInternal(dir)
	}
	below, all := strings.CutSuffix(pattern, "/...")
	return dir == below || all && strings.HasPrefix(dir, below+"/")
}

func (r rules) checkDirections() (complaints []string) {
	for _, from := range slices.Sorted(maps.Keys(r.allowed)) {
		ways := r.reach(from)
		for _, to := range slices.Sorted(maps.Keys(ways)) {
			if r.modules[to] != "" {
				continue
			}
			for _, d := range directions {
				if matches(d.from, from) && matches(d.never, to) {
					complaints = append(complaints, fmt.Sprintf("the table of imports allows %s: %s", ways[to], d.why))
				}
			}
			if r.reach(to)[from] != "" && from < to {
				complaints = append(complaints,
					fmt.Sprintf("the table of imports allows a circle: %s, and %s", ways[to], r.reach(to)[from]))
			}
		}
	}
	return complaints
}

// checkRequirements compares the table of dependencies with what go.mod requires directly.
func (r rules) checkRequirements(goMod string) (complaints []string) {
	listed := slices.Collect(maps.Values(r.modules))
	required := directRequirements(goMod)
	for _, m := range required {
		if !slices.Contains(listed, m) {
			complaints = append(complaints, fmt.Sprintf("go.mod requires %s, and %s gives no reason for it", m, importTableFile))
		}
	}
	for _, m := range slices.Sorted(slices.Values(listed)) {
		if !slices.Contains(required, m) {
			complaints = append(complaints, fmt.Sprintf("%s lists %s, which go.mod does not require", importTableFile, m))
		}
	}
	return complaints
}

func directRequirements(goMod string) (modules []string) {
	inBlock := false
	for sc := bufio.NewScanner(strings.NewReader(goMod)); sc.Scan(); {
		line := strings.TrimSpace(sc.Text())
		rest, isRequire := strings.CutPrefix(line, "require ")
		switch {
		case isRequire && rest == "(":
			inBlock = true
			continue
		case line == ")":
			inBlock = false
		}
		if fields := strings.Fields(rest); (isRequire || inBlock) && len(fields) >= 2 && !strings.HasSuffix(line,
			"// indirect") {
			modules = append(modules, fields[0])
		}
	}
	return modules
}

func TestImports(t *testing.T) {
	r, complaints := readRules(find(t, importTableFile))
	report(t, complaints)
	report(t, r.checkImports(goFiles(t)))
	report(t, r.checkDirections())
	report(t, r.checkRequirements(find(t, "go.mod")))
	for _, from := range slices.Sorted(maps.Keys(r.allowed)) {
		t.Logf("%s → %s", from, strings.Join(r.allowed[from], ", "))
	}
}

func TestImportsSeesOffenders(t *testing.T) {
	const deps = "| name | module | reaches users | why |\n|---|---|---|---|\n| `pgx` | `github.com/jackc/pgx/v5` | yes " +
		"| driver |\n" +
		"| `testify` | `github.com/stretchr/testify` | no | tests |\n\n"
	const head = deps + "| package | may import | why |\n|---|---|---|\n"
	const fine = head + "| `idem` | `dedup`, `pgx` | x |\n| `dedup` | | x |\n| every test | `testify` | x |\n"
	for _, tc := range []struct {
		name, table, path, imports string
		want                       string // part of a complaint, "" for none
	}{
		{"allowed", fine, "idem/a.go", `"github.com/jackc/pgx/v5/pgconn"; import "errors"`, ""},
		{"test library in a test", fine, "idem/a_test.go", `"github.com/stretchr/testify/require"`, ""},
		{"own package in a test", fine, "dedup/a_test.go", `"github.com/pgonce/pgonce/dedup"`, ""},
		{"test library in the code", fine, "idem/a.go", `"github.com/stretchr/testify/require"`, "idem → testify"},
		{"against the direction", fine, "dedup/a.go", `"github.com/pgonce/pgonce/idem"`, "dedup → idem is not"},
		{"the same in a test", fine, "dedup/a_test.go", `"github.com/pgonce/pgonce/idem"`, "dedup → idem is not"},
		{
			"row for its tests", fine + "| tests of `dedup` | `idem` | x |\n", "dedup/a_test.go",
			`"github.com/pgonce/pgonce/idem"`, "",
		},
		{
			"row for its tests only", fine + "| tests of `dedup` | `idem` | x |\n", "dedup/a.go",
			`"github.com/pgonce/pgonce/idem"`, "dedup → idem is not",
		},
		{
			"row for tests that are not there", fine + "| tests of `dedup` | `idem` | x |\n", "idem/a.go", `"errors"`,
			"`tests of dedup`, where",
		},
		{"module that is not listed", fine, "idem/a.go", `"github.com/jackc/pgx/v4"`, "idem → github.com/jackc/pgx/v4"},
		{"an example", fine, "idem/a.go", `"github.com/pgonce/pgonce/examples/x"`, "nothing imports the examples"},
		{"package without a row", fine, "outbox/a.go", `"errors"`, "outbox: the package is not in the table"},
		{"row without a package", fine + "| `gone` | | x |\n", "idem/a.go", `"errors"`, "`gone`, where there is nothing"},
		{"two rows", fine + "| `idem` | | x |\n", "idem/a.go", `"errors"`, "two rows for idem"},
		{"no reason", head + "| `idem` | | |\n| `dedup` | | x |\n", "idem/a.go", `"errors"`, "and a reason"},
		{
			"unknown name", head + "| `idem` | `nothing` | x |\n| `dedup` | | x |\n", "idem/a.go", `"errors"`,
			"which neither table has",
		},
		{
			"circle", head + "| `idem` | `a` | x |\n| `dedup` | | x |\n| `a` | `idem` | x |\n", "a/a.go", `"errors"`,
			"a circle",
		},
		{
			"leaf by way of another", head +
				"| `idem` | | x |\n| `dedup` | | x |\n| `pgerr` | `internal/b` | x |\n| `internal/b` | `dedup` | x |\n",
			"internal/b/b.go", `"errors"`, "pgerr → internal/b → dedup: pgerr is a leaf",
		},
		{"no table", "nothing here", "idem/a.go", `"errors"`, "no table"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, got := readRules(tc.table)
			files := []goFile{mustParse(t, tc.path, "package p\nimport "+tc.imports+"\n")}
			for _, dir := range []string{"idem", "dedup", "pgerr", "a", "internal/b"} { // so that these rows have packages
				if _, ok := r.allowed[dir]; ok {
					files = append(files, mustParse(t, dir+"/empty.go", "package p\n"))
				}
			}
			got = append(append(got, r.checkImports(files)...), r.checkDirections()...)
			expect(t, got, tc.want)
		})
	}
	r, _ := readRules(fine)
	expect(t, r.checkRequirements("require github.com/jackc/pgx/v5 v5.13.0\nrequire (\n\tgithub.com/stretchr/testify "+
		"v1.0.0\n\tx.y/z v1.0.0 // indirect\n)"), "")
	expect(t, r.checkRequirements("require github.com/jackc/pgx/v5 v5.13.0\nrequire (\n\tgithub.com/stretchr/testify "+
		"v1.0.0\n\tx.y/z v1.0.0\n)"), "go.mod requires x.y/z")
	expect(t, r.checkRequirements("require github.com/jackc/pgx/v5 v5.13.0\n"), "which go.mod does not require")
}
