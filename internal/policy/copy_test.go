package policy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestExamplesCanBeCopied makes of each example what a reader makes of it: the folder, less its tests and local.go (the
// only file of an example that may use this repository's inner parts), in a module of their own.
func TestExamplesCanBeCopied(t *testing.T) {
	entries, err := os.ReadDir(rootPath(t, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		n++
		t.Run(e.Name(), func(t *testing.T) {
			t.Parallel()
			if err := buildCopy(t, rootPath(t, "examples", e.Name())); err != nil {
				t.Error(err)
			}
		})
	}
	if n == 0 {
		t.Error("no examples")
	}
}

// buildCopy copies an example and builds it.
func buildCopy(t *testing.T, example string) error {
	t.Helper()
	dir := t.TempDir()
	var files int
	err := filepath.WalkDir(example, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(example, path)
		if err != nil || d.IsDir() || d.Name() == "local.go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		if filepath.Ext(name) == ".go" {
			files++
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), text, 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatalf("%s has no Go file to copy", example)
	}
	writeModule(t, dir)
	// The requirements are the examples' own, so that the module cache has what the build needs; -mod=mod lets it
	// drop those that this example does without. To list what its packages export compiles them, and links no program.
	cmd := exec.Command("go", "list", "-export", "-buildvcs=false", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("a copy without local.go does not build: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

var (
	moduleLine  = regexp.MustCompile(`(?m)^module .*$`)
	replaceLine = regexp.MustCompile(`(?m)^replace ` + modulePath + ` => .*$`)
)

// writeModule makes go.mod and go.sum of the copy from those of the examples.
func writeModule(t *testing.T, dir string) {
	t.Helper()
	goMod := find(t, "examples/go.mod")
	if !replaceLine.MatchString(goMod) {
		t.Fatalf("examples/go.mod does not replace %s", modulePath)
	}
	goMod = moduleLine.ReplaceAllString(goMod, "module example.com/copy")
	goMod = replaceLine.ReplaceAllLiteralString(goMod, "replace "+modulePath+" => "+strconv.Quote(rootPath(t)))
	var sums []string
	for _, f := range tree(t) {
		if slices.Contains([]string{"go.sum", "go.work.sum", "examples/go.sum"}, f.path) {
			sums = append(sums, strings.Split(strings.TrimSpace(f.text), "\n")...)
		}
	}
	slices.Sort(sums)
	for name, text := range map[string]string{"go.mod": goMod, "go.sum": strings.Join(slices.Compact(sums), "\n") + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExamplesKeepToThemselves checks the same by reading: internal packages are for local.go and tests.
func TestExamplesKeepToThemselves(t *testing.T) {
	for _, f := range goFiles(t) {
		if inExamples(f.dir) {
			report(t, checkExampleImports(f))
		}
	}
}

func checkExampleImports(f goFile) (complaints []string) {
	for _, spec := range f.ast.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		if strings.HasPrefix(importPath, modulePath+"/internal/") && !f.test && filepath.Base(f.path) != "local.go" {
			complaints = append(complaints,
				f.at(spec.Pos(), "imports %s: only local.go and tests may, the rest is made to be copied", importPath))
		}
	}
	return complaints
}

func TestCopySeesOffenders(t *testing.T) {
	const internal = `import _ "` + modulePath + `/internal/rig/pgserver"` + "\n"
	expect(t, checkExampleImports(mustParse(t, "examples/x/main.go", "package main\n"+internal)), "only local.go")
	expect(t, checkExampleImports(mustParse(t, "examples/x/local.go", "package main\n"+internal)), "")
	expect(t, checkExampleImports(mustParse(t, "examples/x/x_test.go", "package main\n"+internal)), "")

	for _, tc := range []struct {
		name, main, local, want string
	}{
		{"stands alone", "func main() {}\n", "func f() {}\n", ""},
		{"needs local.go", "func main() { f() }\n", "func f() {}\n", "undefined: f"},
		{"uses internal", internal + "func main() {}\n", "", "use of internal package"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"main.go": tc.main, "local.go": tc.local} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("package main\n"+text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			err := buildCopy(t, dir)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
