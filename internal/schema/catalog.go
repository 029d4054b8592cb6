package schema

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgonce/pgonce/internal/pg"
)

// relationsSQL finds what a name stands for: where it has no schema ($1 = ”), everything of that name on the search
// path, the first that SQL would take first, and behind it what stands in other schemas.
var relationsSQL = pg.Pin(`
SELECT c.oid::int8, n.nspname::text, c.relkind::text, c.relpersistence::text,
       coalesce(obj_description(c.oid, 'pg_class'), ''),
       coalesce(array_position(current_schemas(false), n.nspname), 0)::int8,
       pg_table_is_visible(c.oid), row_security_active(c.oid),
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
         AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'),
       current_user::text
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relname = $2::text AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND ($1::text = '' OR n.nspname = $1::text)
 ORDER BY coalesce(array_position(current_schemas(false), n.nspname), 1000000), n.nspname`)

type relation struct {
	oid                          int64
	schema, kind, persistence    string
	comment                      string
	path                         int64 // place in the search path, from 1; 0: not on it
	visible, rowSecurity, rights bool
	role                         string
}

func (r *relation) name(table string) pg.Name { return pg.Name{Schema: r.schema, Table: table} }

// found is what a name stands for.
type found struct {
	here   *relation   // what SQL would take; nil: nothing
	others []*relation // of the same name in other schemas, where the name has none
}

func lookUp(ctx context.Context, conn pg.Conn, name pg.Name) (found, error) {
	var f found
	err := conn.Query(ctx, relationsSQL, []any{name.Schema, name.Table}, func(scan func(...any) error) error {
		r := &relation{}
		err := scan(&r.oid, &r.schema, &r.kind, &r.persistence, &r.comment, &r.path, &r.visible, &r.rowSecurity, &r.rights,
			&r.role)
		if err != nil {
			return err
		}
		if f.here == nil && (name.Schema != "" || r.visible) {
			f.here = r
		} else {
			f.others = append(f.others, r)
		}
		return nil
	})
	if err != nil {
		return found{}, fmt.Errorf("read the catalog's tables: %w", err)
	}
	return f, nil
}

// columnsSQL lists the columns. A type has its schema, whatever the search path says, unless it is PostgreSQL's own.
// Its name in the catalog is told of those alone, and where no length or precision is set: what format_type prints
// depends on quote_all_identifiers.
var columnsSQL = pg.Pin(`
SELECT a.attname::text,
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace 
            THEN replace(replace(format_type(a.atttypid, a.atttypmod), '"', ''), 'pg_catalog.', '')
            ELSE t.typnamespace::regnamespace::text || '.' || t.typname END,
       CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace AND a.atttypmod = -1 THEN t.typname::text ELSE '' END, a.attnotnull,
       CASE WHEN co.collnamespace = 'pg_catalog'::regnamespace THEN '' ELSE coalesce(co.collnamespace::regnamespace::text || '.', '') END
         || coalesce(co.collname::text, ''),
       coalesce(co.collisdeterministic, true), a.attgenerated::text || a.attidentity::text, a.atthasdef,
       coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ''),
       EXISTS (SELECT FROM pg_catalog.pg_depend AS dep
                WHERE dep.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass::oid AND dep.objid = d.oid
                  AND dep.refclassid <> 'pg_catalog.pg_class'::pg_catalog.regclass::oid)
  FROM pg_catalog.pg_attribute AS a
  JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_collation AS co ON co.oid = a.attcollation
  LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum`)

type column struct {
	name          string
	kind, typname string // what is printed, and what is compared
	notNull       bool
	collation     string
	deterministic bool
	generated     string // "s": stored, "v": virtual, "a" and "d": identity, always and by default; "": neither
	hasDefault    bool
	def           string // the default, as the server prints it
	foreignDef    bool   // it uses a function, type or sequence of a user's
}

