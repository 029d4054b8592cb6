package schema

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// Spread says by what Citus spreads a table over its nodes, as in package dedup.
type Spread string

// The ways to spread a table.
const (
	Unspread       Spread = ""
	SpreadByKey    Spread = "key"
	SpreadBySource Spread = "source"
	SpreadBySchema Spread = "schema"
)

// Known reports whether s is one of them.
func (s Spread) Known() bool {
	return s == Unspread || s == SpreadByKey || s == SpreadBySource || s == SpreadBySchema
}

func (s Spread) column() string {
	if s == SpreadBySchema {
		return ""
	}
	return string(s)
}

// The files are valid SQL as they stand.
var (
	//go:embed sql/spread_by_column.sql
	spreadByColumn string
	//go:embed sql/spread_leaves.sql
	spreadLeaves string
	//go:embed sql/spread_schema.sql
	spreadSchema string
)

// spreading returns the statements that spread the table; "": none.
func (t Table) spreading() string {
	fill := strings.NewReplacer(
		"/*name*/'processed_events'", literal(t.Name.Quoted()), "/*column*/'key'", literal(t.Spread.column()),
		"/*schema*/'app'", literal(t.Name.Schema))
	switch {
	case t.Spread == SpreadBySchema:
		return fill.Replace(pg.Pin(spreadSchema))
	case t.Spread.column() == "":
		return ""
	case t.Layout == Plain:
		return fill.Replace(pg.Pin(spreadByColumn))
	}
	return fill.Replace(pg.Pin(spreadByColumn + spreadLeaves))
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// spread spreads a new table.
func spread(ctx context.Context, tx pg.Conn, t Table) error {
	sql := t.spreading()
	if sql == "" {
		return nil
	}
	if err := run(ctx, tx, sql); err != nil {
		return fmt.Errorf("spread it over the nodes of Citus: %w", err)
	}
	return nil
}

// The kinds of problems with Citus.
const (
	notSpread       = "not spread"
	referenceTable  = "reference table"
	byStatements    = "replicated by statements"
	otherColocation = "colocation"
	localTable      = "local table"
	isSpread        = "spread"
)

// citusSQL tells whether the extension is there. Its catalog cannot be named where it is not.
var citusSQL = pg.Pin(`SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL`)

// shapeSQL says how Citus has the table $1, and whether it has others. A table of repmodel c is written by the
// coordinator, to each copy of a shard in turn. Of a group whose collation is not the column's, see
// spread_by_column.sql.
var shapeSQL = pg.Pin(`
SELECT CASE WHEN p.partmethod IS NULL THEN 'local'
            WHEN p.partmethod::text = 'h' THEN 'shards'
            WHEN p.repmodel::text = 't' THEN 'reference'
            WHEN p.colocationid = 0 THEN 'managed'
            ELSE 'single' END,
       coalesce(a.attname::text, ''), coalesce(p.repmodel::text = 'c', false),
       coalesce(g.distributioncolumncollation <> a.attcollation, false),
       EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS o WHERE o.colocationid <> 0)
  FROM pg_catalog.pg_class AS c
  LEFT JOIN pg_catalog.pg_dist_partition AS p ON p.logicalrelid::oid = c.oid
  LEFT JOIN pg_catalog.pg_attribute AS a
    ON a.attrelid = c.oid AND p.partkey IS NOT NULL AND a.attname::text = column_to_column_name(c.oid::regclass, p.partkey)
  LEFT JOIN pg_catalog.pg_dist_colocation AS g ON g.colocationid = p.colocationid
 WHERE c.oid = $1::int8::oid`)

// OnCitus reports whether Citus knows the table.
func OnCitus(ctx context.Context, conn pg.Conn, oid int64) (bool, error) {
	var there bool
	if err := conn.Send(ctx, &pg.Stmt{SQL: citusSQL, Dest: []any{&there}}); err != nil || !there {
		return false, err
	}
	var s shape
	err := conn.Send(ctx, shapeStmt(oid, &s))
	return s.kind != "local", err
}

// Limits bound the waits of a transaction for locks, on the workers of Citus, too.
func Limits() []*pg.Stmt {
	return []*pg.Stmt{
		{SQL: "SET LOCAL citus.propagate_set_commands = 'local'"},
		{SQL: "SET LOCAL lock_timeout = '" + lockTimeout + "'"},
	}
}

// limitOnCitus sets the limits where the table is one of Citus. To attach a partition, Citus locks the indexes of all
// of them. It waits for every open claim, and claims wait behind it.
func limitOnCitus(ctx context.Context, tx pg.Conn, oid int64) error {
	on, err := OnCitus(ctx, tx, oid)
	if err != nil || !on {
		return err
	}
	return tx.Send(ctx, Limits()...)
}

func shapeStmt(oid int64, s *shape) *pg.Stmt {
	return &pg.Stmt{SQL: shapeSQL, Args: []any{oid}, Dest: []any{&s.kind, &s.column, &s.statements, &s.astray, &s.others}}
}

// localsSQL lists the tables of this node of which Citus does not know, but not those of extensions, nor shards.
var localsSQL = pg.Pin(`
SELECT n.nspname::text, c.relname::text
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't' AND c.oid >= 16384::oid
   AND n.nspname <> 'information_schema' AND n.nspname <> 'pg_catalog'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid::oid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d
                    WHERE d.classid = 'pg_catalog.pg_class'::regclass::oid AND d.objid = c.oid AND d.deptype = 'e')
   AND NOT relation_is_a_known_shard(c.oid::regclass)
 ORDER BY 1, 2`)

type shape struct {
	kind, column       string
	statements, astray bool
	others             bool // there are tables in shards
}

// citus reports how the table lies on the nodes of Citus, and what lies beside it.
func (v *verifier) citus(ctx context.Context, conn pg.Conn, oid int64, t Table) error {
	var there bool
	if err := conn.Send(ctx, &pg.Stmt{SQL: citusSQL, Dest: []any{&there}}); err != nil {
		return fmt.Errorf("ask for Citus: %w", err)
	}
	if !there {
		if t.Spread != Unspread {
			v.report(notSpread, "the server has not the extension Citus, by which the Table is to be spread",
				"CREATE EXTENSION citus")
		}
		return nil
	}
	var s shape
	if err := conn.Send(ctx, shapeStmt(oid, &s)); err != nil {
		return fmt.Errorf("ask Citus for the table: %w", err)
	}
	t.Name = v.table
	v.shape(t, s)
	if s.kind == "local" || s.kind == "managed" {
		return nil
	}
	err := conn.Query(ctx, localsSQL, nil, func(scan func(...any) error) error {
		var beside pg.Name
		if err := scan(&beside.Schema, &beside.Table); err != nil {
			return err
		}
		v.report(localTable, "the table "+beside.String()+" is one of this node alone, of which Citus does not know: of a "+
			"transaction that writes to it and to shards, Citus commits the shards first, so that a failure in between keeps "+
			"a key and loses its effect",
			"SELECT citus_add_local_table_to_metadata(%s)", literal(beside.Quoted()))
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the tables beside those of Citus: %w", err)
	}
	return nil
}

func (v *verifier) shape(t Table, s shape) {
	name := literal(v.table.Quoted())
	again := t
	if again.Spread == Unspread {
		again.Spread = SpreadByKey
	}
	anew := "SELECT undistribute_table(" + name + ");\n" + uncommented(again.spreading())
	switch {
	case t.Spread == Unspread && s.kind == "local" && s.others:
		v.report(notSpread, "the table is one of this node alone, beside tables in shards: Citus commits the shards first, "+
			"so that "+
			"a failure in between keeps an effect and loses its key, and the effect happens twice",
			"SELECT citus_add_local_table_to_metadata(%s)", name)
	case s.kind == "reference":
		v.report(referenceTable, "the table is a reference table, with a copy on each node: Citus lets one claim in at a time, "+
			"of other keys too", "%s", anew)
	case t.Spread != Unspread && s.kind == "local":
		v.report(notSpread, "the table is one of this node alone, and not spread as the Table says", "%s",
			uncommented(t.spreading()))
	case t.Spread != Unspread && (s.column != t.Spread.column() || s.kind == "managed"):
		v.report(notSpread, "the table is spread in another way than the Table says", "%s", anew)
	}
	if s.statements {
		v.report(byStatements, "each shard of the table has copies, to which Citus sends every statement in turn: a "+
			"claim's clock, "+
			"and what it meets, may differ between them", "%s",
			strings.Replace(anew, ";\n", ";\nSET citus.shard_replication_factor = 1;\n", 1))
	}
	if s.astray {
		v.report(otherColocation, "Citus has noted another collation for the table's group than its column has: "+
			"it then puts the next table by a text into that group, and refuses it",
			"SELECT update_distributed_table_colocation(%s, 'none')", name)
	}
}

// uncommented is sql without the lines of comment before and between its statements.
func uncommented(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}
