package boxes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// The kinds of problems that tables of every kind can have; the front doors document them.
const (
	missingTable  = "table missing"
	notOurs       = "not our table"
	notLogged     = "not logged"
	missingColumn = "column missing"
	columnType    = "column type"
	trigger       = "trigger"
	rowSecurity   = "row security"
	missingRights = "rights missing"

	MissingIndex = "index missing"
	NoOrder      = "numbers out of order"
)

var (
	relationSQL = pg.Pin(`
SELECT c.oid::int8, c.relkind::text, c.relpersistence::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
       row_security_active(c.oid),
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
         AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
  FROM pg_catalog.pg_class AS c
 WHERE c.oid = to_regclass($1::text)`)

	columnsSQL = pg.Pin(`
SELECT a.attname::text, replace(replace(format_type(a.atttypid, a.atttypmod), '"', ''), 'pg_catalog.', ''),
       a.attnotnull, coalesce(co.collname::text, '')
  FROM pg_catalog.pg_attribute AS a
  LEFT JOIN pg_catalog.pg_collation AS co ON co.oid = a.attcollation
 WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped`)

	// The columns of each index that is usable. An expression has none.
	indexesSQL = pg.Pin(`
SELECT coalesce(string_agg(coalesce(a.attname::text, '?'), ',' ORDER BY k.ord), ''), ix.indisunique,
       ix.indisunique AND ix.indimmediate AND ix.indpred IS NULL,
       coalesce(pg_get_expr(ix.indpred, ix.indrelid), '')
  FROM pg_catalog.pg_index AS ix
 CROSS JOIN LATERAL unnest(ix.indkey::int2[]) WITH ORDINALITY AS k (attnum, ord)
  LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = ix.indrelid AND a.attnum = k.attnum AND k.attnum > 0
 WHERE ix.indrelid = $1::int8::oid AND ix.indisvalid AND ix.indisready AND k.ord <= ix.indnkeyatts
 GROUP BY ix.indexrelid, ix.indisunique, ix.indimmediate, ix.indpred, ix.indrelid`)

	aroundSQL = pg.Pin(`
SELECT (SELECT count(*) FROM pg_catalog.pg_trigger AS t
         WHERE t.tgrelid = $1::int8::oid AND NOT t.tgisinternal AND t.tgenabled <> 'D')
     + (SELECT count(*) FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = $1::int8::oid AND r.rulename <> '_RETURN'),
       (SELECT count(*) FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = d.objid
         WHERE d.refobjid = $1::int8::oid AND d.deptype = 'i' AND s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle)`)
)

// Texts returns every statement on the catalog, for tests that prepare them on a server.
func Texts() []string { return []string{lockSQL, relationSQL, columnsSQL, indexesSQL, aroundSQL} }

type relation struct {
	oid                        int64
	kind, persistence, comment string
	rowSecurity, rights        bool
}

// lookUp returns what SQL would take for the name; nil where there is nothing.
func lookUp(ctx context.Context, conn pg.Conn, name pg.Name) (*relation, error) {
	var r relation
	s := &pg.Stmt{
		SQL: relationSQL, Args: []any{name.Quoted()},
		Dest: []any{&r.oid, &r.kind, &r.persistence, &r.comment, &r.rowSecurity, &r.rights},
	}
	if err := conn.Send(ctx, s); err != nil {
		return nil, fmt.Errorf("read the catalog's tables: %w", err)
	}
	if s.Rows == 0 {
		return nil, nil
	}
	return &r, nil
}

// Column is what is asked of a column.
type Column struct {
	Type      string
	NotNull   bool
	Collation string
}

// NotNull is a column that cannot be NULL; collation is empty where its type has none.
func NotNull(kind, collation string) Column {
	return Column{Type: kind, NotNull: true, Collation: collation}
}

// Nullable is a column that can be NULL.
func Nullable(kind, collation string) Column { return Column{Type: kind, Collation: collation} }

// Index is an index that is usable.
type Index struct {
	Columns string // "a,b"; an expression is "?"
	Unique  bool
	Proof   bool // it checks each row at once, for all rows
	Where   string
}

// Verifier collects the problems of the tables that belong together.
type Verifier struct {
	Kind     Kind
	Conn     pg.Conn
	Problems []schema.Problem
}

