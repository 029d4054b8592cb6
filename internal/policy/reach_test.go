package policy

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// listed is a package as go list describes it.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
	Error      *struct{ Err string }
}

// graph is packages by import path.
type graph map[string]listed

// goList lists packages with all that they import, tests aside. The workspace is left out: users do not have it.
func goList(t *testing.T, dir string, patterns ...string) graph {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-deps", "-json=ImportPath,Standard,Imports,Module,Error"},
		patterns...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s in %s: %v\n%s", cmd, dir, err, &stderr)
	}
	g, dec := graph{}, json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return g
		} else if err != nil {
			t.Fatalf("read the output of %s: %v", cmd, err)
		}
		if p.Error != nil {
			t.Fatalf("%s in %s: %s: %s", cmd, dir, p.ImportPath, p.Error.Err)
		}
		g[p.ImportPath] = p
	}
}

// unwanted returns the shortest way from a package to each module that may not be in its program; of a module's
// packages the one that is reached first.
func (g graph) unwanted(from string, allowed func(module string) bool) (ways []string) {
	way := map[string]string{from: from}
	var modules []string
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		p := g[todo[0]]
		if p.Module != nil && !allowed(p.Module.Path) {
			if !slices.Contains(modules, p.Module.Path) {
				modules = append(modules, p.Module.Path)
				ways = append(ways, way[p.ImportPath])
			}
			continue // whatever this one brings along goes with it
		}
		for _, to := range p.Imports {
			if _, seen := way[to]; !seen && !g[to].Standard {
				way[to] = way[p.ImportPath] + " → " + to
				todo = append(todo, to)
			}
		}
	}
	return ways
}

// userModules says which modules may become part of a user's program by an import of this one: the driver's family, and
// what Go's own authors keep beside the standard library. The test libraries, container libraries and OpenTelemetry in
// go.mod are none of them.
func userModules(module string) bool {
	return module == modulePath || strings.HasPrefix(module, "github.com/jackc/") || strings.HasPrefix(module,
		"golang.org/x/")
}

func TestUsersGetNoTestLibraries(t *testing.T) {
	g := goList(t, rootPath(t), "./...")
	n := 0
	for importPath, p := range g {
		dir := strings.TrimPrefix(strings.TrimPrefix(importPath, modulePath), "/")
		if p.Module == nil || p.Module.Path != modulePath || isInternal(dir) || strings.HasPrefix(dir, "idem/cmd/") {
			continue // no program imports a command
		}
		n++
		for _, way := range g.unwanted(importPath, userModules) {
			t.Errorf("a program that imports %s would contain: %s", importPath, way)
		}
	}
	if n < 4 {
		t.Errorf("only %d packages looked at", n)
	}
}

// quickstartModules says which modules the quickstart may bring along. It is what a newcomer builds first, with nothing
// in the cache: container and test libraries would make that minutes.
func quickstartModules(module string) bool {
	for _, not := range []string{"testcontainers", "docker", "moby", "opentelemetry", "testify", "rapid"} {
		if strings.Contains(module, not) {
			return false
		}
	}
	return true
}

func TestQuickstartBuildsFast(t *testing.T) {
	const quickstart = modulePath + "/examples/quickstart"
	g := goList(t, rootPath(t, "examples"), "./quickstart")
	if _, ok := g[quickstart]; !ok {
		t.Fatalf("go list knows no %s", quickstart)
	}
	for _, way := range g.unwanted(quickstart, quickstartModules) {
		t.Errorf("the quickstart contains: %s", way)
	}
}

func TestUnwantedSeesOffenders(t *testing.T) {
	module := func(path string) *struct{ Path string } { return &struct{ Path string }{path} }
	g := graph{
		"a":   {ImportPath: "a", Module: module(modulePath), Imports: []string{"b", "fmt"}},
		"b":   {ImportPath: "b", Module: module(modulePath), Imports: []string{"pgx", "t/req"}},
		"c":   {ImportPath: "c", Module: module(modulePath), Imports: []string{"pgx"}},
		"pgx": {ImportPath: "pgx", Module: module("github.com/jackc/pgx/v5")},
		"t/req": {
			ImportPath: "t/req", Module: module("github.com/stretchr/testify"), Imports: []string{"yaml"},
		},
		"yaml": {ImportPath: "yaml", Module: module("go.yaml.in/yaml/v3")},
		"fmt":  {ImportPath: "fmt", Standard: true},
	}
	if got := g.unwanted("a", userModules); !slices.Equal(got, []string{"a → b → t/req"}) {
		t.Errorf("ways of a: %q", got)
	}
	if got := g.unwanted("c", userModules); len(got) > 0 {
		t.Errorf("ways of c: %q", got)
	}
	for module, want := range map[string]bool{
		"github.com/testcontainers/testcontainers-go": false, "github.com/moby/moby/client": false,
		"go.opentelemetry.io/otel": false, "github.com/stretchr/testify": false, "github.com/lib/pq": true,
	} {
		if got := quickstartModules(module); got != want {
			t.Errorf("quickstartModules(%s) = %v", module, got)
		}
	}
	for _, module := range []string{
		"github.com/stretchr/testify", "go.opentelemetry.io/otel", "github.com/lib/pq",
		"github.com/fergusstrange/embedded-postgres",
	} {
		if userModules(module) {
			t.Errorf("userModules(%s)", module)
		}
	}
}
