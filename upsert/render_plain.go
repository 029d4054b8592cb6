package upsert

import (
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// plain renders the statement as a person would write it, without anything that needs the catalog.
func (w writer) plain() string {
	var b strings.Builder
	fmt.Fprintf(&b, "INSERT INTO %s AS t (%s)\nVALUES (%s)\nON CONFLICT %s ", w.p.table.Quoted(),
		fold(w.columns(), 4), strings.Join(numbers(len(w.p.written)), ", "), w.target())
	if w.p.rule == firstWins {
		b.WriteString("DO NOTHING")
		return b.String()
	}
	set := w.members(roleSet, roleIfNotNull, roleTombstone, roleVersion)
	fmt.Fprintf(&b, "DO UPDATE\n   SET %s", joined(set, ",\n       ", func(m member) string { return pg.Quote(m.column) + " = " + w.updated(m) }))
	vs := w.members(roleVersion)
	switch len(vs) {
	case 0:
	case 1:
		t, x := at("t", vs[0].column), at("excluded", vs[0].column)
		fmt.Fprintf(&b, "\n WHERE %s < %s OR %s IS NULL", t, x, t)
	default:
		fmt.Fprintf(&b, "\n WHERE (%s) IS NOT TRUE", w.obsolete("t", "excluded"))
	}
	return b.String()
}

func numbers(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("$%d", i+1)
	}
	return s
}
