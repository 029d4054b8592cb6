package outbox

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

// The kinds of problems; package outbox documents them.
const (
	missingTable  = "table missing"
	notOurs       = "not our table"
	notLogged     = "not logged"
	missingColumn = "column missing"
	columnType    = "column type"
	missingIndex  = "index missing"
	noOrder       = "numbers out of order"
	missingLane   = "lane missing"
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

	// The columns of each index that is usable, with what is true of all its rows.
	indexesSQL = pg.Pin(`
SELECT string_agg(a.attname::text, ',' ORDER BY k.ord), ix.indisunique AND ix.indimmediate,
       coalesce(pg_get_expr(ix.indpred, ix.indrelid), '')
  FROM pg_catalog.pg_index AS ix
 CROSS JOIN LATERAL unnest(ix.indkey::int2[]) WITH ORDINALITY AS k (attnum, ord)
  JOIN pg_catalog.pg_attribute AS a ON a.attrelid = ix.indrelid AND a.attnum = k.attnum
 WHERE ix.indrelid = $1::int8::oid AND ix.indisvalid AND ix.indisready AND k.ord <= ix.indnkeyatts
 GROUP BY ix.indexrelid, ix.indisunique, ix.indimmediate, ix.indpred, ix.indrelid`)

	aroundSQL = pg.Pin(`
SELECT (SELECT count(*) FROM pg_catalog.pg_trigger AS t
         WHERE t.tgrelid = $1::int8::oid AND NOT t.tgisinternal AND t.tgenabled <> 'D')
     + (SELECT count(*) FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = $1::int8::oid AND r.rulename <> '_RETURN'),
       (SELECT count(*) FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = d.objid
         WHERE d.refobjid = $1::int8::oid AND d.deptype = 'i' AND s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle)`)

	// How far the sequence is behind the rows, where the role may know.
	behindSQL = pg.Pin(`
SELECT coalesce(max(f.seq) - max(CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                                      THEN coalesce(pg_sequence_last_value(s.seqrelid), 0) ELSE 9223372036854775807 END), 0)
  FROM pg_catalog.pg_depend AS d
  JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = d.objid
 CROSS JOIN generate_series(-32, 31) AS g (lane)
 CROSS JOIN LATERAL (SELECT o.seq FROM /*table*/outbox AS o WHERE o.lane = g.lane ORDER BY o.seq DESC LIMIT 1) AS f
 WHERE d.refobjid = $1::int8::oid AND d.deptype = 'i'`)

	countLanesSQL = pg.Pin(`SELECT count(*) FROM /*lanes*/outbox_lanes WHERE lane >= 0 AND lane < 32`)
)

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

// columns are those that the statements name: the type, whether it is NOT NULL, and the collation.
type column struct {
	kind      string
	notNull   bool
	collation string
}

var (
	wantEvents = map[string]column{
		"lane": {"smallint", true, ""}, "seq": {"bigint", true, ""}, "id": {"uuid", true, ""}, "topic": {"text", true, "C"},
		"key": {"text", true, "C"}, "headers": {"jsonb", false, ""}, "payload": {"bytea", true, ""},
		"appended_at": {"timestamp with time zone", true, ""}, "attempts": {"integer", true, ""},
		"retry_at": {"timestamp with time zone", false, ""}, "last_error": {"text", false, "default"},
	}
	wantLanes = map[string]column{
		"lane": {"smallint", true, ""}, "token": {"bigint", true, ""}, "lease_until": {"timestamp with time zone", true, ""},
	}
)

// Verify reads the catalog and returns what keeps the two tables from being an outbox, as the current role sees them.
func Verify(ctx context.Context, conn pg.Conn, name pg.Name) ([]Problem, error) {
	if problems, err := server(ctx, conn); err != nil || len(problems) > 0 {
		return problems, err
	}
	v := verifier{conn: conn}
	events, err := v.table(ctx, name, name, wantEvents)
	if err != nil || events == nil {
		return v.problems, err
	}
	for _, t := range []pg.Name{name, lanesOf(name)} {
		if on, err := v.alone(ctx, t); err != nil || on {
			return v.problems, err
		}
	}
	if err := v.events(ctx, name, events.oid); err != nil {
		return nil, err
	}
	lanes, err := v.table(ctx, name, lanesOf(name), wantLanes)
	if err != nil || lanes == nil {
		return v.problems, err
	}
	var n int64
	if err := conn.Send(ctx, &pg.Stmt{SQL: render(name, countLanesSQL), Dest: []any{&n}}); err != nil {
		return nil, fmt.Errorf("count the lanes: %w", err)
	}
	if n != Lanes {
		v.report(lanesOf(name), missingLane, fmt.Sprintf("%d of the %d lanes have no row: their events are never published",
			Lanes-n, Lanes),
			"INSERT INTO "+lanesOf(name).Quoted()+" (lane) SELECT g FROM generate_series(0, 31) AS g ON CONFLICT DO NOTHING;")
	}
	return v.problems, nil
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
	problems []Problem
}

func (v *verifier) report(table pg.Name, kind, message, fix string) {
	v.problems = append(v.problems, Problem{table.String(), kind, message, fix})
}

