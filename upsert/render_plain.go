package upsert

import (
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// plain renders the statement as a person would write it, without anything that needs the catalog.
func (w writer) plain() string {
	var b strings.Builder
	carries := len(w.members(roleIfNotNull)) > 0
	event := w.cte("event")
	values := strings.Join(numbers(len(w.p.written)), ", ")
	if carries {
		// The columns give the parameters their types, which nothing else here would.
		fmt.Fprintf(&b, "WITH %s AS (\n  SELECT %s FROM %s AS t WHERE false\n  UNION ALL\n  SELECT %s\n)\n", event,
			fold(mapped(w.p.written, func(m member) string { return at("t", m.column) }), 9), w.p.table.Quoted(), values)
	}
	fmt.Fprintf(&b, "INSERT INTO %s AS t (%s)\n", w.p.table.Quoted(), fold(w.columns(), 4))
	if carries {
		fmt.Fprintf(&b, "SELECT %s\n  FROM %s AS e", fold(mapped(w.p.written, w.carriedPlain), 7), event)
	} else {
		fmt.Fprintf(&b, "VALUES (%s)", values)
	}
	fmt.Fprintf(&b, "\nON CONFLICT %s ", pg.AsIs(w.target()))
	if w.p.rule == firstWins {
		b.WriteString("DO NOTHING")
		return pg.Pin(b.String())
	}
	set := w.members(roleSet, roleIfNotNull, roleTombstone, roleVersion)
	fmt.Fprintf(&b, "DO UPDATE\n   SET %s", joined(set, ",\n       ", func(m member) string {
		value := at("excluded", m.column)
		if m.role == roleIfNotNull {
			value = "coalesce((SELECT e." + pg.Quote(m.column) + " FROM " + event + " AS e), " + at("t", m.column) + ")"
		}
		return pg.Quote(m.column) + " = " + value
	}))
	vs := w.members(roleVersion)
	switch len(vs) {
	case 0:
	case 1:
		t, x := at("t", vs[0].column), at("excluded", vs[0].column)
		fmt.Fprintf(&b, "\n WHERE %s < %s OR %s IS NULL", t, x, t)
	default:
		fmt.Fprintf(&b, "\n WHERE (%s) IS NOT TRUE", w.obsolete("t", "excluded"))
	}
	return pg.Pin(b.String())
}

// carriedPlain is inserted without the catalog: it takes the stored value for columns that may be NULL too, which DO
// UPDATE then does not look at.
func (w writer) carriedPlain(m member) string {
	e := at("e", m.column)
	if m.role != roleIfNotNull {
		return e
	}
	event := w.cte("event")
	where := joined(w.p.keys, " AND ", func(k key) string {
		if k.expr != "" {
			return w.sameExpr(k, event)
		}
		return at("s", k.column) + " = " + at("e", k.column)
	})
	if w.p.where != "" {
		where += " AND (" + pg.AsIs(w.p.where) + ")"
	}
	return fmt.Sprintf("coalesce(%s, (SELECT %s FROM %s AS s WHERE %s))", e, at("s", m.column), w.p.table.Quoted(), where)
}

func numbers(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("$%d", i+1)
	}
	return s
}
