package upsert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

const (
	// resetHit and the rest are a mark, local to the transaction, that the DO UPDATE branch leaves for RETURNING. Before
	// PostgreSQL 18 nothing else tells an update from an insert on every kind of table: xmax cannot be read from a
	// partitioned one.
	resetHit = "set_config('pgonce.hit', '', true)"
	readHit  = "current_setting('pgonce.hit', true)"

	oldRows = 180000 // the first version whose RETURNING knows old
)

// nullsAreNulls is true, or an error of the server where array_nulls is off in the session: there NULL in the text of
// an array is the string "NULL". The text is read anew in every run.
const nullsAreNulls = "'{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL"

// moneyIsMoney is true, or an error where the session's lc_monetary reads an amount otherwise than C does.
const moneyIsMoney = "CASE WHEN cash_send('-1,234.56'::pg_catalog.text::pg_catalog.money)" +
	" = decode('fffffffffffe1dc0'::pg_catalog.text, 'hex'::pg_catalog.text)" +
	" THEN 'true' ELSE 'lc_monetary'::pg_catalog.text END::pg_catalog.bool"

// readsAlike returns conditions that are true, or errors of the server, where the session would take the text of a
// value for another value.
func (c *column) readsAlike() (conditions []string) {
	if c.Elem != 0 || c.types.hasArray(c.OID) {
		conditions = append(conditions, nullsAreNulls)
	}
	if c.types.holds(c.OID, moneyOID) {
		conditions = append(conditions, moneyIsMoney)
	}
	return conditions
}

func guarded(value string, conditions []string) string {
	if len(conditions) == 0 {
		return value
	}
	return "CASE WHEN " + strings.Join(conditions, " AND ") + " THEN " + value + " END"
}

// one renders the statement for one row. It reads the row, judges, and writes only what is newer; the guard in DO
// UPDATE judges again, against the row as it is once locked. Where the two disagree (a rival came in between),
// nothing was written and the answer is "raced": it runs again with a new snapshot.
//
// Not a SELECT ... FOR UPDATE first, nor a CTE that locks: under READ COMMITTED both may judge a row that a rival has
// replaced. Not an update that always writes and keeps the old values by CASE: it leaves a dead row for each stale
// event.
func (w writer) one() string {
	event, stored, applied := w.cte("event"), w.cte("stored"), w.cte("applied")
	storedCol := func(m member) string { return at("s", m.column) }
	refusals := w.refusals()

	var b strings.Builder
	values := w.values(func(i int, c *column) string {
		return guarded(w.placeholder(i)+"::"+pg.AsIs(c.Type), c.readsAlike())
	})
	if len(refusals) == 0 {
		fmt.Fprintf(&b, "WITH %s AS (\n  SELECT %s\n)", event, fold(values, 9))
	} else {
		fmt.Fprintf(&b, "WITH %s AS MATERIALIZED (\n  SELECT v.*, CASE %s END AS pgonce_refused\n    FROM (SELECT %s) AS v\n)",
			event, strings.Join(refusals, "\n                   "), fold(values, 18))
	}
	fmt.Fprintf(&b, ", %s AS MATERIALIZED (\n  SELECT %s%s\n    FROM %s AS s\n   WHERE %s\n)",
		stored, fold(w.list("s"), 9), w.found(), w.p.table.Quoted(), w.lookup(event))

	inserts := fold(mapped(w.p.written, func(m member) string { return w.inserted(m, storedCol) }), 9)
	source := ""
	if slices.ContainsFunc(w.p.written, w.usesStored) {
		source = " LEFT JOIN " + stored + " AS s ON true"
	}
	hit, isNew := "", "true"
	if w.p.rule != firstWins {
		switch {
		case w.l.spread.on:
			isNew = neverLocked
		case w.l.Server >= oldRows:
			isNew = w.noOld()
		default:
			source += ", " + resetHit
			hit, isNew = "set_config('pgonce.hit', '1', true) IS NOT NULL", readHit+" = ''"
		}
	}
	fmt.Fprintf(&b, ", %s AS (\n  INSERT INTO %s AS t (%s)\n  SELECT %s\n    FROM %s AS e%s\n   WHERE ",
		applied, w.p.table.Quoted(), fold(w.columns(), 9), inserts, event, source)
	if len(refusals) > 0 {
		b.WriteString("e.pgonce_refused IS NULL AND ")
	}
	fmt.Fprintf(&b, "NOT EXISTS (SELECT FROM %s AS s%s)\n  ON CONFLICT %s %s\n  RETURNING %s\n)",
		stored, w.settled(storedCol), pg.AsIs(w.target()), w.action(hit),
		fold(append([]string{isNew + " AS pgonce_new"}, w.list("t")...), 12))

	fmt.Fprintf(&b, "\nSELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,\n       %s\n  FROM %s AS "+
		"a\nUNION ALL\n", fold(w.results("a"), 7), applied)
	fmt.Fprintf(&b, "SELECT %s,\n       %s\n  FROM %s AS e LEFT JOIN %s AS s ON true\n WHERE NOT EXISTS (SELECT FROM %s)",
		w.verdict(storedCol, literal(raced)), fold(w.results("s"), 7), event, stored, applied)
	return pg.Pin(b.String())
}

