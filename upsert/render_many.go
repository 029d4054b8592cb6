package upsert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

// many renders the statement for a chunk of rows: the same judgement as [writer.one], with the newest row of each key alone
// to be written, and written in the order of the keys, so that two chunks cannot wait for each other: that in which they are given,
// where no key is there twice (the look-up of each in turn leaves no other plan), so that a row is written while what was read for
// it is at hand. That is a fifth of the time.
//
// Not INSERT ... DO NOTHING first and a look at those alone that were there: it would save the look-up of new rows, and hold their locks
// before those of the others, whatever their order. Two calls could wait for each other.
//
// Its answer is what [bulk] reads: with withRows a line for each row given and one more for each written one, and else the number
// of those written and a line for each of the others.
func (w writer) many(s shape) string {
	judged, absent, applied := w.cte("judged"), w.cte("absent"), w.cte("applied")
	fromEvent := func(m member) string { return w.judgedColumn(m) }

	// RETURNING tells an update from an insert, and nothing before it can: a trigger may still skip a row that DO UPDATE has let through.
	hit, reset, isNew := "", "", "true"
	switch {
	case w.p.rule == firstWins:
	case w.l.spread.on:
		isNew = neverLocked
	case w.l.Server >= oldRows:
		isNew = w.noOld()
	default:
		// The mark of a row that a trigger has skipped stays behind, so it names the row.
		hit, reset = "set_config('pgonce.hit', "+w.lockedKey()+", true) IS NOT NULL", resetHit
		isNew = "(" + readHit + " = ''\n             OR " + readHit + " <> " + w.keyText("t") + ") IS NOT FALSE"
	}
	returned := []string{isNew + " AS pgonce_new"}
	if s.withRows {
		returned = append(returned, w.list("t")...)
	} else {
		// Who only counts needs no row back that was written.
		returned = append(returned, mapped(w.p.keyColumns(), func(k string) string { return at("t", k) })...)
	}

	var b strings.Builder
	from, judge := w.judgedFrom(w.ranked(s.distinct, reset))
	fmt.Fprintf(&b, "WITH %s%s AS MATERIALIZED (\n  SELECT %s,\n       %s AS pgonce_verdict\n    FROM %s\n)",
		from, judged, fold(append([]string{"e.*"}, w.storedColumns(s.withRows)...), 9), w.verdict(func(m member) string { return at("s", m.column) }, "NULL"), judge)
	if lost := w.absent(judged, s); lost != "" {
		fmt.Fprintf(&b, ", %s AS MATERIALIZED (\n%s\n)", absent, lost)
	}
	fmt.Fprintf(&b, ", %s AS (\n  INSERT INTO %s AS t (%s)\n  SELECT %s\n    FROM %s AS e\n   WHERE %s",
		applied, w.p.table.Quoted(), fold(w.columns(), 9), fold(mapped(w.p.written, func(m member) string { return w.inserted(m, fromEvent) }), 9), judged, s.wanted())
	if !s.distinct {
		fmt.Fprintf(&b, "\n   ORDER BY %s", strings.Join(w.sortKeys("e"), ", "))
	}
	fmt.Fprintf(&b, "\n  ON CONFLICT %s %s\n  RETURNING %s%s\n)", pg.AsIs(w.target()), w.action(hit), fold(returned, 12), w.expressions())
	if s.withRows {
		return pg.Pin(b.String() + "\n" + w.answer(applied, judged, s))
	}
	return pg.Pin(b.String() + w.tally(applied, judged, s))
}

// tally answers with the numbers of inserted and updated rows, and with a line for each of the others. A row that should have
// been written, and has not been, has met a rival.
func (w writer) tally(applied, judged string, s shape) string {
	tally := w.cte("tally")
	return fmt.Sprintf(`, %[1]s AS (
  SELECT count(*) AS written, count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM %[2]s AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::int8, '' FROM %[1]s AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM %[1]s AS y)
                         = (SELECT count(*) FROM %[3]s AS e WHERE %[4]s)
                         OR %[5]s
                    ELSE false END AS written, e.pgonce_pos, %[6]s AS nth, %[7]s, coalesce(e.pgonce_verdict, '')
          FROM %[3]s AS e
         WHERE (SELECT y.written FROM %[1]s AS y) < cardinality($1::int8[])) AS d
 WHERE NOT d.written OR d.nth > 1`, tally, applied, judged, s.wanted(), w.among("e", applied), s.nth(), s.rank())
}

