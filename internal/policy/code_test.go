package policy

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	maxLines    = 400
	maxConcepts = 25 // names of a package; methods and fields come with their type
)

// codeRules are about one file each, of the code that runs outside of tests.
var codeRules = []struct {
	name  string
	check func(goFile) []string
}{
	{"length", checkLength},
	{"init", checkInit},
	{"error text", checkErrorText},
	{"headings", checkHeadings},
	{"doc comments", checkDocComments},
}

func TestCode(t *testing.T) {
	for _, rule := range codeRules {
		t.Run(rule.name, func(t *testing.T) {
			for _, f := range goFiles(t) {
				if !f.test {
					report(t, rule.check(f))
				}
			}
		})
	}
	t.Run("package comments", func(t *testing.T) { report(t, checkPackageComments(goFiles(t))) })
}

func checkLength(f goFile) []string {
	if n := strings.Count(f.text, "\n"); n > maxLines {
		return []string{fmt.Sprintf("%s: %d lines, more than %d: split it where its parts can be read alone", f.path, n,
			maxLines)}
	}
	return nil
}

func checkInit(f goFile) (complaints []string) {
	for _, decl := range f.ast.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			complaints = append(complaints, f.at(fn.Pos(), "func init: an import must do nothing"))
		}
	}
	return complaints
}

// checkErrorText forbids to decide by what an error says. The text may be printed and passed on; it may not be
// compared, searched, or kept in a variable, which has no other use than one of these. The same goes for the parts of
// a server's error that are meant for people and come in their language.
func checkErrorText(f goFile) (complaints []string) {
	decides := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if what := errorText(e); what != "" {
				complaints = append(complaints, f.at(e.Pos(),
					"decides by the text %s: ask errors.Is or errors.As, or for the SQLSTATE and the constraint's name", what))
			}
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && !isEmptyString(n.X) && !isEmptyString(n.Y) {
				decides(n.X, n.Y)
			}
		case *ast.SwitchStmt:
			decides(n.Tag)
		case *ast.AssignStmt:
			decides(n.Rhs...)
		case *ast.ValueSpec:
			decides(n.Values...)
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && searches(sel) {
				decides(n.Args...)
			}
		}
		return true
	})
	return complaints
}

// searches says whether a function looks into its arguments: those of the standard library's packages for text, and
// the methods of a regular expression.
func searches(fn *ast.SelectorExpr) bool {
	pkg, _ := fn.X.(*ast.Ident)
	return pkg != nil && slices.Contains([]string{"strings", "bytes", "regexp", "slices"}, pkg.Name) ||
		strings.HasPrefix(fn.Sel.Name, "Match") || strings.HasPrefix(fn.Sel.Name, "Find")
}

// errorText returns the part of an expression that is an error's text, bare or converted, and "" where there is none.
func errorText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return errorText(e.X)
	case *ast.CallExpr:
		if sel, ok := e.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Error" && len(e.Args) == 0 {
			return ".Error()"
		}
		for _, arg := range e.Args { // strings.ToLower(err.Error()), []byte(err.Error())
			if what := errorText(arg); what != "" {
				return what
			}
		}
	case *ast.SelectorExpr:
		if slices.Contains([]string{"Message", "Detail", "Hint"}, e.Sel.Name) {
			return "." + e.Sel.Name
		}
	}
	return ""
}

func isEmptyString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Value == `""`
}

var wrongHeading = regexp.MustCompile(`(?m)^(?://|/\*)?\s*##+ `)

// checkHeadings looks for headings that Go doc shows as they are: it knows one level, "# ".
func checkHeadings(f goFile) (complaints []string) {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if wrongHeading.MatchString(c.Text) {
				complaints = append(complaints, f.at(c.Pos(), "a heading that Go doc does not know: only `# ` is one"))
			}
		}
	}
	return complaints
}

