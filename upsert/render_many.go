package upsert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// many renders the statement for a chunk of rows: the same judgement as [writer.one], with the newest row of each key
// alone to be written, and written in the order of the keys, so that two chunks cannot wait for each other: that in
// which they are given, where no key is there twice (the look-up of each in turn leaves no other plan), so that a row
// is written while what was read for it is at hand. That is a fifth of the time.
//
// Not INSERT ... DO NOTHING first and a look at those alone that were there: it would save the look-up of new rows,
// and hold their locks before those of the others, whatever their order. Two calls could wait for each other.
//
// Its answer is what [bulk] reads: with withRows a line for each row given and one more for each written one, and
// else the number of those written and a line for each of the others.
func (w writer) many(s shape) string {
	judged, applied := w.cte("judged"), w.cte("applied")
	tell := w.newOrUpdated()
	var b strings.Builder
	b.WriteString("WITH " + w.judging(judged, s, tell.reset))
	if lost := w.absent(judged, s); lost != "" {
		fmt.Fprintf(&b, ", %s AS MATERIALIZED (\n%s\n)", w.cte("absent"), lost)
	}
	b.WriteString(", " + w.applying(applied, judged, s, tell))
	if s.withRows {
		return pg.Pin(b.String() + "\n" + w.answer(applied, judged, s))
	}
	return pg.Pin(b.String() + w.tally(applied, judged, s))
}

// telling is how a written row says whether it was inserted or updated.
type telling struct {
	reset string // called once, before any row
	hit   string // called for each row that conflicts, where the statement goes on to update it
	isNew string // in RETURNING: true for a row that was inserted
}

// newOrUpdated tells an update from an insert in RETURNING. Nothing before it can: a trigger may still skip a row that
// DO UPDATE has let through.
func (w writer) newOrUpdated() telling {
	switch {
	case w.p.rule == firstWins:
		return telling{isNew: "true"}
	case w.l.spread.on:
		return telling{isNew: neverLocked}
	case w.l.Server >= oldRows:
		return telling{isNew: w.noOld()}
	}
	// The mark of a row that a trigger has skipped stays behind, so it names the row.
	return telling{
		reset: resetHit,
		hit:   "set_config('pgonce.hit', " + w.lockedKey() + ", true) IS NOT NULL",
		isNew: "(" + readHit + " = ''\n             OR " + readHit + " <> " + w.keyText("t") + ") IS NOT FALSE",
	}
}

// judging is the CTE that reads the rows given beside the stored ones, and says of each what is to become of it.
func (w writer) judging(judged string, s shape, reset string) string {
	from, judge := w.judgedFrom(w.ranked(s.distinct, reset))
	stored := func(m member) string { return at("s", m.column) }
	return fmt.Sprintf("%s%s AS MATERIALIZED (\n  SELECT %s,\n       %s AS pgonce_verdict\n    FROM %s\n)",
		from, judged, fold(append([]string{"e.*"}, w.storedColumns(s.withRows)...), 9), w.verdict(stored, "NULL"), judge)
}

// applying is the CTE that writes, in the order of the keys, and returns what was written: the rows, or their keys
// alone where they are only counted.
func (w writer) applying(applied, judged string, s shape, tell telling) string {
	returned := []string{tell.isNew + " AS pgonce_new"}
	if s.withRows {
		returned = append(returned, w.list("t")...)
	} else {
		returned = append(returned, mapped(w.p.keyColumns(), func(k string) string { return at("t", k) })...)
	}
	values := mapped(w.p.written, func(m member) string { return w.inserted(m, w.judgedColumn) })
	order := ""
	if !s.distinct {
		order = "\n   ORDER BY " + strings.Join(w.sortKeys("e"), ", ")
	}
	return fmt.Sprintf("%s AS (\n  INSERT INTO %s AS t (%s)\n  SELECT %s\n    FROM %s AS e\n   WHERE %s%s",
		applied, w.p.table.Quoted(), fold(w.columns(), 9), fold(values, 9), judged, s.wanted(), order) +
		fmt.Sprintf("\n  ON CONFLICT %s %s\n  RETURNING %s%s\n)",
			pg.AsIs(w.target()), w.action(tell.hit), fold(returned, 12), w.expressions())
}

// tally answers with the numbers of inserted and updated rows, and with a line for each of the others. A row that
// should have been written, and has not been, has met a rival.
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

// nth and rank return the columns of [writer.ranked], which are not there where there is nothing to rank; wanted is
// true for a row that is to be written.
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

