package idemtest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
)

// ownSchema holds what the kit keeps inside of a copy.
const ownSchema = "idemtest"

const listTables = `
SELECT c.oid::bigint, n.nspname::text, c.relname::text, pg_table_is_visible(c.oid),
	coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
	AND n.nspname NOT IN ('information_schema', 'idemtest') AND n.nspname !~ '^pg_'
	AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY 2, 3`

// listColumns says of each column whether its value can differ from run to run, by its default. The functions that a
// default calls are in its expression tree; pg_depend does not tell of those that come with PostgreSQL.
const listColumns = `
SELECT a.attrelid::bigint, a.attname::text, a.attgenerated <> '', a.atttypid = 'json'::regtype,
	a.attidentity <> '' OR a.attgenerated <> '' OR coalesce(
		d.adbin::text ~ '\{(SQLVALUEFUNCTION|NEXTVALUEEXPR)' OR EXISTS (
			SELECT FROM regexp_matches(d.adbin::text, ':(?:funcid|opfuncid) (\d+)', 'g') AS f (id)
			JOIN pg_proc p ON p.oid = f.id[1]::oid
			WHERE p.provolatile <> 'i'), false)
FROM pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY ($1::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum`

const listSequences = `SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences WHERE schemaname <> 'idemtest' ORDER BY 1`

// column is a column of a user's table.
type column struct {
	name      string
	generated bool
	json      bool // its text is kept as it was written, blanks included
	volatile  bool // not compared
}

// userTable is a table that the handler may write to.
type userTable struct {
	oid      int64
	schema   string
	name     string
	visible  bool // found without its schema
	compared bool
	dedup    bool
	inbox    bool
	comment  string
	columns  []column
}

func (t *userTable) sql() string { return pg.Quote(t.schema) + "." + pg.Quote(t.name) }

// String returns the name that a person would use.
func (t *userTable) String() string {
	if t.visible {
		return t.name
	}
	return t.schema + "." + t.name
}

// is says whether a user's word means this table.
func (t *userTable) is(name pg.Name) bool {
	return name.Table == t.name && (name.Schema == t.schema || name.Schema == "" && t.visible)
}

func (t *userTable) column(name string) *column {
	for i := range t.columns {
		if t.columns[i].name == name {
			return &t.columns[i]
		}
	}
	return nil
}

// columnList returns the quoted names of the columns that pass.
func (t *userTable) columnList(pass func(column) bool) string {
	var names []string
	for _, c := range t.columns {
		if pass(c) {
			names = append(names, pg.Quote(c.name))
		}
	}
	return strings.Join(names, ", ")
}

// comparedList returns the quoted names of the columns to compare. A json column is read as text: the blanks around
// it would else be taken for those of the row.
func (t *userTable) comparedList() string {
	var names []string
	for _, c := range t.columns {
		switch name := pg.Quote(c.name); {
		case c.volatile:
		case c.json:
			names = append(names, name+"::text AS "+name)
		default:
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func written(c column) bool { return !c.generated }

func isKey(c column) bool { return slices.Contains(keyColumns, c.name) }

// catalog is what there is in the user's database.
type catalog struct {
	tables    []*userTable
	sequences []string // quoted
}

// readCatalog reads the tables of a database; tables, ignore and dedup are the fields of the Kit.
func readCatalog(
	ctx context.Context, pool *pgxpool.Pool, tables, ignore []string, dedups []dedup.Table,
) (*catalog, error) {
	cat := &catalog{}
	byOID := map[int64]*userTable{}
	var oids []int64
	rows, err := pool.Query(ctx, listTables)
	if err != nil {
		return nil, err
	}
	var t userTable
	if _, err := pgx.ForEachRow(rows, []any{&t.oid, &t.schema, &t.name, &t.visible, &t.comment}, func() error {
		found := t
		cat.tables = append(cat.tables, &found)
		byOID[t.oid] = &found
		oids = append(oids, t.oid)
		return nil
	}); err != nil {
		return nil, err
	}
	if rows, err = pool.Query(ctx, listColumns, oids); err != nil {
		return nil, err
	}
	var oid int64
	var c column
	if _, err := pgx.ForEachRow(rows, []any{&oid, &c.name, &c.generated, &c.json, &c.volatile}, func() error {
		byOID[oid].columns = append(byOID[oid].columns, c)
		return nil
	}); err != nil {
		return nil, err
	}
	if rows, err = pool.Query(ctx, listSequences); err != nil {
		return nil, err
	}
	if cat.sequences, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, err
	}
	return cat, cat.choose(tables, ignore, dedups)
}

// choose marks what is to be compared.
func (cat *catalog) choose(tables, ignore []string, dedups []dedup.Table) error {
	for _, t := range cat.tables {
		t.compared = len(tables) == 0
		t.markOwn()
	}
	for _, text := range tables {
		t, err := cat.find(text)
		if err != nil {
			return fmt.Errorf("Kit.Tables: %w", err)
		}
		t.compared = true
	}
	if len(dedups) == 0 {
		// A table of the user's own can have that name, too.
		if t, err := cat.find(dedupName(dedup.Table{})); err == nil && t.hasKey() {
			t.markDedup()
		}
	}
	for _, d := range dedups {
		t, err := cat.find(dedupName(d))
		if err != nil {
			return fmt.Errorf("Kit.Dedup: %w", err)
		}
		t.markDedup()
	}
	for _, text := range ignore {
		i := strings.LastIndexByte(text, '.')
		if i < 0 {
			return fmt.Errorf("Kit.Ignore: %q is not of the form table.column", text)
		}
		t, err := cat.find(text[:i])
		if err != nil {
			return fmt.Errorf("Kit.Ignore: %w", err)
		}
		c := t.column(text[i+1:])
		if c == nil {
			return fmt.Errorf("Kit.Ignore: the table %v has no column %s", t, text[i+1:])
		}
		c.volatile = true
	}
	return nil
}

// markDedup leaves of a table of package dedup what makes the key: attempts and times differ from run to run, and are
// the library's own business.
func (t *userTable) markDedup() {
	t.dedup = true
	for i := range t.columns {
		t.columns[i].volatile = !isKey(t.columns[i])
	}
}

// keyColumns make a key in a table of package dedup.
var keyColumns = []string{"source", "operation", "key"}

// hasKey says whether the table has the columns of a key.
func (t *userTable) hasKey() bool {
	for _, name := range keyColumns {
		if t.column(name) == nil {
			return false
		}
	}
	return true
}

func dedupName(t dedup.Table) string {
	if t.Name == "" {
		return pg.DefaultTable
	}
	return t.Name
}

func (cat *catalog) find(text string) (*userTable, error) {
	name, err := pg.ParseName(text)
	if err != nil {
		return nil, err
	}
	if t := cat.named(name); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("there is no table %s", text)
}

// named returns the table of that name, or nil.
func (cat *catalog) named(name pg.Name) *userTable {
	for _, t := range cat.tables {
		if t.is(name) {
			return t
		}
	}
	return nil
}
