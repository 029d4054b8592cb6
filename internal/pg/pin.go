package pg

import (
	"slices"
	"strconv"
	"strings"
)

// Pin returns a statement of this module in which every operator, function, type and collation is named as
// pg_catalog's own.
//
// Unqualified, each of them is looked for along the search path of the session. One with an exact match for its
// arguments wins wherever it stands over an inexact one in pg_catalog; and where the search path names pg_catalog
// itself behind other schemas, an exact one does too. Whoever may create functions in such a schema would have them
// run with the rights of the session.
//
// It reads the SQL of this module, not every SQL. A function's name and its parenthesis touch, and no other name does
// that. NOT IN, BETWEEN, IS DISTINCT FROM, LIKE and CASE x WHEN name no operator that could be qualified: they must
// not be used. TestNothingIsCaptured sees to it.
func Pin(sql string) string {
	p := pinner{tokens: lex(sql)}
	return p.group("")
}

// AsIs marks a part of a statement that [Pin] leaves as it is: an expression of a user, whatever is in it. Such a part
// holds no other.
func AsIs(sql string) string { return asIs + strconv.Itoa(len(sql)) + ":" + sql }

// asIs begins a part to be left alone; its length follows.
const asIs = "\x01"

const operatorChars = "+-*/<>=~!@#%^&|`?"

type kind uint8

const (
	word     kind = iota + 1 // an identifier or a keyword
	quoted                   // "an identifier"
	other                    // a string, a number, a parameter, a part to be left alone
	operator                 //
	sign                     // a parenthesis, a bracket, a comma, a dot, a cast
)

type token struct {
	kind        kind
	space, text string // space: what stands before it, comments too
	lower       string // of a word
}

// lex splits a statement. What is no token of ours ends up as signs, and so in the result as it was.
func lex(sql string) []token {
	var all []token
	for i := 0; i < len(sql); {
		begin := i
		for i < len(sql) {
			n := 0
			switch rest := sql[i:]; {
			case strings.HasPrefix(rest, "--"):
				n = strings.IndexByte(rest+"\n", '\n')
			case strings.HasPrefix(rest, "/*"):
				n = strings.Index(rest+"*/", "*/") + 2
			case strings.IndexByte(" \n\t", rest[0]) >= 0:
				n = 1
			}
			if n == 0 {
				break
			}
			i = min(i+n, len(sql))
		}
		t := token{space: sql[begin:i]}
		t.kind, t.text = next(sql[i:])
		if t.kind == word {
			t.lower = strings.ToLower(t.text)
		}
		i += len(t.text)
		if strings.HasPrefix(t.text, asIs) {
			_, t.text, _ = strings.Cut(t.text, ":")
		}
		all = append(all, t)
	}
	return all
}

// next returns the token at the beginning of sql; an empty sign at the end.
func next(sql string) (kind, string) {
	until := func(fits func(byte) bool) string {
		i := 1
		for i < len(sql) && fits(sql[i]) {
			i++
		}
		return sql[:i]
	}
	closing := func(end string) string {
		if i := strings.Index(sql[1:], end); i >= 0 {
			return sql[:i+1+len(end)]
		}
		return sql
	}
	if sql == "" {
		return sign, ""
	}
	switch c := sql[0]; {
	case c == asIs[0]:
		length, _, _ := strings.Cut(sql[1:], ":")
		n, _ := strconv.Atoi(length)
		return other, sql[:1+len(length)+1+n]
	case c == '\'':
		return other, closing("'") // a doubled quote makes two strings side by side, which come out as they were
	case c == '"':
		return quoted, closing(`"`)
	case isWord(c) && (c < '0' || c > '9'):
		return word, until(isWord)
	case c == '$' || c >= '0' && c <= '9':
		return other, until(func(c byte) bool { return isWord(c) || c == '.' })
	case strings.HasPrefix(sql, "::"):
		return sign, "::"
	case strings.IndexByte(operatorChars, c) >= 0:
		return operator, until(func(c byte) bool { return strings.IndexByte(operatorChars, c) >= 0 })
	}
	return sign, sql[:1]
}

