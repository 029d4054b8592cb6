package upsert

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

// layout is what the catalog says of a table.
type layout struct {
	Server   int    // server_version_num
	Encoding string // of the database
	Citus    bool   // the extension is there
	Columns  []column

	// Targets are the unique indexes that have an expression.
	Targets [][]part

	Types []*typeInfo

	byName map[string]*column

	spread spread // where Citus has the table
}

// column is one column of a table; a domain counts as the type below it.
type column struct {
	Name      string
	OID       uint32
	Elem      uint32 // of an array; a domain counts as the type below it
	Type      string // in SQL, without length or scale; with its schema, or a keyword that is pg_catalog's
	Exact     string // in SQL, with them
	Catalog   string // atttypid and atttypmod
	Limit     int    // characters that a varchar(n) holds, 0 for any number
	Typtype   string // e: enum
	NotNull   bool
	Generated bool
	Identity  bool
	Always    bool // GENERATED ALWAYS AS IDENTITY
	Default   string
	Collation string // in SQL; "" where the type has none, or has the database's
	// Fuzzy is set where the collation is nondeterministic: equal strings may differ in bytes.
	Fuzzy bool
	// Operators are those of its order, by strategy, each with its schema; nil where they are pg_catalog's.
	Operators map[string]string

	ElemDomain bool // the elements are of a domain
	types      typeSet
}

// expressions returns the operator that finds what equals an expression of the target, "" for pg_catalog's. It is
// told by the index: the target says nothing of a type. ok is false where the indexes that may be meant disagree.
func (l *layout) expressions(keys []key) (operator string, ok bool) {
	operator, ok = "", true
	found := false
	for _, parts := range l.Targets {
		fits := len(parts) == len(keys)
		for _, k := range keys {
			fits = fits && (k.expr != "" || slices.ContainsFunc(parts, func(p part) bool { return p.Column == k.column }))
		}
		for _, p := range parts {
			switch {
			case !fits || p.Column != "":
			case found && p.Equal != operator:
				return "", false
			default:
				operator, found = p.Equal, true
			}
		}
	}
	return operator, ok
}

// part is a column or an expression of an index, and the operator by which it finds what is equal, "" for pg_catalog's.
type part struct{ Column, Equal string }

// operator returns op with blanks around it: = or > or >=, as the type has it.
func (c *column) operator(op string) string {
	return operatorIn(c.Operators[map[string]string{"=": "3", ">=": "4", ">": "5"}[op]], op)
}

// operatorIn returns qualified in the form in which it stands in an expression, or op where there is none.
func operatorIn(qualified, op string) string {
	if qualified == "" {
		return " " + op + " "
	}
	return " OPERATOR(" + qualified + ") "
}