// Report adds a problem.
func (v *Verifier) Report(table pg.Name, kind, message, fix string) {
	v.Problems = append(v.Problems, schema.Problem{Table: table.String(), Kind: kind, Message: message, Fix: fix})
}

// Table asks what is asked of each table; ddl makes it. There is no oid where nothing more can be asked.
func (v *Verifier) Table(ctx context.Context, name pg.Name, ddl string, want map[string]Column) (oid int64, err error) {
	r, err := lookUp(ctx, v.Conn, name)
	switch {
	case err != nil:
		return 0, err
	case r == nil:
		v.Report(name, missingTable, "there is no such table", ddl)
		return 0, nil
	case r.kind != "r":
		v.Report(name, notOurs, "it is a view, or a foreign or partitioned table",
			"-- give the "+v.Kind.Noun+" another name")
		return 0, nil
	}
	alone, err := schema.Alone(ctx, v.Conn, r.oid, v.Kind.Torn)
	if err != nil {
		return 0, err
	}
	for _, p := range alone {
		v.Report(name, p.Kind, p.Message, p.Fix)
	}
	if len(alone) > 0 {
		return 0, nil // Citus refuses questions, too
	}
	if r.persistence != "p" {
		v.Report(name, notLogged, "a crash of the server, or the end of the session, empties the table",
			"ALTER TABLE "+name.Quoted()+" SET LOGGED;")
	}
	if !r.rights {
		v.Report(name, missingRights, "the current role lacks a right on the table",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON "+name.Quoted()+" TO CURRENT_USER;")
	}
	if r.rowSecurity {
		v.Report(name, rowSecurity, "row security applies to the current role: what it cannot see is never "+v.Kind.Done,
			"ALTER ROLE CURRENT_USER BYPASSRLS;")
	}
	whole, err := v.columns(ctx, name, r.oid, want)
	if err != nil || !whole {
		return 0, err
	}
	return r.oid, nil
}

func (v *Verifier) columns(
	ctx context.Context, table pg.Name, oid int64, want map[string]Column,
) (whole bool, err error) {
	have := map[string]Column{}
	err = v.Conn.Query(ctx, columnsSQL, []any{oid}, func(scan func(...any) error) error {
		var name string
		var c Column
		err := scan(&name, &c.Type, &c.NotNull, &c.Collation)
		have[name] = c
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read the catalog's columns: %w", err)
	}
	whole = true
	for _, col := range slices.Sorted(maps.Keys(want)) {
		switch c, ok := have[col]; {
		case !ok:
			whole = false
			v.Report(table, missingColumn, "the column "+col+" is missing", "-- compare it with the statements of Table.DDL")
		case c != want[col]:
			v.Report(table, columnType, "the column "+col+" has another type, collation or NOT NULL",
				"-- compare it with the statements of Table.DDL")
		}
	}
	return whole, nil
}

// Indexes returns the indexes of a table.
func (v *Verifier) Indexes(ctx context.Context, oid int64) (all []Index, err error) {
	err = v.Conn.Query(ctx, indexesSQL, []any{oid}, func(scan func(...any) error) error {
		var ix Index
		err := scan(&ix.Columns, &ix.Unique, &ix.Proof, &ix.Where)
		all = append(all, ix)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's indexes: %w", err)
	}
	return all, nil
}

// Around asks of a table whose column seq has the order what is attached to it.
func (v *Verifier) Around(ctx context.Context, name pg.Name, oid int64) error {
	var others, sequences int64
	err := v.Conn.Send(ctx, &pg.Stmt{SQL: aroundSQL, Args: []any{oid}, Dest: []any{&others, &sequences}})
	if err != nil {
		return fmt.Errorf("read what is attached to the table: %w", err)
	}
	if others > 0 {
		v.Report(name, trigger, "a trigger or a rule is on the table: it may drop or change "+v.Kind.Things,
			"-- drop it, where it does more than to write elsewhere")
	}
	if sequences != 1 {
		v.Report(name, NoOrder, "the column seq is no ascending identity with CACHE 1: the "+v.Kind.Things+
			" of one key may be "+v.Kind.Done+" out of order",
			"ALTER TABLE "+name.Quoted()+" ALTER COLUMN seq SET CACHE 1 SET NO CYCLE;")
	}
	return nil
}