func isWord(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

// breaks lists the keywords that end an expression of operators; no operator reaches beyond one.
func breaks(keyword string) bool {
	switch keyword {
	case "select", "from", "where", "and", "or", "not", "is", "when", "then", "else", "end", "as", "by", "on", "order",
		"group",
		"having", "limit", "offset", "union", "with", "insert", "into", "update", "delete", "set", "values", "returning",
		"do",
		"nothing", "conflict", "join", "left", "cross", "lateral", "distinct", "asc", "desc", "using", "default", "check",
		"constraint", "for":
		return true
	}
	return false
}

// grammar lists what the grammar itself takes for pg_catalog's, or for nothing that has a name, though a parenthesis
// follows.
func grammar(name string) bool {
	switch name {
	case "coalesce", "greatest", "least", "extract", "substring", "row", "array", "exists", "any", "all":
		return true
	}
	return false
}

// builtin lists the types whose names are keywords, and so cannot be anybody else's.
func builtin(name string) bool {
	switch name {
	case "bigint", "bit", "boolean", "char", "character", "decimal", "double", "float", "int", "integer", "interval",
		"numeric",
		"real", "smallint", "time", "timestamp", "varchar":
		return true
	}
	return false
}

const catalog = "pg_catalog."

type pinner struct {
	tokens []token
	i      int
}

func (p *pinner) peek(n int) token {
	if i := p.i + n; i >= 0 && i < len(p.tokens) {
		return p.tokens[i]
	}
	return token{}
}

// group pins up to the token that closes it, which it leaves.
func (p *pinner) group(end string) string {
	var out strings.Builder
	var c chain
	flush := func() {
		out.WriteString(c.String())
		c = chain{}
	}
	// In SET, or in a list of options, and past its next =, which is no operator.
	set, assigned := p.peek(-1).text == "(" && (p.peek(-2).lower == "set" || p.peek(-2).lower == "with"), false
	for ; p.i < len(p.tokens); p.i++ {
		t := p.peek(0)
		switch {
		case end != "" && (t.text == end || t.lower == end):
			flush()
			out.WriteString(t.space)
			return out.String()
		case t.lower == "case":
			p.i++
			c.add(t.space + t.text + p.group("end") + p.peek(0).text)
		case t.text == "(" || t.text == "[":
			p.i++
			to := map[string]string{"(": ")", "[": "]"}[t.text]
			c.add(t.space + t.text + p.group(to) + to)
		case t.lower == "nullif" && p.peek(1).text == "(":
			p.i += 2
			one := p.group(",")
			p.i++
			c.add(t.space + "(CASE WHEN (" + one + ")" + infix{" ", "="}.String() + " (" + p.group(")") + ") THEN NULL ELSE " +
				one + " END)")
		case t.lower == "in" && p.peek(1).text == "(":
			c.operate(t.space, "=")
			p.i += 2
			if query := p.peek(0).lower == "select"; query {
				c.add(" ANY (" + p.group(")") + ")")
			} else {
				c.add(" ANY (ARRAY[" + p.group(")") + "])")
			}
		case t.lower == "operator" && p.peek(1).text == "(":
			text := ""
			for ; p.peek(0).text != ")"; p.i++ {
				text += p.peek(0).text
			}
			c.operate(t.space, text+")")
		case t.kind == operator:
			switch {
			case t.text == "=" && set && !assigned:
				flush()
				out.WriteString(t.space + t.text)
				assigned = true
			case c.open() || t.text == "*" && p.peek(-1).text == ".":
				c.add(t.space + t.text) // a star, or the sign of a number
			default:
				c.operate(t.space, t.text)
			}
		case t.text == "," || t.text == ";":
			flush()
			out.WriteString(t.space + t.text)
			assigned = false
		case breaks(t.lower) && p.peek(1).text+p.peek(1).space != "(":
			flush()
			out.WriteString(t.space + t.text)
			set, assigned = t.lower == "set" || set && !slices.Contains([]string{"where", "from", "returning", "select"},
				t.lower), assigned && t.lower != "set"
		default:
			c.add(t.space + p.name(t))
		}
	}
	flush()
	return out.String()
}

// name returns a token that is no operator, qualified where it is the name of a function, a type or a collation.
func (p *pinner) name(t token) string {
	before, after := p.peek(-1), p.peek(1)
	switch {
	case t.kind != word && t.kind != quoted, before.text == ".", after.text == "." && after.space == "":
		return t.text
	case before.text == "::":
		if t.kind == word && builtin(t.lower) {
			if zone := after.lower == "with" || after.lower == "without"; zone {
				for ; !strings.HasSuffix(strings.ToLower(t.text), "zone"); p.i++ {
					t.text += p.peek(1).space + p.peek(1).text
				}
			}
			return t.text
		}
		return catalog + t.text
	case before.lower == "collate":
		return catalog + t.text
	case t.kind == word && after.text == "(" && after.space == "" && !grammar(t.lower):
		return catalog + t.text
	case t.lower == "timestamptz" || t.lower == "date":
		if strings.HasPrefix(after.text, "'") {
			return catalog + t.text
		}
	}
	return t.text
}

// chain is an expression of operands with operators between them. Qualified, all operators bind alike, so parentheses
// have to say what their precedence did.
type chain struct {
	operands  []string
	operators []infix
}

type infix struct{ space, text string }

// binds returns how tightly the operator binds.
func (o infix) binds() int {
	switch o.text {
	case "*", "/", "%":
		return 3
	case "+", "-":
		return 2
	case "=", "<", ">", "<=", ">=", "<>":
		return 0
	}
	return 1
}

func (o infix) String() string {
	if strings.HasSuffix(o.text, ")") {
		return o.space + o.text
	}
	return o.space + "OPERATOR(" + catalog + o.text + ")"
}

// open reports whether an operand has to come next.
func (c *chain) open() bool { return len(c.operands) == len(c.operators) }

func (c *chain) add(text string) {
	if c.open() {
		c.operands = append(c.operands, "")
	}
	c.operands[len(c.operands)-1] += text
}

func (c *chain) operate(space, text string) { c.operators = append(c.operators, infix{space, text}) }

func (c *chain) String() string {
	if len(c.operands) == 0 {
		return ""
	}
	return c.text(0, len(c.operands)-1)
}

// text returns the operands from lo to hi.
func (c *chain) text(lo, hi int) string {
	if lo == hi {
		return c.operands[lo]
	}
	at := c.loosest(lo, hi)
	op := c.operators[at]
	left, right := c.text(lo, at), c.text(at+1, hi)
	if at > lo && c.operators[c.loosest(lo, at)].binds() != op.binds() {
		left = parenthesized(left)
	}
	if hi > at+1 {
		right = parenthesized(right)
	}
	return left + op.String() + right
}

// loosest returns the operator between lo and hi that is applied last.
func (c *chain) loosest(lo, hi int) int {
	at := lo
	for i := lo; i < hi; i++ {
		if c.operators[i].binds() <= c.operators[at].binds() {
			at = i
		}
	}
	return at
}

func parenthesized(expr string) string {
	bare := strings.TrimLeft(expr, " \n\t")
	return expr[:len(expr)-len(bare)] + "(" + bare + ")"
}
