package upsert

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// around is what stands around a table and has a say in what becomes of a row.
type around struct {
	Kind      string // relkind
	Writable  bool   // a view that PostgreSQL turns into its table
	Children  []string
	Rules     []string
	Excluding []string
	Triggers  []trigger
}

// aroundSQL returns one row of one column, as layoutSQL does.
var aroundSQL = pg.Pin(`
SELECT (pg_catalog.json_build_object(
  'Kind', c.relkind::text,
  'Writable', pg_catalog.pg_relation_is_updatable(c.oid::pg_catalog.regclass, false) & 12 = 12,
  'Children', coalesce((
    SELECT pg_catalog.json_agg(i.inhrelid::pg_catalog.regclass::text)
      FROM pg_catalog.pg_inherits AS i
     WHERE i.inhparent = c.oid AND c.relkind = 'r'), '[]'::json),
  'Rules', coalesce((
    SELECT pg_catalog.json_agg(r.rulename::text)
      FROM pg_catalog.pg_rewrite AS r
     WHERE r.ev_class = c.oid AND r.ev_type IN ('2', '3') AND r.ev_enabled <> 'D' AND c.relkind <> 'v'), '[]'::json),
  'Excluding', coalesce((
    SELECT pg_catalog.json_agg(x.conname::text)
      FROM pg_catalog.pg_constraint AS x
     WHERE x.conrelid = c.oid AND x.contype = 'x'), '[]'::json),
  'Triggers', coalesce((
    SELECT pg_catalog.json_agg(DISTINCT pg_catalog.jsonb_build_object('Name', t.tgname::text, 'Function', f.proname::text,
        'Source', f.prosrc, 'Args', pg_catalog.encode(t.tgargs, 'escape'), 'Type', t.tgtype::int4))
      FROM pg_catalog.pg_trigger AS t
      JOIN pg_catalog.pg_proc AS f ON f.oid = t.tgfoid
     WHERE (t.tgrelid = c.oid OR t.tgrelid IN (
             SELECT p.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(c.oid::pg_catalog.regclass) AS p))
       AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')), '[]'::json)
))::text
  FROM pg_catalog.pg_class AS c
 WHERE c.oid = pg_catalog.to_regclass($1::text)::pg_catalog.oid`)

func readAround(ctx context.Context, conn pg.Conn, table pg.Name) (*around, error) {
	var text string
	if err := conn.Send(ctx, &pg.Stmt{SQL: aroundSQL, Args: []any{table.Quoted()}, Dest: []any{&text}}); err != nil {
		return nil, err
	}
	var a around
	return &a, json.Unmarshal([]byte(text), &a)
}

// aroundProblems finds what acts on rows beside the statement. Triggers, rules and constraints that the caller
// accepts are left out.
func (p *plan) aroundProblems(l *layout, a *around, cat *catalog) []Problem {
	r := &report{table: p.table.String()}
	for _, child := range a.Children {
		r.add(KindInheritance, "make it a partitioned table, or ALTER TABLE "+child+" NO INHERIT "+p.table.Quoted(),
			"table %s inherits from it, and no unique index covers both: a row of a key that is there is inserted beside it",
			child)
	}
	for _, rule := range a.Rules {
		r.add(KindRule, fmt.Sprintf("DROP RULE %s ON %s", pg.Quote(rule), p.table.Quoted()),
			"it has the rule %s, and PostgreSQL takes no ON CONFLICT on a table with rules for INSERT or UPDATE", rule)
	}
	for _, t := range a.Triggers {
		if text := p.triggerProblem(t); text != "" && !p.accepts(t.Name) {
			r.add(KindTrigger, fmt.Sprintf("DROP TRIGGER %s ON %s, let it fill columns of its own, or Accept(%q) where it is "+
				"meant so",
				pg.Quote(t.Name), p.table.Quoted(), t.Name), "%s", text)
		}
	}
	further := func(kind Kind, name string) {
		if !p.accepts(name) {
			r.add(kind, fmt.Sprintf("drop it, or handle ErrOtherConstraint and write Accept(%q)", name),
				"%s is a further constraint: an event that clashes with another entity's row there fails, "+
					"and in a transaction so may the same event twice at once", name)
		}
	}
	for _, name := range a.Excluding {
		further(KindOtherConstraint, name)
	}
	for _, i := range cat.Indexes {
		if p.canClash(l, i) {
			further(KindOtherUniqueIndex, i.Name)
		}
	}
	return r.problems
}

func (p *plan) accepts(name string) bool { return slices.Contains(p.spec.accepted, name) }

// canClash says that rows with different keys may meet in the unique index i.
func (p *plan) canClash(l *layout, i index) bool {
	covered := true
	for _, k := range p.keys {
		covered = covered && k.expr == "" && slices.Contains(i.Keys, "."+k.column)
	}
	if covered || p.isTarget(i) {
		return false
	}
	for _, k := range i.Keys {
		name, ok := strings.CutPrefix(k, ".")
		c := l.byName[name]
		if !ok || c == nil || c.Generated || slices.ContainsFunc(p.written, func(m member) bool { return m.column == name }) {
			continue
		}
		// What the database makes (a sequence, a uuid) differs from row to row, and so does NULL.
		if c.Identity || strings.Contains(c.Default, "(") || c.Default == "" && !i.NullsAlike {
			return false
		}
	}
	return true
}

// isTarget says that i may be the index of a target with expressions: as many columns and expressions as the target
// has, and all of its columns. Those of a target without are covered.
func (p *plan) isTarget(i index) bool {
	if len(i.Keys) != len(p.keys) || len(p.keyColumns()) == len(p.keys) {
		return false
	}
	for _, name := range p.keyColumns() {
		if !slices.Contains(i.Keys, "."+name) {
			return false
		}
	}
	plain := 0
	for _, k := range i.Keys {
		if strings.HasPrefix(k, ".") {
			plain++
		}
	}
	return plain == len(p.keyColumns())
}

// viewProblems checks what is no table. Of a view it asks PostgreSQL whether it takes the statement, and looks around
// the table that would be written.
func (p *plan) viewProblems(ctx context.Context, db DB, conn pg.Conn, l *layout, a *around) ([]Problem, error) {
	r := &report{table: p.table.String()}
	switch {
	case a.Kind == "v" && !a.Writable:
		r.add(KindNotATable, "name the table in Into", "it is a view that PostgreSQL cannot turn into a write to one table")
		return r.problems, nil
	case a.Kind != "v":
		r.add(KindNotATable, "name a table in Into",
			"it is no table, but a materialized view, a foreign table or a sequence, which take no ON CONFLICT")
		return r.problems, nil
	}
	var table pg.Name
	err := undone(ctx, db, func(conn pg.Conn) (err error) {
		table, err = p.explained(ctx, conn, p.table.Quoted(), writer{p: p}.target())
		return err
	})
	switch state := sqlState(err); {
	case state == noArbiter:
		r.add(KindIndexMissing, "CREATE UNIQUE INDEX on the table of the view, on the columns behind "+writer{p: p}.target(),
			"there is no unique index on exactly %s in the table of the view, so that every statement fails (42P10)",
			writer{p: p}.target())
		return r.problems, nil
	case strings.HasPrefix(state, "42") && state != "42501", state == "0A000", state == "55000":
		r.add(KindNotATable, "name the table in Into", "PostgreSQL does not take the statement on this view: %v", err)
		return r.problems, nil
	case err != nil:
		return nil, err
	}
	if a, err = readAround(ctx, conn, table); err != nil {
		return nil, err
	}
	return p.aroundProblems(l, a, &catalog{}), nil
}