// among says that the key of a row is one of those in applied.
func (w writer) among(alias, applied string) string {
	keys := func(alias string) string {
		return joined(w.numbered(), ", ", func(i int) string { return w.keyColumn(alias, i) })
	}
	ops := mapped(w.p.keys, w.equal)
	if len(slices.Compact(ops)) == 1 {
		return "(" + keys(alias) + ")" + ops[0] + "ANY (SELECT " + keys("a") + " FROM " + applied + " AS a)"
	}
	return "EXISTS (SELECT FROM " + applied + " AS a WHERE " + joined(w.numbered(), " AND ", func(i int) string {
		return w.keyColumn("a", i) + w.equal(w.p.keys[i]) + w.keyColumn(alias, i)
	}) + ")"
}

// nth and rank return the columns of [writer.ranked], which are not there where there is nothing to rank; wanted is true for a row that
// is to be written.
func (s shape) nth() string {
	if s.distinct {
		return "1::int8"
	}
	return "e.pgonce_nth"
}

func (s shape) rank() string {
	if s.distinct {
		return "1::int8"
	}
	return "e.pgonce_rank"
}

func (s shape) wanted() string {
	if s.distinct {
		return "e.pgonce_verdict IS NULL"
	}
	return "e.pgonce_verdict IS NULL AND e.pgonce_nth = 1"
}

