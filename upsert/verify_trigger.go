package upsert

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// trigger is one of the table's, or of a partition's.
type trigger struct {
	Name, Function, Source, Args string
	Type                         int // tgtype
}

// Bits of tgtype.
const (
	forRow    = 1
	before    = 2
	forInsert = 4
	forDelete = 8
	forUpdate = 16
)

// What the source of a trigger's function may do, once comments and strings are gone. A part of a statement begins
// behind one of these.
const begins = `(?:^|;|\bbegin\b|\bthen\b|\belse\b|\bloop\b)\s*`

var (
	setsColumn = regexp.MustCompile(begins + `new\s*\.\s*"?(\w+)"?\s*(?:\[[^\]]*\]\s*)*:?=`)
	intoColumn = regexp.MustCompile(`\binto\s+(?:strict\s+)?((?:new\s*\.\s*"?\w+"?\s*,?\s*)+)`)
	aColumn    = regexp.MustCompile(`new\s*\.\s*"?(\w+)"?`)
	setsRow    = regexp.MustCompile(begins + `new\s*:?=|\binto\s+(?:strict\s+)?new\s*(?:;|\bfrom\b)`)
	returns    = regexp.MustCompile(`\breturn\b\s*([^;]*);`)
)

// triggerProblem says what a trigger may do to a row beside what the event says, or returns "". It reads the source,
// so it finds what is written in PL/pgSQL, and not what a function in C does.
func (p *plan) triggerProblem(t trigger) string {
	if t.Type&(forInsert|forUpdate) == 0 {
		return ""
	}
	source := code(t.Source)
	var reasons []string
	when := "runs beside the statement"
	if t.Type&(forRow|before) == forRow|before {
		when = "runs before a row is written"
		reasons = p.rowReasons(t, source)
	}
	if changesTable(source, p.table) {
		reasons = append(reasons, "changes or deletes rows of the table itself, so that what was reported as written may "+
			"not be there")
	}
	if len(reasons) == 0 {
		return ""
	}
	return fmt.Sprintf("trigger %s (function %s) %s and %s", t.Name, t.Function, when, strings.Join(reasons, "; it "))
}

func (p *plan) rowReasons(t trigger, source string) []string {
	var reasons []string
	for _, v := range p.versions {
		if mentions(t.Source, v) || slices.Contains(strings.Split(t.Args, `\000`), v) {
			reasons = append(reasons, "mentions "+v+": a version that it sets is not the event's")
		}
	}
	changed := changes(source)
	for _, m := range p.written {
		switch {
		case !changed["*"] && !changed[strings.ToLower(m.column)] || m.role == roleVersion || m.role == roleOnInsert:
		case m.role == roleKey:
			reasons = append(reasons, "changes the key column "+m.column+
				": the row is stored where the same event does not find it")
		default:
			reasons = append(reasons, "changes "+m.column+
				": the same event differs from what is stored, and is an error the second time")
		}
	}
	for _, m := range returns.FindAllStringSubmatch(source, -1) {
		what := strings.Join(strings.Fields(m[1]), "")
		switch {
		case what == "new" || what == "(new)" || what == "coalesce(new,old)":
		case what == "old" && t.Type&forDelete != 0:
		case what == "null":
			reasons = append(reasons, "returns NULL: the row is not written")
		default:
			reasons = append(reasons, "returns something else than NEW: the row that is written is another")
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}

// changes returns the columns of NEW that source assigns; "*" stands for the whole row.
func changes(source string) map[string]bool {
	found := map[string]bool{}
	for _, m := range setsColumn.FindAllStringSubmatch(source, -1) {
		found[m[1]] = true
	}
	for _, m := range intoColumn.FindAllStringSubmatch(source, -1) {
		for _, c := range aColumn.FindAllStringSubmatch(m[1], -1) {
			found[c[1]] = true
		}
	}
	if setsRow.MatchString(source) {
		found["*"] = true
	}
	return found
}

// changesTable says that source has a statement that updates, deletes or truncates the table.
func changesTable(source string, table pg.Name) bool {
	name := `"?` + regexp.QuoteMeta(strings.ToLower(table.Table)) + `"?`
	return regexp.MustCompile(begins +
		`(?:update|delete\s+from|truncate(?:\s+table)?)\s+(?:only\s+)?(?:"?\w+"?\s*\.\s*)?` + name +
		`(?:\W|$)`).MatchString(source)
}

// code returns source in small letters, with blanks for comments and strings.
func code(source string) string {
	return strings.ToLower(notCode.ReplaceAllString(source, " "))
}

var notCode = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'`)

// mentions says that name occurs in source as a word.
func mentions(source, name string) bool {
	source, name = strings.ToLower(source), strings.ToLower(name)
	word := func(i int) bool {
		return i >= 0 && i < len(source) && (isLetter(source[i]) || source[i] >= '0' && source[i] <= '9')
	}
	for at := 0; ; {
		i := strings.Index(source[at:], name)
		if i < 0 {
			return false
		}
		if at += i; !word(at-1) && !word(at+len(name)) {
			return true
		}
		at++
	}
}