// usesStored says that inserted takes m from the stored row.
func (w writer) usesStored(m member) bool {
	return m.role == roleIfNotNull && w.col(m).NotNull
}

// noOld is true in RETURNING for an inserted row, from PostgreSQL 18.
func (w writer) noOld() string {
	for _, k := range w.p.keys {
		if k.expr == "" {
			return at("old", k.column) + " IS NULL"
		}
	}
	// Not "old IS NULL": that is true as well of a stored row that holds nothing but NULLs.
	return "old.tableoid IS NULL"
}

// found adds a column that tells a stored row from none, where the rule needs one.
func (w writer) found() string {
	if w.p.rule == byVersion {
		return ""
	}
	return ", true AS pgonce_found"
}

// lookup finds the stored row. The key is compared with the parameter itself, not with the event: a join would read
// every partition.
func (w writer) lookup(event string) string {
	s := joined(w.p.keys, " AND ", func(k key) string {
		if k.expr != "" {
			return w.sameExpr(k, event)
		}
		m := w.member(k.column)
		return at("s", k.column) + w.equal(k) + exact(w.col(m), w.param(m))
	})
	if w.p.where != "" {
		s += " AND (" + pg.AsIs(w.p.where) + ")"
	}
	return s
}

// sameExpr compares an expression of the key in the row at hand and in the event.
func (w writer) sameExpr(k key, event string) string {
	expr := "(" + pg.AsIs(k.expr) + ")"
	return expr + w.equal(k) + "(SELECT " + expr + " FROM " + event + ")"
}

func (w writer) member(name string) member {
	for _, m := range w.p.written {
		if m.column == name {
			return m
		}
	}
	return member{}
}

// settled restricts the stored row s to one that leaves the event e nothing to do.
func (w writer) settled(stored func(member) string) string {
	switch w.p.rule {
	case byVersion:
		return " WHERE " + w.obsolete("s", "e")
	case lastWins:
		return " WHERE " + w.same(stored, w.next(stored))
	}
	return ""
}

// verdict says what became of an event that was not written, from the stored row; newer stands where it should have
// been.
func (w writer) verdict(stored func(member) string, newer string) string {
	s := "CASE "
	if len(w.refusals()) > 0 {
		s += "WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused\n            "
	}
	switch w.p.rule {
	case byVersion:
		return s + "WHEN (" + w.obsolete("s", "e") + ") IS NOT TRUE THEN " + newer +
			"\n            WHEN " + w.later("s", ">", "e") + " THEN 'stale'" +
			"\n            WHEN " + w.same(stored, w.next(stored)) + " THEN 'unchanged'" +
			"\n            ELSE 'conflict' END"
	case lastWins:
		return s + "WHEN s.pgonce_found AND " + w.same(stored, w.next(stored)) + " THEN 'unchanged' ELSE " + newer + " END"
	}
	return s + "WHEN s.pgonce_found THEN 'unchanged' ELSE " + newer + " END"
}
