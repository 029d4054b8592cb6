package upsert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

// writer renders the statements of a plan for one table and one server.
//
// In all of them t is the row in the table that conflicts, excluded the one that was to be inserted, e the event, and
// s the row as the statement's snapshot shows it.
type writer struct {
	p    *plan
	l    *layout
	bulk bool
}

// cte returns a name for a CTE that does not hide the table.
func (w writer) cte(name string) string {
	if w.p.table.Schema == "" && w.p.table.Table == name {
		return name + "_"
	}
	return name
}

func (w writer) col(m member) *column { return w.l.byName[m.column] }

func at(alias, name string) string { return alias + "." + pg.Quote(name) }

// exact returns expr, a value of column c, as it will be once stored.
func exact(c *column, expr string) string {
	if c.rounded() {
		return "(" + expr + ")::" + pg.AsIs(c.Exact)
	}
	return expr
}

// content returns expr, a value of column c, in a form whose = finds every difference.
func content(c *column, expr string) string {
	switch {
	case c.comparable():
		return expr
	case c.Fuzzy:
		return expr + `::text COLLATE "C"`
	case c.types.varies(c.OID):
		return c.binary(expr) // whose text may hide a difference in this session
	}
	return expr + "::text"
}

// equal returns the operator that compares a part of the key, with blanks around it.
func (w writer) equal(k key) string {
	switch {
	case w.l == nil:
		return " = "
	case k.expr == "":
		return w.l.byName[k.column].operator("=")
	}
	operator, _ := w.l.expressions(w.p.keys)
	return operatorIn(operator, "=")
}

func (w writer) members(roles ...role) []member {
	var ms []member
	for _, m := range w.p.written {
		if slices.Contains(roles, m.role) {
			ms = append(ms, m)
		}
	}
	return ms
}

// all returns the columns of T in the order of parameters and results.
func (w writer) all() []member { return slices.Concat(w.p.written, w.p.read) }

func (w writer) list(alias string) []string {
	return mapped(w.all(), func(m member) string { return at(alias, m.column) })
}

// results is list in the form in which a driver gets it.
func (w writer) results(alias string) []string {
	return mapped(w.all(), func(m member) string { return w.col(m).wire(at(alias, m.column)) })
}

// columns returns the names of the written ones.
func (w writer) columns() []string {
	return mapped(w.p.written, func(m member) string { return pg.Quote(m.column) })
}

