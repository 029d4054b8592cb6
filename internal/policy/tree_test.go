package policy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/pgonce/pgonce"

// textFile is a file of the repository that a person can read.
type textFile struct {
	path string // from the root, with slashes
	text string
}

// goFile is a Go source file with its syntax tree.
type goFile struct {
	textFile
	dir  string // package folder, "." for the root
	test bool
	fset *token.FileSet
	ast  *ast.File
}

// readTree reads every text file of the repository. That the files are opened here, by this process, also tells go test
// which changes make a cached result worthless; what a child process reads does not.
var readTree = sync.OnceValues(func() ([]textFile, error) {
	var files []textFile
	root := os.DirFS(repoRoot)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" && d.Name() != ".github" {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || name == ".git" { // a work tree of git has a file of that name
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if !bytes.ContainsRune(text, 0) {
			files = append(files, textFile{name, string(text)})
		}
		return nil
	})
	return files, err
})

// repoRoot is the repository's root: go test runs each test in its package's folder.
const repoRoot = "../.."

func tree(t *testing.T) []textFile {
	t.Helper()
	files, err := readTree()
	if err != nil {
		t.Fatalf("read the repository: %v", err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d text files under %s: this is not the repository's root", len(files), repoRoot)
	}
	return files
}

// find returns a file's text, or fails the test.
func find(t *testing.T, name string) string {
	t.Helper()
	for _, f := range tree(t) {
		if f.path == name {
			return f.text
		}
	}
	t.Fatalf("%s is missing", name)
	return ""
}

// goFiles parses the repository's Go files, those of the examples too. Like the go command it leaves out testdata.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	for _, f := range tree(t) {
		if path.Ext(f.path) != ".go" || slices.Contains(strings.Split(f.path, "/"), "testdata") {
			continue
		}
		g, err := parse(f.path, f.text)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, g)
	}
	return files
}

func parse(name, text string) (goFile, error) { return parseInto(token.NewFileSet(), name, text) }

// parseInto parses a file into a set that it shares with others.
func parseInto(fset *token.FileSet, name, text string) (goFile, error) {
	tree, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return goFile{
		textFile: textFile{name, text},
		dir:      path.Dir(name),
		test:     strings.HasSuffix(name, "_test.go"),
		fset:     fset,
		ast:      tree,
	}, err
}

// at formats a complaint about a place in a file.
func (f goFile) at(pos token.Pos, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", f.path, f.fset.Position(pos).Line, fmt.Sprintf(format, args...))
}

// packages groups files by folder. The order of folders and files stays.
func packages(files []goFile) (dirs []string, byDir map[string][]goFile) {
	byDir = map[string][]goFile{}
	for _, f := range files {
		if byDir[f.dir] == nil {
			dirs = append(dirs, f.dir)
		}
		byDir[f.dir] = append(byDir[f.dir], f)
	}
	return dirs, byDir
}

// inExamples says whether a folder belongs to the module of the examples.
func inExamples(dir string) bool { return dir == "examples" || strings.HasPrefix(dir, "examples/") }

// isInternal says whether a folder is closed to users.
func isInternal(dir string) bool { return slices.Contains(strings.Split(dir, "/"), "internal") }

// report fails the test with each complaint.
func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

// expect wants a complaint that contains a text, or, for an empty text, none.
func expect(t *testing.T, complaints []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(complaints) > 0:
		t.Errorf("complaints about what is allowed: %q", complaints)
	case want != "" && !slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(c, want) }):
		t.Errorf("complaints %q: none contains %q", complaints, want)
	}
}

func mustParse(t *testing.T, name, text string) goFile {
	t.Helper()
	f, err := parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func rootPath(t *testing.T, elem ...string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join(append([]string{repoRoot}, elem...)...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