// layoutSQL returns one row of one column, so that it can travel as a batch: see pg.FromPgx.
var layoutSQL = pg.Pin(`
WITH RECURSIVE base AS (
  SELECT a.attnum, t.oid, t.typnamespace, t.typname, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typtypmod, a.atttypmod AS typmod, a.attnotnull AS not_null
    FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
   WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT b.attnum, t.oid, t.typnamespace, t.typname, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typtypmod, b.typtypmod, b.not_null OR d.typnotnull
    FROM base AS b
    JOIN pg_catalog.pg_type AS d ON d.oid = b.oid
    JOIN pg_catalog.pg_type AS t ON t.oid = b.typbasetype
   WHERE b.typtype = 'd'
), made (oid) AS (
  SELECT b.oid FROM base AS b
  UNION
  SELECT n.oid
    FROM made AS m JOIN pg_catalog.pg_type AS t ON t.oid = m.oid
    JOIN LATERAL (
      SELECT t.typelem AS oid WHERE t.typcategory = 'A' AND t.typtype = 'b'
       UNION ALL
      SELECT t.typbasetype WHERE t.typtype = 'd'
       UNION ALL
      SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
       WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
       UNION ALL
      SELECT r.rngsubtype FROM pg_catalog.pg_range AS r WHERE r.rngtypid = t.oid
       UNION ALL
      SELECT r.rngtypid FROM pg_catalog.pg_range AS r WHERE r.rngmultitypid = t.oid) AS n ON true
)
SELECT json_build_object(
  'Server', current_setting('server_version_num')::int,
  'Encoding', current_setting('server_encoding'),
  'Citus', to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL,
  'Columns', coalesce(json_agg(json_build_object(
    'Name', a.attname,
    'OID', b.oid::int8,
    'Elem', CASE WHEN b.typcategory = 'A' THEN b.typelem::int8 ELSE 0 END,
    'Type', CASE WHEN format_type(b.oid, -1) ~ '^(bigint|boolean|character varying|double precision|integer|interval|numeric|real|smallint|time .*|timestamp .*|bit varying)([[][]])?$'
                  AND tn.nspname = 'pg_catalog' THEN format_type(b.oid, -1)
                 ELSE (SELECT quote_ident(n.nspname) || '.' || quote_ident(t.typname) FROM pg_catalog.pg_type AS t
                         JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
                        WHERE t.oid = b.oid) END,
    'Exact', format_type(b.oid, b.typmod),
    'Catalog', a.atttypid || ' ' || a.atttypmod,
    'Limit', CASE WHEN b.oid = 'varchar'::regtype AND b.typmod > 4 THEN b.typmod - 4 ELSE 0 END,
    'Typtype', b.typtype::text,
    'NotNull', b.not_null,
    'Generated', a.attgenerated <> '',
    'Identity', a.attidentity <> '',
    'Always', a.attidentity = 'a',
    'Default', CASE WHEN a.attgenerated = '' THEN coalesce(pg_get_expr(d.adbin, d.adrelid), '') ELSE '' END,
    'Collation', CASE WHEN c.collname <> 'default' THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) ELSE '' END,
    'Fuzzy', NOT coalesce(c.collisdeterministic, true),
    'Operators', (
      SELECT json_object_agg(m.amopstrategy, quote_ident(on_.nspname) || '.' || o.oprname)
        FROM pg_catalog.pg_opclass AS k
        JOIN pg_catalog.pg_amop AS m ON m.amopfamily = k.opcfamily AND m.amoplefttype = k.opcintype AND m.amoprighttype = k.opcintype
        JOIN pg_catalog.pg_operator AS o ON o.oid = m.amopopr
        JOIN pg_catalog.pg_namespace AS on_ ON on_.oid = o.oprnamespace
       WHERE k.opcintype = b.oid AND k.opcdefault AND m.amoppurpose = 's' AND on_.nspname <> 'pg_catalog'
         AND k.opcmethod = (SELECT h.oid FROM pg_catalog.pg_am AS h WHERE h.amname = 'btree'))
  ) ORDER BY a.attnum), '[]'::json),
  'Targets', coalesce((
    SELECT json_agg((
      SELECT json_agg(json_build_object('Column', coalesce(a.attname, ''), 'Equal', coalesce(e.equal, '')) ORDER BY g.n)
        FROM generate_series(1, i.indnkeyatts) AS g (n)
        LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[g.n - 1] AND a.attnum > 0
        LEFT JOIN LATERAL (
          SELECT quote_ident(on_.nspname) || '.' || o.oprname
            FROM pg_catalog.pg_opclass AS k
            JOIN pg_catalog.pg_amop AS m ON m.amopfamily = k.opcfamily AND m.amoplefttype = k.opcintype AND m.amoprighttype = k.opcintype
            JOIN pg_catalog.pg_operator AS o ON o.oid = m.amopopr
            JOIN pg_catalog.pg_namespace AS on_ ON on_.oid = o.oprnamespace
           WHERE k.oid = i.indclass[g.n - 1] AND m.amopstrategy = 3 AND on_.nspname <> 'pg_catalog'
        ) AS e (equal) ON true))
      FROM pg_catalog.pg_index AS i
     WHERE i.indrelid = to_regclass($1::text) AND i.indisunique AND i.indexprs IS NOT NULL), '[]'::json),
  'Types', (
    SELECT json_agg(json_build_object('OID', t.oid::int8, 'Kind', t.typtype::text, 'Category', t.typcategory::text,
        'Base', t.typbasetype::int8,
        'Elem', CASE WHEN t.typcategory = 'A' AND t.typtype = 'b' THEN t.typelem::int8 ELSE 0 END,
        'Span', coalesce((SELECT CASE WHEN r.rngtypid = t.oid THEN r.rngsubtype::int8 ELSE r.rngtypid::int8 END
                            FROM pg_catalog.pg_range AS r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid), 0),
        'Members', (SELECT json_agg(a.atttypid::int8 ORDER BY a.attnum) FROM pg_catalog.pg_attribute AS a
                     WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped),
        'Send', (SELECT quote_ident(n.nspname) || '.' || quote_ident(p.proname) FROM pg_catalog.pg_proc AS p
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = t.typsend::oid)))
      FROM unnest((SELECT array_agg(m.oid) FROM made AS m)) AS m (oid) JOIN pg_catalog.pg_type AS t ON t.oid = m.oid)
)::text
  FROM base AS b
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = to_regclass($1::text) AND a.attnum = b.attnum
  LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_catalog.pg_collation AS c ON c.oid = a.attcollation
  LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.collnamespace
  JOIN pg_catalog.pg_namespace AS tn ON tn.oid = b.typnamespace
 WHERE b.typtype <> 'd'`)