// table returns nil where nothing more can be asked.
func (v *verifier) table(ctx context.Context, outbox, name pg.Name, want map[string]column) (*relation, error) {
	r, err := lookUp(ctx, v.conn, name)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		v.report(name, missingTable, "there is no such table", DDL(outbox))
		return nil, nil
	case r.kind != "r":
		v.report(name, notOurs, "it is a view, or a foreign or partitioned table", "-- give the outbox another name")
		return nil, nil
	}
	if r.persistence != "p" {
		v.report(name, notLogged, "a crash of the server, or the end of the session, empties the table",
			"ALTER TABLE "+name.Quoted()+" SET LOGGED;")
	}
	if !r.rights {
		v.report(name, missingRights, "the current role lacks a right on the table",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON "+name.Quoted()+" TO CURRENT_USER;")
	}
	if r.rowSecurity {
		v.report(name, rowSecurity, "row security applies to the current role: what it cannot see is never published",
			"ALTER ROLE CURRENT_USER BYPASSRLS;")
	}
	have := map[string]column{}
	err = v.conn.Query(ctx, columnsSQL, []any{r.oid}, func(scan func(...any) error) error {
		var name string
		var c column
		err := scan(&name, &c.kind, &c.notNull, &c.collation)
		have[name] = c
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's columns: %w", err)
	}
	whole := true
	for _, col := range slices.Sorted(maps.Keys(want)) {
		switch c, ok := have[col]; {
		case !ok:
			whole = false
			v.report(name, missingColumn, "the column "+col+" is missing",
				"-- compare it with the statements of Table.DDL")
		case c != want[col]:
			v.report(name, columnType, "the column "+col+" has another type, collation or NOT NULL",
				"-- compare it with the statements of Table.DDL")
		}
	}
	if !whole {
		return nil, nil
	}
	return r, nil
}

// alone reports whether a table does not do on Citus, where the server has it.
func (v *verifier) alone(ctx context.Context, name pg.Name) (bool, error) {
	r, err := lookUp(ctx, v.conn, name)
	if err != nil || r == nil {
		return false, err
	}
	found, err := schema.Alone(ctx, v.conn, r.oid, "a failure in between keeps a change, and its event is never published")
	for _, p := range found {
		v.report(name, p.Kind, p.Message, p.Fix)
	}
	return len(found) > 0, err
}

// events checks what holds of the table of events alone.
func (v *verifier) events(ctx context.Context, name pg.Name, oid int64) error {
	var key, held, due bool
	err := v.conn.Query(ctx, indexesSQL, []any{oid}, func(scan func(...any) error) error {
		var cols, where string
		var unique bool
		err := scan(&cols, &unique, &where)
		key = key || cols == "lane,seq" && unique && where == ""
		held = held || cols == "lane,key,seq"
		due = due || cols == "lane,retry_at"
		return err
	})
	if err != nil {
		return fmt.Errorf("read the catalog's indexes: %w", err)
	}
	for _, ix := range []struct {
		there     bool
		what, fix string
	}{
		{key, "(lane, seq), which is unique", "ALTER TABLE " + name.Quoted() + " ADD PRIMARY KEY (lane, seq);"},
		{held, "(lane, key, seq)", "CREATE INDEX ON " + name.Quoted() + " (lane, key, seq) WHERE lane < 0;"},
		{due, "(lane, retry_at)", "CREATE INDEX ON " + name.Quoted() + " (lane, retry_at) WHERE lane < 0 AND retry_at IS NOT NULL;"},
	} {
		if !ix.there {
			v.report(name, missingIndex, "there is no valid index on "+ix.what+": a claim reads the whole table", ix.fix)
		}
	}
	var others, sequences int64
	if err := v.conn.Send(ctx, &pg.Stmt{SQL: aroundSQL, Args: []any{oid}, Dest: []any{&others, &sequences}}); err != nil {
		return fmt.Errorf("read what is attached to the table: %w", err)
	}
	if others > 0 {
		v.report(name, trigger, "a trigger or a rule is on the table: it may drop or change events",
			"-- drop it, where it does more than to write elsewhere")
	}
	if sequences != 1 {
		v.report(name, noOrder, "the column seq is no ascending identity with CACHE 1: the events of one key may be published out of order",
			"ALTER TABLE "+name.Quoted()+" ALTER COLUMN seq SET CACHE 1 SET NO CYCLE;")
	}
	var late int64
	s := &pg.Stmt{SQL: render(name, behindSQL), Args: []any{oid}, Dest: []any{&late}}
	if err := v.conn.Send(ctx, s); err != nil {
		return fmt.Errorf("compare the sequence with the rows: %w", err)
	}
	if late > 0 {
		v.report(name, noOrder, "the sequence of the column seq is behind the rows: what is appended now comes before them",
			fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%s', 'seq'), (SELECT max(seq) FROM %s));",
				strings.ReplaceAll(name.Quoted(), "'", "''"), name.Quoted()))
	}
	return nil
}

// CatalogTexts returns every statement on the catalog, for tests that prepare them on a server.
func CatalogTexts() []string {
	return []string{lockSQL, relationSQL, columnsSQL, indexesSQL, aroundSQL}
}