// answer puts written rows and judged ones together by their keys, the written one of a key first. The keys meet in a sort: a join of two
// CTEs is planned without knowing their sizes, and would compare every row with every other.
func (w writer) answer(applied, judged string, s shape) string {
	fromJudged := mapped(w.all(), func(m member) string { return w.judgedColumn(m) + " AS " + pg.Quote(m.column) })
	groups := make([]string, len(w.p.keys))
	for i := range groups {
		groups[i] = fmt.Sprintf("r.pgonce_g%d", i+1)
	}
	by := strings.Join(groups, ", ")
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT row_number() OVER (PARTITION BY %s ORDER BY r.pgonce_pos) = 1,\n       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,\n       %s\n  FROM (", by, fold(w.results("r"), 7))
	fmt.Fprintf(&b, "\n    SELECT %s,\n           '-1'::int8 AS pgonce_pos, 0::int8 AS pgonce_nth, 0::int8 AS pgonce_rank,\n           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,\n           %s\n      FROM %s AS a",
		named(w.sortKeys("a"), "pgonce_g"), fold(w.list("a"), 11), applied)
	fmt.Fprintf(&b, "\n     UNION ALL\n    SELECT %s, e.pgonce_pos, %s, %s, coalesce(e.pgonce_verdict, ''),\n           %s\n      FROM %s AS e\n  ) AS r\n ORDER BY %s, r.pgonce_pos",
		named(w.sortKeys("e"), "pgonce_g"), s.nth(), s.rank(), fold(fromJudged, 11), judged, by)
	return b.String()
}

// ranked returns the rows given, typed, with their place among those of the same key: pgonce_nth counts from the newest, and
// pgonce_rank is 1 for all that share the newest version; where keys are distinct, there is nothing to find. Refused rows are counted apart, so that they cannot hide a good one.
//
// The arrays are unnested in a select list, in step. Not in FROM: there each array would first be put away as a whole. OFFSET 0
// hides their length from the planner, which has no choice to make by it, and would else find a thousand look-ups in a
// partitioned table dear enough for its just-in-time compiler: that takes a second, for what is done in ten milliseconds.
//
// reset, where it is not empty, is called once, before any row.
func (w writer) ranked(distinct bool, reset string) string {
	params, arrays := []string{"$1::int8[] AS pos"}, []string{"unnest(a.pos) AS pgonce_pos"}
	for i, m := range w.p.written {
		params = append(params, fmt.Sprintf("$%d::%s[] AS a%d", len(params)+1, pg.AsIs(w.col(m).inArray()), i+1))
		arrays = append(arrays, fmt.Sprintf("unnest(a.a%d) AS c%d", i+1, i+1))
	}
	if reset != "" {
		params = append(params, reset)
	}
	values := append([]string{"u.pgonce_pos"}, w.values(func(i int, c *column) string {
		v := fmt.Sprintf("u.c%d", i+1)
		if c.inArray() == c.Type {
			return v
		}
		v += "::" + pg.AsIs(c.Type)
		if c.types.holds(c.OID, moneyOID) {
			return guarded(v, []string{moneyIsMoney})
		}
		return v
	})...)
	checks := w.expressions()
	if whens := w.refusals(); len(whens) > 0 {
		checks += ",\n                 CASE " + strings.Join(whens, "\n                      ") + " END AS pgonce_refused"
	}
	inner := fmt.Sprintf("SELECT v.*%s\n            FROM (SELECT %s\n                    FROM (SELECT %s\n                            FROM (SELECT %s\n                                   WHERE %s OFFSET 0) AS a) AS u) AS v",
		checks, fold(values, 26), fold(arrays, 34), fold(params, 42), nullsAreNulls)
	if distinct {
		return inner
	}
	part := "PARTITION BY " + strings.Join(w.sortKeys("q"), ", ")
	if len(w.refusals()) > 0 {
		part += ", q.pgonce_refused IS NULL"
	}
	newest, order := "", "q.pgonce_pos"
	switch w.p.rule {
	case byVersion:
		newest = joined(w.members(roleVersion), ", ", func(m member) string { return exact(w.col(m), at("q", m.column)) + " DESC" })
		order = newest + ", q.pgonce_pos"
	case lastWins:
		order = "q.pgonce_pos DESC"
	}
	rank := "0"
	if newest != "" {
		rank = "rank() OVER (" + part + " ORDER BY " + newest + ")"
	}
	return fmt.Sprintf("SELECT q.*, row_number() OVER (%s\n                                         ORDER BY %s) AS pgonce_nth,\n                 %s AS pgonce_rank\n            FROM (%s) AS q",
		part, order, rank, inner)
}

// expressions returns the target's expressions in the scope of a row, as further columns.
func (w writer) expressions() string {
	var b strings.Builder
	for i, k := range w.p.keys {
		if k.expr != "" {
			fmt.Fprintf(&b, ", (%s) AS pgonce_k%d", pg.AsIs(k.expr), i+1)
		}
	}
	return b.String()
}

// storedRow finds the row that has the key of e. OFFSET 0 keeps it a look-up of each key in the index, as ON CONFLICT does
// it: joined freely, a few rows would be worth a scan of the whole table to the planner.
func (w writer) storedRow() string {
	s := "SELECT " + fold(w.list("s"), 31) + w.found() + w.expressions() + "\n                         FROM " + w.p.table.Quoted() + " AS s" +
		"\n                        WHERE " + joined(w.numbered(), " AND ", func(i int) string {
		if expr := w.p.keys[i].expr; expr != "" {
			return "(" + pg.AsIs(expr) + ")" + w.equal(w.p.keys[i]) + w.keyColumn("e", i)
		}
		return w.keyColumn("s", i) + w.equal(w.p.keys[i]) + w.keyColumn("e", i)
	})
	if w.p.where != "" {
		s += " AND (" + pg.AsIs(w.p.where) + ")"
	}
	return s
}

func (w writer) numbered() []int {
	is := make([]int, len(w.p.keys))
	for i := range is {
		is[i] = i
	}
	return is
}

// keyColumn returns the i-th part of the key in a row of the event, of the stored ones or of the applied ones.
func (w writer) keyColumn(alias string, i int) string {
	k := w.p.keys[i]
	if k.expr != "" {
		return fmt.Sprintf("%s.pgonce_k%d", alias, i+1)
	}
	if alias == "s" || alias == "a" {
		return at(alias, k.column)
	}
	return exact(w.l.byName[k.column], at(alias, k.column))
}

// sortKeys returns the key in the order in which rows are locked: by the columns' names, whatever order OnConflict has them
// in, and strings by their bytes, as they are sorted outside. (Where different bytes can be equal, the column's own order
// has to do.)
func (w writer) sortKeys(alias string) []string {
	is := w.lockOrder()
	keys := make([]string, len(is))
	for n, i := range is {
		keys[n] = w.keyColumn(alias, i)
		if c := w.l.byName[w.p.keys[i].column]; w.p.keys[i].expr == "" && c.isText() && !c.Fuzzy {
			keys[n] += ` COLLATE "C"`
		}
	}
	return keys
}

func (w writer) lockOrder() []int {
	is := w.numbered()
	slices.SortStableFunc(is, func(i, j int) int {
		return strings.Compare(w.p.keys[i].column+w.p.keys[i].expr, w.p.keys[j].column+w.p.keys[j].expr)
	})
	return is
}

func named(exprs []string, prefix string) string {
	parts := make([]string, len(exprs))
	for i, e := range exprs {
		parts[i] = fmt.Sprintf("%s AS %s%d", e, prefix, i+1)
	}
	return strings.Join(parts, ", ")
}

// keyText returns the key of a row as one string, never empty, in a scope where the expressions' columns stand alone.
func (w writer) keyText(alias string) string {
	if len(w.p.keys) == 1 && w.p.keys[0].expr == "" {
		return "'=' || " + w.plainText(w.p.keys[0], at(alias, w.p.keys[0].column)) + "::text"
	}
	return "ROW(" + joined(w.p.keys, ", ", func(k key) string {
		if k.expr != "" {
			return "(" + pg.AsIs(k.expr) + ")"
		}
		return w.plainText(k, at(alias, k.column))
	}) + ")::text"
}

// plainText returns expr, a value of the column k, or its binary form where its text may hide in what it differs from
// another.
func (w writer) plainText(k key, expr string) string {
	if c := w.l.byName[k.column]; c != nil && c.types.varies(c.OID) && c.OID != pgtype.ByteaOID {
		return "encode(" + c.binary(expr) + ", 'hex'::pg_catalog.text)"
	}
	return expr
}

// lockedKey is keyText of the row that conflicts. Beside excluded, an expression's columns would be ambiguous.
func (w writer) lockedKey() string {
	if w.expressions() == "" {
		return w.keyText("t")
	}
	return "(SELECT " + w.keyText("k") + " FROM (SELECT t.*) AS k)"
}

// storedColumns returns the stored row's columns under names that do not meet the event's: all of them, or those that are
// needed to make the row to insert.
func (w writer) storedColumns(all bool) []string {
	var parts []string
	for i, m := range w.all() {
		if all || w.usesStored(m) || len(w.carried()) > 0 && m.role == roleKey {
			parts = append(parts, fmt.Sprintf("%s AS pgonce_s%d", at("s", m.column), i+1))
		}
	}
	if len(w.carried()) > 0 {
		for i, k := range w.p.keys {
			if k.expr != "" {
				parts = append(parts, fmt.Sprintf("s.pgonce_k%d AS pgonce_sk%d", i+1, i+1))
			}
		}
	}
	return parts
}

func (w writer) judgedColumn(m member) string {
	i := slices.IndexFunc(w.all(), func(o member) bool { return o.column == m.column })
	return fmt.Sprintf("e.pgonce_s%d", i+1)
}

// carried returns the columns for which an event without a value has to carry the stored one, only to pass the NOT NULL check.
func (w writer) carried() []member {
	return slices.DeleteFunc(w.members(roleIfNotNull), func(m member) bool { return !w.col(m).NotNull })
}

// absent collects which written rows came without a value for which of those columns, by the stored row's key: the row that
// was to be inserted, which is all that DO UPDATE sees, cannot tell.
func (w writer) absent(judged string, s shape) string {
	ms := w.carried()
	if len(ms) == 0 {
		return ""
	}
	stored := func(k key) string { return w.plainText(k, w.judgedColumn(w.member(k.column))) }
	key := "'=' || " + stored(w.p.keys[0]) + "::text"
	if len(w.p.keys) > 1 || w.p.keys[0].expr != "" {
		key = "ROW(" + joined(w.numbered(), ", ", func(i int) string {
			if w.p.keys[i].expr != "" {
				return fmt.Sprintf("e.pgonce_sk%d", i+1)
			}
			return stored(w.p.keys[i])
		}) + ")::text"
	}
	return "  SELECT jsonb_object_agg(a.k, true) AS keys FROM (\n    " + joined(ms, "\n    UNION ALL ", func(m member) string {
		return fmt.Sprintf("SELECT '%d' || %s AS k\n      FROM %s AS e WHERE %s AND %s IS NULL",
			slices.IndexFunc(ms, func(o member) bool { return o.column == m.column }), key, judged, s.wanted(), at("e", m.column))
	}) + "\n  ) AS a WHERE a.k IS NOT NULL"
}

func (w writer) isAbsent(m member) string {
	i := slices.IndexFunc(w.carried(), func(o member) bool { return o.column == m.column })
	return fmt.Sprintf("(SELECT keys FROM %s) ? ('%d' || %s)", w.cte("absent"), i, w.lockedKey())
}