// readLayout asks the catalog. A missing table has no columns.
func readLayout(ctx context.Context, conn pg.Conn, table pg.Name) (*layout, error) {
	var text string
	stmt := &pg.Stmt{SQL: layoutSQL, Args: []any{table.Quoted()}, Dest: []any{&text}}
	err := conn.Send(ctx, stmt)
	if err != nil {
		return nil, fmt.Errorf("upsert: reading the columns of %s: %w", table, err)
	}
	l := &layout{byName: map[string]*column{}}
	if err := json.Unmarshal([]byte(text), l); err != nil {
		return nil, fmt.Errorf("upsert: reading the columns of %s: %w", table, err)
	}
	types := typeSet{}
	for _, t := range l.Types {
		types[t.OID] = t
		t.Infinite = t.OID == pgtype.IntervalOID && l.Server >= infiniteIntervals
	}
	for i := range l.Columns {
		c := &l.Columns[i]
		c.types, c.ElemDomain = types, c.Elem != types.base(c.Elem)
		c.Elem = types.base(c.Elem)
		l.byName[c.Name] = c
	}
	if l.Citus {
		if l.spread, err = readSpread(ctx, conn, table); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// rounded says that PostgreSQL changes a value to fit the column's precision. Only then may the precision be part of
// a cast: a cast to varchar(3) cuts without an error, where an INSERT would refuse.
func (c *column) rounded() bool {
	oid := c.OID
	if c.Elem != 0 {
		oid = c.Elem
	}
	if c.ElemDomain {
		return false // the cast to the array of them has rounded by then
	}
	switch oid {
	case pgtype.NumericOID, pgtype.TimestampOID, pgtype.TimestamptzOID, pgtype.TimeOID, pgtype.TimetzOID,
		pgtype.IntervalOID:
		return c.Exact != c.Type
	}
	return false
}

// inArray returns the type that carries values of c in an array: the column's own where its array is known to be
// written and taken apart as one of strings is, else text, to be cast afterwards. Arrays of arrays would be
// flattened, and those of some types (box) have another delimiter.
func (c *column) inArray() string {
	switch c.OID {
	case pgtype.BoolOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Float4OID, pgtype.Float8OID,
		pgtype.NumericOID,
		pgtype.UUIDOID, pgtype.DateOID, pgtype.TimeOID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		return c.Type
	}
	return "pg_catalog.text"
}

// scalar says that every driver hands out a value of the type in a form that needs no further knowledge. Of the others
// pgx may give its binary form, and lib/pq a time.Time.
func (c *column) scalar() bool {
	switch c.OID {
	case pgtype.BoolOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID, pgtype.UUIDOID,
		pgtype.InetOID, pgtype.CIDROID,
		pgtype.JSONOID, pgtype.JSONBOID, pgtype.NameOID, pgtype.OIDOID:
		return true
	}
	return c.isText()
}

// isText says that the type is one of strings.
func (c *column) isText() bool {
	return c.OID == pgtype.TextOID || c.OID == pgtype.VarcharOID || c.OID == pgtype.BPCharOID
}

// comparable says that the type's own = finds every difference that matters. Types without one (json, point), or with
// one that overlooks something (box compares areas, citext ignores case), are compared by their text.
func (c *column) comparable() bool {
	switch c.OID {
	case pgtype.BoolOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Float4OID, pgtype.Float8OID,
		pgtype.NumericOID,
		pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.UUIDOID, pgtype.ByteaOID, pgtype.JSONBOID, pgtype.DateOID,
		pgtype.TimeOID, pgtype.TimestampOID, pgtype.TimestamptzOID, pgtype.InetOID, pgtype.CIDROID:
		return !c.Fuzzy
	}
	return c.Typtype == "e"
}

// ordersEvents says that a version of the type says by itself which of two events is newer. Not the time of day,
// which begins anew, nor json, whose order is that of its length first.
func (c *column) ordersEvents() bool {
	switch c.OID {
	case pgtype.JSONBOID, pgtype.TimeOID, pgtype.TimetzOID, pgtype.InetOID, pgtype.CIDROID:
		return false
	case pgLSN, pgtype.XID8OID:
		return true
	}
	return c.comparable() && !c.isText()
}

// pgLSN is the oid of pg_lsn, a position in the WAL.
const pgLSN = 3220
