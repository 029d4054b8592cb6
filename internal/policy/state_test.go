package policy

import (
	"errors"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"
)

// stateAllowed lists the package variables that change at run time, with the reason. Everything else lives in a
// value that its user made.
var stateAllowed = map[string]string{
	"internal/rig/pgtest.shared": "one server for all tests of a process, and a test function is called with " +
		"nothing but its T",
	"examples/quickstart.startLocal": "set once, by the one file that a copy leaves behind",
	"examples/orders.startLocal":     "the same",
}

// TestPackageState looks for package variables that change while the program runs, of this package or another.
func TestPackageState(t *testing.T) {
	var files []goFile
	for _, f := range goFiles(t) {
		if !f.test {
			files = append(files, f)
		}
	}
	found := map[string][]string{}
	dirs, byDir := packages(files)
	for _, dir := range dirs {
		maps.Copy(found, changingVars(byDir[dir]))
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if stateAllowed[name] == "" {
			report(t, found[name])
		}
	}
	for name := range stateAllowed {
		if found[name] == nil {
			t.Errorf("%s is allowed to change, but does not: take it off the list", name)
		}
	}
}

// noImports makes the type checker do without imported packages. It then knows less about types, but still which
// variable a name stands for, and that is all we ask.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// changingVars returns, by "folder.name", complaints about package variables that can change: those that are assigned
// to, whose address is taken, and those of a kind that is there to change.
func changingVars(files []goFile) map[string][]string {
	if len(files) == 0 {
		return nil
	}
	// The checker wants the files of a package in one set.
	fset := token.NewFileSet()
	var trees []*ast.File
	var pkgFiles []goFile
	for _, f := range files {
		if f, err := parseInto(fset, f.path, f.text); err == nil { // it parsed before
			pkgFiles = append(pkgFiles, f)
			trees = append(trees, f.ast)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := conf.Check(files[0].dir, fset, trees, info)

	found := map[string][]string{}
	for _, f := range pkgFiles {
		complain := func(e ast.Expr, what string) {
			obj := info.Uses[base(e)]
			switch obj := obj.(type) {
			case *types.Var:
				if obj.Parent() == pkg.Scope() {
					name := f.dir + "." + obj.Name()
					found[name] = append(found[name], f.at(e.Pos(), "package variable %s %s", obj.Name(), what))
				}
			case *types.PkgName:
				name := f.dir + " " + obj.Imported().Path()
				found[name] = append(found[name], f.at(e.Pos(), "variable of package %s %s", obj.Imported().Path(), what))
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, e := range n.Lhs {
						complain(e, "is assigned to")
					}
				}
			case *ast.IncDecStmt:
				complain(n.X, "is assigned to")
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					complain(n.Key, "is assigned to")
					complain(n.Value, "is assigned to")
				}
			case *ast.UnaryExpr:
				if _, literal := n.X.(*ast.CompositeLit); n.Op == token.AND && !literal {
					complain(n.X, "has its address taken")
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && slices.Contains([]string{"delete", "clear", "copy"}, fn.Name) &&
					len(n.Args) > 0 {
					complain(n.Args[0], "is changed by "+fn.Name)
				}
			}
			return true
		})
		for _, decl := range f.ast.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				spec := spec.(*ast.ValueSpec)
				if !canChange(spec) {
					continue
				}
				for _, name := range spec.Names {
					key := f.dir + "." + name.Name
					found[key] = append(found[key],
						f.at(name.Pos(), "package variable %s is of a kind that is there to change", name.Name))
				}
			}
		}
	}
	return found
}

// base returns the name that an expression begins with: x of x.f[i], and of (*x).f. Of a variable of another package it
// is the package's name.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// canChange says whether a variable is declared as, or made by, something of sync, sync/atomic, or a channel.
func canChange(spec *ast.ValueSpec) bool {
	changes := false
	look := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ChanType:
			changes = true
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && (pkg.Name == "sync" || pkg.Name == "atomic") {
				changes = true
			}
		case *ast.FuncLit:
			return false
		}
		return !changes
	}
	if spec.Type != nil {
		ast.Inspect(spec.Type, look)
	}
	for _, v := range spec.Values {
		ast.Inspect(v, look)
	}
	return changes
}

func TestPackageStateSeesOffenders(t *testing.T) {
	for _, tc := range []struct{ name, code, want string }{
		{"assigned", "var v int\nfunc f() { v = 1 }", "p.v"},
		{"counted", "var v int\nfunc f() { v++ }", "p.v"},
		{"element", "var v = map[string]int{}\nfunc f() { v[\"a\"] = 1 }", "p.v"},
		{"field behind a pointer", "var v = &s\nfunc f() { (*v).a[1].b = 1 }", "p.v"},
		{"deleted from", "var v = map[string]int{}\nfunc f() { delete(v, \"a\") }", "p.v"},
		{"address", "var v int\nfunc f() { g(&v) }", "p.v"},
		{"range", "var v int\nfunc f() { for v = range 3 {} }", "p.v"},
		{"inside a closure", "var v int\nfunc f() { func() { v = 1 }() }", "p.v"},
		{"atomic", "var v atomic.Int64", "p.v"},
		{"mutex in a struct", "var v struct { sync.Mutex }", "p.v"},
		{"once", "var v = sync.OnceValue(func() int { return 1 })", "p.v"},
		{"channel", "var v = make(chan int)", "p.v"},
		{"of another package", "import \"net/http\"\nfunc f() { http.DefaultClient = nil }", "p net/http"},
		{"local of the same name", "var v int\nfunc f() { v := 1; v = 2; g(&v) }", ""},
		{"argument of the same name", "var v int\nfunc f(v int) { v++ }", ""},
		{"read", "var v = []string{\"a\"}\nfunc f() string { return v[0] }", ""},
		{"sentinel", "import \"errors\"\nvar ErrV = errors.New(\"v\")", ""},
		{"address of a literal", "func f() *s { return &s{} }", ""},
		{"local of another package's type", "import \"net/http\"\nfunc f() { var c http.Client; c.Timeout = 1 }", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := changingVars([]goFile{mustParse(t, "p/x.go", "package p\n"+tc.code+"\n")})
			if tc.want == "" && len(found) > 0 || tc.want != "" && found[tc.want] == nil {
				t.Errorf("found %v, want %q", found, tc.want)
			}
		})
	}
	// Two files of one package.
	found := changingVars([]goFile{
		mustParse(t, "p/a.go", "package p\nvar v int\n"),
		mustParse(t, "p/b.go", "package p\nfunc f() { v = 1 }\n"),
	})
	if got := strings.Join(found["p.v"], ""); !strings.Contains(got, "p/b.go:2: package variable v is assigned to") {
		t.Errorf("found %v", found)
	}
}