// answer puts written rows and judged ones together by their keys, the written one of a key first. The keys meet in a
// sort: a join of two CTEs is planned without knowing their sizes, and would compare every row with every other.
func (w writer) answer(applied, judged string, s shape) string {
	fromJudged := mapped(w.all(), func(m member) string { return w.judgedColumn(m) + " AS " + pg.Quote(m.column) })
	groups := make([]string, len(w.p.keys))
	for i := range groups {
		groups[i] = fmt.Sprintf("r.pgonce_g%d", i+1)
	}
	by := strings.Join(groups, ", ")
	written := fmt.Sprintf(`
    SELECT %s,
           '-1'::int8 AS pgonce_pos, 0::int8 AS pgonce_nth, 0::int8 AS pgonce_rank,
           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,
           %s
      FROM %s AS a`, named(w.sortKeys("a"), "pgonce_g"), fold(w.list("a"), 11), applied)
	others := fmt.Sprintf(`
    SELECT %s, e.pgonce_pos, %s, %s, coalesce(e.pgonce_verdict, ''),
           %s
      FROM %s AS e`, named(w.sortKeys("e"), "pgonce_g"), s.nth(), s.rank(), fold(fromJudged, 11), judged)
	return fmt.Sprintf(`SELECT row_number() OVER (PARTITION BY %[1]s ORDER BY r.pgonce_pos) = 1,
       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,
       %[2]s
  FROM (%[3]s
     UNION ALL%[4]s
  ) AS r
 ORDER BY %[1]s, r.pgonce_pos`, by, fold(w.results("r"), 7), written, others)
}

// ranked returns the rows given, typed, with their place among those of the same key: pgonce_nth counts from the
// newest, and pgonce_rank is 1 for all that share the newest version; where keys are distinct, there is nothing to
// find. Refused rows are counted apart, so that they cannot hide a good one. reset, where it is not empty, is called
// once, before any row.
func (w writer) ranked(distinct bool, reset string) string {
	given := w.unnested(reset)
	if distinct {
		return given
	}
	part := "PARTITION BY " + strings.Join(w.sortKeys("q"), ", ")
	if len(w.refusals()) > 0 {
		part += ", q.pgonce_refused IS NULL"
	}
	order, rank := "q.pgonce_pos", "0"
	switch w.p.rule {
	case byVersion:
		newest := joined(w.members(roleVersion), ", ", func(m member) string {
			return exact(w.col(m), at("q", m.column)) + " DESC"
		})
		order, rank = newest+", q.pgonce_pos", "rank() OVER ("+part+" ORDER BY "+newest+")"
	case lastWins:
		order = "q.pgonce_pos DESC"
	}
	return fmt.Sprintf(`SELECT q.*, row_number() OVER (%s
                                         ORDER BY %s) AS pgonce_nth,
                 %s AS pgonce_rank
            FROM (%s) AS q`, part, order, rank, given)
}

// unnested returns the rows given, typed.
//
// The arrays are unnested in a select list, in step. Not in FROM: there each array would first be put away as a
// whole. OFFSET 0 hides their length from the planner, which has no choice to make by it, and would else find a
// thousand look-ups in a partitioned table dear enough for its just-in-time compiler: that takes a second, for what
// is done in ten milliseconds.
func (w writer) unnested(reset string) string {
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
	return fmt.Sprintf(`SELECT v.*%s
            FROM (SELECT %s
                    FROM (SELECT %s
                            FROM (SELECT %s
                                   WHERE %s OFFSET 0) AS a) AS u) AS v`,
		checks, fold(values, 26), fold(arrays, 34), fold(params, 42), nullsAreNulls)
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

// storedRow finds the row that has the key of e. OFFSET 0 keeps it a look-up of each key in the index, as ON CONFLICT
// does it: joined freely, a few rows would be worth a scan of the whole table to the planner.
func (w writer) storedRow() string {
	s := "SELECT " + fold(w.list("s"), 31) + w.found() + w.expressions() + "\n                         FROM " +
		w.p.table.Quoted() + " AS s" +
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

// storedColumns returns the stored row's columns under names that do not meet the event's: all of them, or those that
// are needed to make the row to insert.
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

// carried returns the columns for which an event without a value has to carry the stored one, only to pass the NOT
// NULL check.
func (w writer) carried() []member {
	return slices.DeleteFunc(w.members(roleIfNotNull), func(m member) bool { return !w.col(m).NotNull })
}

// absent collects which written rows came without a value for which of those columns, by the stored row's key: the
// row that was to be inserted, which is all that DO UPDATE sees, cannot tell.
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
	return "  SELECT jsonb_object_agg(a.k, true) AS keys FROM (\n    " + joined(ms, "\n    UNION ALL ",
		func(m member) string {
			return fmt.Sprintf("SELECT '%d' || %s AS k\n      FROM %s AS e WHERE %s AND %s IS NULL",
				slices.IndexFunc(ms, func(o member) bool { return o.column == m.column }), key, judged, s.wanted(),
				at("e", m.column))
		}) + "\n  ) AS a WHERE a.k IS NOT NULL"
}

func (w writer) isAbsent(m member) string {
	i := slices.IndexFunc(w.carried(), func(o member) bool { return o.column == m.column })
	return fmt.Sprintf("(SELECT keys FROM %s) ? ('%d' || %s)", w.cte("absent"), i, w.lockedKey())
}