// fold joins parts with commas, and begins a new line, indented, where one gets long.
func fold(parts []string, indent int) string {
	var b strings.Builder
	width := indent
	for i, p := range parts {
		switch {
		case i > 0 && width+len(p) > 110:
			b.WriteString(",\n" + strings.Repeat(" ", indent))
			width = indent
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(p)
		width += len(p) + 2
	}
	return b.String()
}

func mapped[E, R any](es []E, f func(E) R) []R {
	parts := make([]R, len(es))
	for i, e := range es {
		parts[i] = f(e)
	}
	return parts
}

func joined[E any](es []E, sep string, f func(E) string) string {
	return strings.Join(mapped(es, f), sep)
}

// version returns the version and its tie-breakers as one value.
func (w writer) version(alias string) string {
	vs := w.versions(alias)
	if len(vs) == 1 {
		return vs[0]
	}
	return "(" + strings.Join(vs, ", ") + ")"
}

func (w writer) versions(alias string) []string {
	return mapped(w.members(roleVersion), func(m member) string {
		if alias == "e" {
			return exact(w.col(m), at(alias, m.column))
		}
		return at(alias, m.column)
	})
}

// later compares versions by op, > or >=. Operators of several schemas do not fit into one comparison of rows.
func (w writer) later(stored, op, event string) string {
	ms := w.members(roleVersion)
	if !slices.ContainsFunc(ms, func(m member) bool { return w.l != nil && w.col(m).Operators != nil }) {
		return w.version(stored) + " " + op + " " + w.version(event)
	}
	s, e := w.versions(stored), w.versions(event)
	last := len(ms) - 1
	text := s[last] + w.col(ms[last]).operator(op) + e[last]
	for i := last - 1; i >= 0; i-- {
		c := w.col(ms[i])
		text = s[i] + c.operator(">") + e[i] + " OR " + s[i] + c.operator("=") + e[i] + " AND (" + text + ")"
	}
	return "(" + text + ")"
}

// obsolete is true where the event has nothing new for the row that stored names, and false or NULL where it does: a
// stored NULL is older than everything. "stored < event" would be NULL there, and the row could never be written again.
func (w writer) obsolete(stored, event string) string {
	return w.later(stored, ">=", event)
}

// dead says that an event is a deletion.
func (w writer) dead(alias string) string {
	m := w.members(roleTombstone)[0]
	if w.col(m).Type == "boolean" {
		return at(alias, m.column) + " IS TRUE"
	}
	return at(alias, m.column) + " IS NOT NULL"
}

// bare says that a deletion may leave m out, for which the table has a default: it has nothing to say of most
// columns. What it brings counts as in any other event, so that the row it ends in does not depend on what was stored
// before it.
func (w writer) bare(m member) bool {
	c := w.col(m)
	return m.role == roleSet && w.p.spec.tombstone != "" && c.NotNull && c.Default != ""
}

// given returns the value of m in the event e, and instead in its place where e is a deletion that leaves m out.
func (w writer) given(m member, instead string) string {
	e := at("e", m.column)
	if !w.bare(m) {
		return e
	}
	return "CASE WHEN " + e + " IS NULL AND " + w.dead("e") + " THEN " + instead + " ELSE " + e + " END"
}

// inserted returns the value of m in the row to insert, from the event e and the stored row, if any. PostgreSQL
// checks NOT NULL before it looks for a conflict, so a column that the event leaves out needs the stored value here
// too.
func (w writer) inserted(m member, stored func(member) string) string {
	c := w.col(m)
	byDefault := "(" + pg.AsIs(c.Default) + ")::" + pg.AsIs(c.Type)
	if m.role != roleIfNotNull || !c.NotNull {
		return w.given(m, byDefault)
	}
	if c.Default == "" {
		return "coalesce(" + at("e", m.column) + ", " + stored(m) + ")"
	}
	return "coalesce(" + at("e", m.column) + ", " + stored(m) + ", " + byDefault + ")"
}

// updated returns the value of m that replaces t's.
func (w writer) updated(m member) string {
	t, x := at("t", m.column), at("excluded", m.column)
	switch {
	case m.role != roleIfNotNull:
		return x
	case !w.col(m).NotNull:
		return "coalesce(" + x + ", " + t + ")"
	case w.bulk:
		// excluded holds what inserted put there, perhaps from a snapshot that t has left behind.
		return "CASE WHEN " + w.isAbsent(m) + "\n              THEN " + t + " ELSE " + x + " END"
	}
	return "coalesce(" + w.param(m) + ", " + t + ")"
}

// param returns the parameter of m with its cast.
func (w writer) param(m member) string {
	i := slices.IndexFunc(w.p.written, func(o member) bool { return o.column == m.column })
	return w.placeholder(i) + "::" + pg.AsIs(w.col(m).Type)
}

// placeholder returns the i-th parameter. For bytea it is declared as text: lib/pq would escape a string once more.
func (w writer) placeholder(i int) string {
	p := fmt.Sprintf("$%d", i+1)
	if w.col(w.p.written[i]).OID == pgtype.ByteaOID {
		p += "::text"
	}
	return p
}

// same compares the content of a stored row with what it would become.
func (w writer) same(stored func(member) string, next func(member) string) string {
	ms := w.members(roleSet, roleIfNotNull, roleTombstone)
	left := func(m member) string { return content(w.col(m), stored(m)) }
	right := func(m member) string {
		expr := next(m)
		if w.col(m).rounded() {
			expr = exact(w.col(m), expr)
		}
		if !w.col(m).comparable() && strings.ContainsRune(expr, ' ') {
			expr = "(" + expr + ")"
		}
		return content(w.col(m), expr)
	}
	if len(ms) == 0 {
		return "true"
	}
	// Not IS NOT DISTINCT FROM: it names no operator that could be qualified.
	return joined(ms, "\n                 AND ", func(m member) string {
		l, r := left(m), right(m)
		sep := ", "
		if len(l)+len(r) > 30 {
			sep = ",\n                          "
		}
		return "coalesce(" + l + " = " + r + sep + l + " IS NULL AND " + r + " IS NULL)"
	})
}

// next returns what the event e would make of m in the row that stored names. What a deletion leaves out is as it is:
// its default may be another each time.
func (w writer) next(stored func(member) string) func(member) string {
	return func(m member) string {
		if m.role == roleIfNotNull {
			return "coalesce(" + at("e", m.column) + ", " + stored(m) + ")"
		}
		return w.given(m, stored(m))
	}
}

// target returns the ON CONFLICT clause's target.
func (w writer) target() string {
	s := "(" + joined(w.p.keys, ", ", func(k key) string {
		if k.expr != "" {
			return "(" + k.expr + ")"
		}
		return pg.Quote(k.column)
	}) + ")"
	if w.p.where != "" {
		s += " WHERE (" + w.p.where + ")"
	}
	return s
}

// action returns what follows the target. hit sets the mark that tells an update from an insert; "" where none is
// needed.
func (w writer) action(hit string) string {
	if w.p.rule == firstWins {
		return "DO NOTHING"
	}
	set := w.members(roleSet, roleIfNotNull, roleTombstone, roleVersion)
	s := "DO UPDATE\n     SET " + joined(set, ",\n         ",
		func(m member) string { return pg.Quote(m.column) + " = " + w.updated(m) })
	var guard string
	if w.p.rule == byVersion {
		guard = "(" + w.obsolete("t", "excluded") + ") IS NOT TRUE"
	} else {
		guard = "NOT (" + w.same(func(m member) string { return at("t", m.column) }, w.updated) + ")"
	}
	if hit != "" {
		guard = hit + "\n     AND " + guard
	}
	return s + "\n   WHERE " + guard
}

// refusals returns CASE branches for rows that must not be written, judged in the scope of the event's columns alone.
func (w writer) refusals() []string {
	whens := w.outdated()
	if d := w.p.spec.maxSkew; d > 0 {
		v := w.members(roleVersion)[0]
		whens = append(whens, fmt.Sprintf("WHEN %s > clock_timestamp() + interval '%s' THEN 'ahead'", pg.Quote(v.column),
			encodeDuration(d)))
	}
	for _, k := range w.p.keys {
		if k.expr != "" {
			whens = append(whens, "WHEN ("+pg.AsIs(k.expr)+") IS NULL THEN 'keyless'")
		}
	}
	if w.p.where != "" {
		whens = append(whens, "WHEN ("+pg.AsIs(w.p.where)+") IS NOT TRUE THEN 'outside'")
	}
	return whens
}

// outdated returns a branch for a statement that rounds as columns no longer do. It would take a newer event for an
// old one.
func (w writer) outdated() []string {
	var names, types []string
	for _, c := range w.l.Columns {
		if slices.ContainsFunc(w.p.written, func(m member) bool { return m.column == c.Name }) && c.rounded() {
			names, types = append(names, literal(c.Name)), append(types, c.Catalog)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf(`WHEN ((SELECT string_agg(atttypid || ' ' || atttypmod, ', ' ORDER BY attnum)
                            FROM pg_catalog.pg_attribute
                           WHERE attrelid = to_regclass(%s)
                             AND attname IN (%s)) = '%s') IS NOT TRUE THEN '%s'`,
		literal(w.p.table.Quoted()), strings.Join(names, ", "), strings.Join(types, ", "), outdated)}
}

// literal returns s as a string of SQL, whatever standard_conforming_strings says.
func literal(s string) string {
	s = "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.ContainsRune(s, '\\') {
		return pg.AsIs(" E" + strings.ReplaceAll(s, `\`, `\\`))
	}
	return s
}

// values returns the event's columns, from what value makes of the i-th parameter: a value of the column's type.
// Columns that a predicate or an expression mentions and the event does not have are there with the value that the
// table would give them.
func (w writer) values(value func(i int, c *column) string) []string {
	var vs []string
	has := map[string]bool{}
	for i, m := range w.p.written {
		c := w.col(m)
		has[m.column] = true
		v := value(i, c)
		if c.Collation != "" {
			// Otherwise strings would be compared and sorted here by another rule than in the table's index.
			v += " COLLATE " + pg.AsIs(c.Collation)
		}
		vs = append(vs, v+" AS "+pg.Quote(m.column))
	}
	for _, name := range w.p.names {
		c := w.l.byName[name]
		if c == nil || has[name] {
			continue
		}
		has[name] = true
		v := "NULL"
		if c.Default != "" {
			v = "(" + pg.AsIs(c.Default) + ")"
		}
		vs = append(vs, v+"::"+pg.AsIs(c.Type)+" AS "+pg.Quote(name))
	}
	return vs
}
