package upsert

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// catalog is what Verify reads besides the columns.
type catalog struct {
	Partitioned bool
	Indexes     []index
}

// index is a unique index of the table itself.
type index struct {
	Name       string
	Constraint string // "" where it is only an index
	Valid      bool
	Immediate  bool
	NullsAlike bool     // NULLS NOT DISTINCT
	SameRule   bool     // every column by its own collation
	Keys       []string // an expression, or a column with a dot before it
	Predicate  string
	Definition string
}

// catalogSQL returns one row of one column, as layoutSQL does.
var catalogSQL = pg.Pin(`
SELECT json_build_object(
  'Partitioned', (SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = to_regclass($1::text)),
  'Indexes', coalesce((
    SELECT json_agg(json_build_object(
      'Name', c.relname,
      'Constraint', coalesce((SELECT min(conname) FROM pg_catalog.pg_constraint WHERE conindid = i.indexrelid AND contype IN ('p', 'u')), ''),
      'Valid', i.indisvalid AND i.indisready,
      'Immediate', i.indimmediate,
      'NullsAlike', coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false),
      'SameRule', (SELECT coalesce(bool_and(a.attcollation = k.rule), true)
                     FROM ROWS FROM (unnest(i.indkey::int2[]), unnest(i.indcollation::oid[])) AS k (attnum, rule)
                     JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                    WHERE k.rule <> 0),
      'Keys', (SELECT json_agg(coalesce('.' || a.attname, pg_get_indexdef(i.indexrelid, n, false)) ORDER BY n)
                 FROM generate_series(1, i.indnkeyatts) AS n
                 LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n - 1] AND a.attnum > 0),
      'Predicate', coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
      'Definition', pg_get_indexdef(i.indexrelid)
    ) ORDER BY c.relname)
      FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
     WHERE i.indrelid = to_regclass($1::text) AND i.indisunique), '[]'::json)
)::text`)

func readCatalog(ctx context.Context, conn pg.Conn, table pg.Name) (*catalog, error) {
	var text string
	if err := conn.Send(ctx, &pg.Stmt{SQL: catalogSQL, Args: []any{table.Quoted()}, Dest: []any{&text}}); err != nil {
		return nil, err
	}
	var c catalog
	return &c, json.Unmarshal([]byte(text), &c)
}

// targetProblems looks for the unique index behind the conflict target.
func (p *plan) targetProblems(ctx context.Context, db DB, l *layout, cat *catalog) ([]Problem, error) {
	r := &report{table: p.table.String()}
	if p.rule == byVersion && p.where != "" {
		r.add(KindGuardPartial, "make the unique index full, and mark deleted rows with Tombstone",
			"the version guards among the rows of the predicate alone: when the stored row has left it, a late event inserts "+
				"a second one")
	}
	want := index{Predicate: p.where}
	for _, k := range p.keys {
		want.Keys = append(want.Keys, "."+k.column)
	}
	if len(want.Keys) != len(p.keyColumns()) || p.where != "" {
		probed, err := p.probe(ctx, db)
		if err != nil {
			if wrong, ok := err.(targetError); ok {
				r.add(KindTargetUnclear, "write the target and the predicate as the index has them",
					"PostgreSQL cannot make an index of the conflict target: %v", wrong.error)
				return r.problems, nil
			}
			return nil, err
		}
		want = *probed
	}
	return r.problems, p.compareIndexes(ctx, db, r, l, cat, want)
}

func (p *plan) compareIndexes(ctx context.Context, db DB, r *report, l *layout, cat *catalog, want index) error {
	concurrently := "CONCURRENTLY "
	if cat.Partitioned {
		concurrently = ""
	}
	create := fmt.Sprintf("CREATE UNIQUE INDEX %sON %s %s", concurrently, p.table.Quoted(), writer{p: p}.target())
	var usable bool
	var near, weaker []string
	for _, i := range cat.Indexes {
		if !sameSet(i.Keys, want.Keys) {
			continue
		}
		if i.Predicate != "" && want.Predicate != "" && i.Predicate != want.Predicate {
			infers, equal, err := p.comparePredicates(ctx, db, i.Predicate)
			if err != nil {
				return err
			}
			another := fmt.Sprintf("the predicate of index %s is another: WHERE %s", i.Name, i.Predicate)
			switch {
			case !infers:
				near = append(near, another)
				continue
			case !equal:
				weaker = append(weaker, another)
				continue
			}
		}
		switch {
		case i.Predicate != want.Predicate && want.Predicate == "":
			near = append(near, fmt.Sprintf("index %s has them for the rows WHERE %s only; with Where(%q) it is the target",
				i.Name, i.Predicate, i.Predicate))
			continue
		case i.Predicate == "" && want.Predicate != "":
			r.add(KindPredicate, "leave Where out",
				"the predicate WHERE %s does not match: index %s has none, so rows outside of it conflict too", p.where, i.Name)
		case !i.Immediate:
			r.add(KindConstraintDeferrable,
				fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD UNIQUE %s", p.table.Quoted(), pg.Quote(i.Constraint),
					writer{p: p}.target()),
				"the constraint %s is deferrable; PostgreSQL takes none such for ON CONFLICT", i.Name)
		case !i.Valid:
			r.add(KindIndexInvalid, fmt.Sprintf("REINDEX INDEX %s%s", concurrently, pg.Quote(i.Name)),
				"index %s is INVALID, the rest of a failed build, or of a partition without it; PostgreSQL does not use it", i.Name)
		case !i.SameRule:
			r.add(KindCollation, create, "index %s has another collation than its columns, so that it finds other strings "+
				"equal than a comparison does", i.Name)
		}
		usable = true
		p.nullProblems(r, l, i)
	}
	switch {
	case usable:
	case len(weaker) > 0:
		r.add(KindPredicate, create, "%s; PostgreSQL takes it, so rows outside of WHERE %s conflict too, and are written",
			strings.Join(weaker, "; "), p.where)
	default:
		text := fmt.Sprintf("there is no unique index on exactly %s, so that every statement fails (42P10)",
			writer{p: p}.target())
		if len(near) > 0 {
			text += "; " + strings.Join(near, "; ")
		}
		r.add(KindIndexMissing, create, "%s", text)
	}
	return nil
}

// nullProblems finds key columns whose NULLs are no conflict. This package sends none, but nothing else is kept from
// storing rows that no upsert will ever find.
func (p *plan) nullProblems(r *report, l *layout, i index) {
	if i.NullsAlike {
		return
	}
	for _, name := range p.keyColumns() {
		if !l.byName[name].NotNull {
			r.add(KindColumnNullable, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", p.table.Quoted(),
				pg.Quote(name)),
				"the key column %s may be NULL, and index %s takes NULLs for different from each other", name, i.Name)
		}
	}
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