// checkDocComments wants a comment on every exported name. In a group of constants or variables the group's will do.
func checkDocComments(f goFile) (complaints []string) {
	if ast.IsGenerated(f.ast) {
		return nil // what sqlc wrote for an example
	}
	want := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if name.IsExported() && !slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return d.Text() != "" }) {
			complaints = append(complaints, f.at(name.Pos(), "%s is exported and has no doc comment", name.Name))
		}
	}
	for _, decl := range f.ast.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			// What these methods do, their interfaces say.
			wellKnown := decl.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "String"}, decl.Name.Name)
			if !wellKnown && (decl.Recv == nil || ast.IsExported(receiver(decl))) {
				want(decl.Name, decl.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					want(spec.Name, decl.Doc, spec.Doc)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						want(name, decl.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	return complaints
}

// receiver returns the name of a method's type.
func receiver(fn *ast.FuncDecl) string {
	e := fn.Recv.List[0].Type
	for {
		switch t := e.(type) {
		case *ast.StarExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// checkPackageComments wants one package comment in each package, in the form that Go doc knows.
func checkPackageComments(files []goFile) (complaints []string) {
	dirs, byDir := packages(files)
	for _, dir := range dirs {
		var docs []goFile
		code, tagged := false, false // tagged: one of several files is built, each has to say what the package is
		for _, f := range byDir[dir] {
			code = code || !f.test
			if !f.test && f.ast.Doc.Text() != "" {
				docs = append(docs, f)
				tagged = tagged || strings.HasPrefix(f.text, "//go:build ")
			}
		}
		switch {
		case !code:
		case len(docs) == 0:
			complaints = append(complaints, dir+": no package comment")
		case len(docs) > 1 && !tagged:
			complaints = append(complaints, fmt.Sprintf("%s: package comments in %s and %s", dir, docs[0].path, docs[1].path))
		case docs[0].ast.Name.Name != "main" && !strings.HasPrefix(docs[0].ast.Doc.Text(),
			"Package "+docs[0].ast.Name.Name+" "):
			complaints = append(complaints,
				docs[0].at(docs[0].ast.Package, "the package comment does not begin with \"Package %s\"", docs[0].ast.Name.Name))
		}
	}
	return complaints
}

// concepts returns the exported names of a package that a user has to learn. Methods are their type's. The constants of
// a type are its values: who knows the type looks them up.
func concepts(files []goFile) (names []string) {
	add := func(name *ast.Ident) {
		if name.IsExported() {
			names = append(names, name.Name)
		}
	}
	for _, f := range files {
		for _, decl := range f.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil {
					add(decl.Name)
				}
			case *ast.GenDecl:
				typed := false
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						add(spec.Name)
					case *ast.ValueSpec:
						typed = decl.Tok == token.CONST && hasType(spec, typed)
						for _, name := range spec.Names {
							// The codes of pgerr are a list, looked up by their value and not learned by heart.
							if !typed && (f.dir != "pgerr" || decl.Tok != token.CONST) {
								add(name)
							}
						}
					}
				}
			}
		}
	}
	return names
}

// hasType says whether a constant has a type of its own, states or converts to one, or has that of the one before.
func hasType(spec *ast.ValueSpec, before bool) bool {
	switch {
	case spec.Type != nil:
		return true
	case len(spec.Values) == 0:
		return before
	}
	_, converted := spec.Values[0].(*ast.CallExpr)
	return converted
}

// TestConcepts keeps what users have to learn small.
func TestConcepts(t *testing.T) {
	var files []goFile
	for _, f := range goFiles(t) {
		if !f.test && !isInternal(f.dir) && !inExamples(f.dir) {
			files = append(files, f)
		}
	}
	dirs, byDir := packages(files)
	for _, dir := range dirs {
		names := concepts(byDir[dir])
		t.Logf("%s: %d concepts", dir, len(names))
		limit := maxConcepts
		if dir == "idem" {
			// a third of them are errors, which its documentation has in a table; and to be learned, too, though methods: DoMany, Apply
			limit = 32
		}
		if len(names) > limit {
			t.Errorf("%s has %d concepts, more than %d: %s", dir, len(names), limit, strings.Join(names, " "))
		}
	}
}

func TestCodeSeesOffenders(t *testing.T) {
	for _, tc := range []struct {
		name  string
		check func(goFile) []string
		code  string
		want  string
	}{
		{"long file", checkLength, strings.Repeat("//\n", maxLines), "lines, more than"},
		{"file of the full length", checkLength, strings.Repeat("//\n", maxLines-3), ""},
		{"init", checkInit, "func init() {}", "func init"},
		{"method init", checkInit, "func (t) init() {}", ""},
		{"text compared", checkErrorText, `func f(err error) bool { return "x" != err.Error() }`, "text .Error()"},
		{"text switched on", checkErrorText, `func f(err error) { switch (err.Error()) { case "x": } }`, "text .Error()"},
		{
			"text searched", checkErrorText, `func f(err error) bool { return strings.Contains(err.Error(), "x") }`,
			"text .Error()",
		},
		{
			"text changed and searched", checkErrorText, `func f(err error) bool { return re.Match([]byte(err.Error())) }`,
			"text .Error()",
		},
		{"text kept", checkErrorText, "func f(err error) { s := err.Error(); _ = s }", "text .Error()"},
		{"text kept by the package", checkErrorText, "var s = err.Error()", "text .Error()"},
		{"text passed on", checkErrorText, `func f(err error) { panic("p: " + err.Error()) }`, ""},
		{"text wrapped", checkErrorText, `func (e E) Error() string { return e.stage + e.err.Error() }`, ""},
		{"answer of a web server", checkErrorText, `func f() { http.Error(w, "x", 500) }`, ""},
		{"message compared", checkErrorText, `func f() bool { return "x" == pgErr.Message }`, "text .Message"},
		{
			"message searched", checkErrorText, `func f() bool { return strings.Contains(strings.ToLower(e.Detail), "x") }`,
			"text .Detail",
		},
		{"message matched", checkErrorText, `func f() bool { return re.MatchString(e.Hint) }`, "text .Hint"},
		{"message switched on", checkErrorText, `func f() { switch e.Message { case "x": } }`, "text .Message"},
		{"message asked for", checkErrorText, `func f() bool { return e.Message != "" }`, ""},
		{"message dropped", checkErrorText, `func f() { e.Detail = "" }`, ""},
		{"constraint compared", checkErrorText, `func f() bool { return e.ConstraintName == "x" }`, ""},
		{"heading", checkHeadings, "// ## Title\nvar x int", "heading"},
		{"heading in a block", checkHeadings, "/*\n## Title\n*/\nvar x int", "heading"},
		{"Go's heading", checkHeadings, "// # Title\nvar x int", ""},
		{"func", checkDocComments, "func F() {}", "F is exported"},
		{"func with a comment", checkDocComments, "// F does.\nfunc F() {}", ""},
		{"func with a directive", checkDocComments, "//go:noinline\nfunc F() {}", "F is exported"},
		{"func of the package", checkDocComments, "func f() {}", ""},
		{"method", checkDocComments, "func (t *T[K]) F() {}", "F is exported"},
		{"method of a hidden type", checkDocComments, "func (t *t) F() {}", ""},
		{"type", checkDocComments, "type T int", "T is exported"},
		{"method that everybody knows", checkDocComments, "func (t *T) Unwrap() error {}", ""},
		{"func of that name", checkDocComments, "func Error() {}", "Error is exported"},
		{"var", checkDocComments, "var V = 1", "V is exported"},
		{"group", checkDocComments, "// Codes.\nconst (\n\tA = 1\n\tB = 2\n)", ""},
		{"group without", checkDocComments, "const (\n\tA = 1 // is\n\tB = 2\n)", "B is exported"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expect(t, tc.check(mustParse(t, "idem/x.go", "package p\n\n"+tc.code+"\n")), tc.want)
		})
	}
	pkg := func(texts ...string) (files []goFile) {
		for i, text := range texts {
			files = append(files, mustParse(t, "p/"+strconv.Itoa(i)+".go", text))
		}
		return files
	}
	expect(t, checkPackageComments(pkg("package p\n")), "no package comment")
	expect(t, checkPackageComments(pkg("// Package p is.\n\npackage p\n")), "no package comment")
	expect(t, checkPackageComments(pkg("// Some words.\npackage p\n")), "does not begin")
	expect(t, checkPackageComments(pkg("// Package p is.\npackage p\n", "// Package p is.\npackage p\n")),
		"package comments in")
	expect(t, checkPackageComments(pkg("// Package p is.\npackage p\n", "package p\n")), "")
	expect(t, checkPackageComments(pkg("//go:build linux\n\n// Package p is.\npackage p\n",
		"//go:build !linux\n\n// Package p is.\npackage p\n")), "")
	names := concepts(pkg("package p\ntype T int\nfunc (T) M() {}\nfunc F() {}\nconst C, d = 1, 2\nvar V int\n" +
		"const (\nA T = iota\nB\nX = T(2)\nY = 3\nZ\n)\n"))
	if want := []string{"T", "F", "C", "V", "Y", "Z"}; !slices.Equal(names, want) {
		t.Errorf("concepts %q, want %q", names, want)
	}
}