func columns(ctx context.Context, conn pg.Conn, oid int64) (map[string]column, error) {
	all := map[string]column{}
	err := conn.Query(ctx, columnsSQL, []any{oid}, func(scan func(...any) error) error {
		var c column
		err := scan(&c.name, &c.kind, &c.typname, &c.notNull, &c.collation, &c.deterministic, &c.generated, &c.hasDefault,
			&c.def,
			&c.foreignDef)
		if err != nil {
			return err
		}
		all[c.name] = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's columns: %w", err)
	}
	return all, nil
}

// indexesSQL lists the unique indexes, a row for each of their key columns (” is an expression).
var indexesSQL = pg.Pin(`
SELECT ix.indexrelid::int8, ic.relname::text, i.ord::int8, coalesce(a.attname::text, ''),
       ix.indisvalid, ix.indisready, ix.indimmediate, ix.indpred IS NOT NULL, ix.indisprimary,
       coalesce((to_jsonb(ix) ->> 'indnullsnotdistinct'::text) = 'true', false),
       coalesce(con.conname::text, ''),
       CASE WHEN co.collnamespace = 'pg_catalog'::regnamespace THEN '' ELSE coalesce(co.collnamespace::regnamespace::text || '.', '') END
         || coalesce(co.collname::text, '')
  FROM pg_catalog.pg_index AS ix
  JOIN pg_catalog.pg_class AS ic ON ic.oid = ix.indexrelid
 CROSS JOIN LATERAL ROWS FROM (unnest(ix.indkey::int2[]), unnest(ix.indcollation::oid[])) WITH ORDINALITY AS i (attnum, coll, ord)
  LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = ix.indrelid AND a.attnum = i.attnum AND i.attnum > 0
  LEFT JOIN pg_catalog.pg_constraint AS con ON con.conindid = ix.indexrelid AND con.contype IN ('p', 'u')
  LEFT JOIN pg_catalog.pg_collation AS co ON co.oid = i.coll
 WHERE ix.indrelid = $1::int8::oid AND ix.indisunique AND i.ord <= ix.indnkeyatts
 ORDER BY ix.indexrelid, i.ord`)

type index struct {
	name                             string
	columns                          []string // '' stands for an expression
	collations                       []string
	valid, ready, immediate, partial bool
	primary, nulls                   bool // nulls: they are not distinct
	constraint                       string
}

func indexes(ctx context.Context, conn pg.Conn, oid int64) ([]*index, error) {
	var all []*index
	var last int64
	err := conn.Query(ctx, indexesSQL, []any{oid}, func(scan func(...any) error) error {
		var id, ord int64
		var col, collation string
		ix := &index{}
		err := scan(&id, &ix.name, &ord, &col, &ix.valid, &ix.ready, &ix.immediate, &ix.partial,
			&ix.primary, &ix.nulls, &ix.constraint, &collation)
		if err != nil {
			return err
		}
		if id != last {
			all, last = append(all, ix), id
		}
		ix = all[len(all)-1]
		ix.columns, ix.collations = append(ix.columns, col), append(ix.collations, collation)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's indexes: %w", err)
	}
	return all, nil
}

// on reports whether the index is on exactly these columns, in any order.
func (ix *index) on(columns []string) bool {
	return len(ix.columns) == len(columns) && ix.covers(columns)
}

// covers reports whether each of columns is among the index's.
func (ix *index) covers(columns []string) bool {
	for _, c := range columns {
		if !slices.Contains(ix.columns, c) {
			return false
		}
	}
	return true
}

// Texts returns every statement that is not a migration, for tests that prepare them on a server.
func Texts() []string {
	return []string{
		lockSQL, tablespaceSQL, relationsSQL, columnsSQL, indexesSQL, aroundSQL, replicationSQL,
		partitioningSQL, partitionsSQL, partitionIndexesSQL, pendingSQL, weeksSQL, weeksLockSQL, orphansSQL, checksSQL,
		citusSQL, versionSQL,
	}
}
