package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// Problem is one thing that is wrong with a table, and the statement that fixes it. Its fields are those of
// dedup.Problem.
type Problem struct{ Table, Kind, Message, Fix string }

// The kinds of problems; package inbox documents them.
const (
	missingTable  = "table missing"
	notOurs       = "not our table"
	notLogged     = "not logged"
	missingColumn = "column missing"
	columnType    = "column type"
	noConstraint  = "constraint missing"
	otherUnique   = "other unique index"
	missingIndex  = "index missing"
	noOrder       = "numbers out of order"
	trigger       = "trigger"
	rowSecurity   = "row security"
	missingRights = "rights missing"
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

	// The columns of each index that is usable. An expression has none. constraint: it checks each row at once, for all
	// rows.
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

// CatalogTexts returns every statement on the catalog, for tests that prepare them on a server.
func CatalogTexts() []string {
	return []string{migrateLockSQL, relationSQL, columnsSQL, indexesSQL, aroundSQL}
}

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

// column is the type, whether it is NOT NULL, and the collation.
type column struct {
	kind      string
	notNull   bool
	collation string
}

// columns are those that the statements name.
func columns() map[string]column {
	const moment = "timestamp with time zone"
	return map[string]column{
		"source": {"text", true, "C"}, "operation": {"text", true, "C"}, "message_id": {"text", true, "C"},
		"seq": {"bigint", true, ""}, "key": {"text", true, "C"}, "headers": {"json", false, ""}, "body": {"bytea", false, ""},
		"received_at": {moment, true, ""}, "state": {"smallint", true, ""}, "due_at": {moment, false, ""},
		"attempt": {"integer", true, ""}, "token": {"bigint", false, ""}, "error_class": {"text", false, "C"},
		"last_error": {"text", false, "default"}, "finished_at": {moment, false, ""},
	}
}

// Verify reads the catalog and returns what keeps the table from being an inbox, as the current role sees it.
func Verify(ctx context.Context, conn pg.Conn, name pg.Name) ([]Problem, error) {
	v := verifier{conn: conn, name: name}
	r, err := lookUp(ctx, conn, name)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		v.report(missingTable, "there is no such table", DDL(name))
		return v.problems, nil
	case r.kind != "r":
		v.report(notOurs, "it is a view, or a foreign or partitioned table", "-- give the inbox another name")
		return v.problems, nil
	}
	spread, err := schema.Alone(ctx, conn, r.oid, "a failure in between keeps a handler's writes, and the message is handled again")
	if err != nil {
		return nil, err
	}
	for _, p := range spread {
		v.report(p.Kind, p.Message, p.Fix)
	}
	quoted := name.Quoted()
	if r.persistence != "p" {
		v.report(notLogged, "a crash of the server, or the end of the session, empties the table",
			"ALTER TABLE "+quoted+" SET LOGGED;")
	}
	if !r.rights {
		v.report(missingRights, "the current role lacks a right on the table",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON "+quoted+" TO CURRENT_USER;")
	}
	if r.rowSecurity {
		v.report(rowSecurity, "row security applies to the current role: what it cannot see is never handled",
			"ALTER ROLE CURRENT_USER BYPASSRLS;")
	}
	whole, err := v.columns(ctx, r.oid)
	if err != nil || !whole {
		return v.problems, err
	}
	if err := v.indexes(ctx, r.oid); err != nil {
		return nil, err
	}
	return v.problems, v.around(ctx, r.oid)
}

// server reports a server that is not PostgreSQL, see [schema.Server].
func server(ctx context.Context, conn pg.Conn) (problems []Problem, err error) {
	found, err := schema.Server(ctx, conn)
	for _, p := range found {
		problems = append(problems, Problem(p))
	}
	return problems, err
}

type verifier struct {
	conn     pg.Conn
	name     pg.Name
	problems []Problem
}

func (v *verifier) report(kind, message, fix string) {
	v.problems = append(v.problems, Problem{v.name.String(), kind, message, fix})
}

func (v *verifier) columns(ctx context.Context, oid int64) (whole bool, err error) {
	have := map[string]column{}
	err = v.conn.Query(ctx, columnsSQL, []any{oid}, func(scan func(...any) error) error {
		var name string
		var c column
		err := scan(&name, &c.kind, &c.notNull, &c.collation)
		have[name] = c
		return err
	})
	if err != nil {
		return false, fmt.Errorf("read the catalog's columns: %w", err)
	}
	whole = true
	want := columns()
	for _, col := range slices.Sorted(maps.Keys(want)) {
		switch c, ok := have[col]; {
		case !ok:
			whole = false
			v.report(missingColumn, "the column "+col+" is missing", "-- compare it with the statements of Table.DDL")
		case c != want[col]:
			v.report(columnType, "the column "+col+" has another type, collation or NOT NULL",
				"-- compare it with the statements of Table.DDL")
		}
	}
	return whole, nil
}

func (v *verifier) indexes(ctx context.Context, oid int64) error {
	have := map[string]bool{}
	key := false
	var others []string
	err := v.conn.Query(ctx, indexesSQL, []any{oid}, func(scan func(...any) error) error {
		var cols, where string
		var unique, constraint bool
		err := scan(&cols, &unique, &constraint, &where)
		names := strings.Split(cols, ",")
		slices.Sort(names)
		switch own := slices.Equal(names, []string{"message_id", "operation", "source"}); {
		case own && constraint:
			key = true
		case unique && cols != "seq":
			others = append(others, cols)
		}
		have[signature(cols, where)] = true
		return err
	})
	if err != nil {
		return fmt.Errorf("read the catalog's indexes: %w", err)
	}
	quoted := v.name.Quoted()
	if !key {
		v.report(noConstraint, "no valid unique index is on message_id, operation and source, and on nothing else: "+
			"messages that come again are handled again",
			"ALTER TABLE "+quoted+" ADD PRIMARY KEY (message_id, operation, source);")
	}
	for _, cols := range others {
		v.report(otherUnique, "another unique index ("+cols+") refuses messages that are new",
			"-- drop it, or its constraint")
	}
	for _, line := range strings.Split(DDL(v.name), ";\n") {
		// The columns stand behind the table, in parentheses.
		_, on, found := strings.Cut(line, "CREATE INDEX IF NOT EXISTS ")
		if !found {
			continue
		}
		_, cols, _ := strings.Cut(on, " ON "+quoted+" (")
		cols, where, _ := strings.Cut(cols, ")")
		if !have[signature(cols, where)] {
			v.report(missingIndex, "there is no valid index on ("+cols+"): a statement reads the whole table",
				"CREATE INDEX IF NOT EXISTS "+on+";")
		}
	}
	return nil
}

// signature tells the indexes apart: by their columns, and those that their condition names.
func signature(cols, where string) string {
	s := strings.ReplaceAll(cols, " ", "")
	for _, col := range []string{"finished_at", "due_at", "token", "body", "key"} {
		if strings.Contains(where, col) {
			s += " " + col
		}
	}
	return s
}

func (v *verifier) around(ctx context.Context, oid int64) error {
	var others, sequences int64
	err := v.conn.Send(ctx, &pg.Stmt{SQL: aroundSQL, Args: []any{oid}, Dest: []any{&others, &sequences}})
	if err != nil {
		return fmt.Errorf("read what is attached to the table: %w", err)
	}
	if others > 0 {
		v.report(trigger, "a trigger or a rule is on the table: it may drop or change messages",
			"-- drop it, where it does more than to write elsewhere")
	}
	if sequences != 1 {
		v.report(noOrder, "the column seq is no ascending identity with CACHE 1: "+
			"the messages of one key may be handled out of order",
			"ALTER TABLE "+v.name.Quoted()+" ALTER COLUMN seq SET CACHE 1 SET NO CYCLE;")
	}
	return nil
}
