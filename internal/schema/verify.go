package schema

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// Problem is one thing that is wrong with a table, and what mends it. Its fields are those of dedup.Problem.
type Problem struct{ Table, Kind, Message, Fix string }

// The kinds of problems; package dedup documents them.
const (
	missingTable  = "table missing"
	otherSchema   = "table in another schema"
	notATable     = "not a table"
	notOurs       = "not our table"
	notLogged     = "not logged"
	missingColumn = "column missing"
	columnType    = "column type"
	nullable      = "column nullable"
	collation     = "collation"
	generated     = "column generated"
	columnDefault = "column default"
	noConstraint  = "constraint missing"
	invalidIndex  = "index invalid"
	deferrable    = "constraint deferrable"
	partialIndex  = "index partial"
	exprIndex     = "index on an expression"
	moreColumns   = "index has more columns"
	otherUnique   = "other unique index"
	beforeTrigger = "trigger"
	afterTrigger  = "trigger after"
	ruleOn        = "rule"
	foreignKey    = "foreign key"
	inheritance   = "inheritance"

	otherConstraint = "other constraint"

	rowSecurity   = "row security"
	missingRights = "rights missing"
	otherLayout   = "layout"
	noPartition   = "partition missing"
	pendingDetach = "partition half detached"
	defaultPart   = "default partition"
	noCheck       = "check missing"
	unproven      = "check not validated"
	fewAhead      = "too few partitions ahead"

	shortRetention = "retention too short"
)

// keyColumns are the columns of the guarantee, in the order of the index that Migrate makes.
func (l Layout) keyColumns() []string {
	if l == Weekly {
		return []string{"key", "operation", "source", "bucket"}
	}
	return []string{"key", "operation", "source"}
}

type columnSpec struct{ name, kind, define string }

// columnTypes are the columns that the statements name.
func (l Layout) columnTypes() []columnSpec {
	if l == Weekly {
		return append(columnTypes, weeklyTypes...)
	}
	return columnTypes
}

var columnTypes = []columnSpec{
	{"source", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{"operation", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{"key", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{"processed_at", "timestamp with time zone", "pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()"},
	{"payload_hash", "bytea", "pg_catalog.bytea"},
	{"value", "bytea", "pg_catalog.bytea"},
	{"lease_until", "timestamp with time zone", "pg_catalog.timestamptz"},
	{"attempt", "integer", "integer NOT NULL DEFAULT 1"},
	{"failed", "boolean", "boolean NOT NULL DEFAULT false"},
	{"token", "bigint", "bigint"},
}

// Verify reads the catalog and returns what keeps the table from backing its keys, as the current role sees it.
func Verify(ctx context.Context, conn pg.Conn, t Table) ([]Problem, error) {
	f, err := lookUp(ctx, conn, t.Name)
	if err != nil {
		return nil, err
	}
	if problems := f.place(t); len(problems) > 0 {
		return problems, nil
	}
	v := verifier{table: f.here.name(t.Name.Table), layout: t.Layout, key: t.Layout.keyColumns()}
	var by partitioning
	var parts []partition
	if t.Layout != Plain {
		if by, parts, err = partitioningOf(ctx, conn, f.here.oid); err != nil {
			return nil, err
		}
		if !v.partitioned(by) {
			return v.problems, nil
		}
	}
	v.relation(f.here)

	cols, err := columns(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	if v.foreign(cols) {
		return v.problems, nil
	}
	v.columns(cols)
	v.defaults(cols)

	ixs, err := indexes(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	v.indexes(ixs, cols)

	if err := v.around(ctx, conn, f.here.oid); err != nil {
		return nil, err
	}
	if err := v.citus(ctx, conn, f.here.oid, t); err != nil {
		return nil, err
	}
	if t.Layout == Plain {
		return v.problems, nil
	}

	if t.Layout == Weekly {
		err = v.weekly(ctx, conn, f.here.oid, by, t)
	} else {
		v.hash(parts)
	}
	if err != nil {
		return nil, err
	}
	if err := v.partitions(ctx, conn, f.here.oid, parts); err != nil {
		return nil, err
	}
	err = v.pending(ctx, conn, f.here.oid, t.Retention)
	return v.problems, err
}

// place says what is wrong with where the table stands: nothing else can be said of a table that SQL would not take.
func (f *found) place(t Table) []Problem {
	name := t.Name
	v := verifier{table: name}
	switch {
	case f.here == nil && len(f.others) > 0:
		other := f.others[0].name(name.Table)
		v.report(otherSchema, fmt.Sprintf("the table is in schema %s, which is not on the search path; name it with its schema", pg.Quote(other.Schema)),
			"SET search_path = %s", pg.Quote(other.Schema))
	case f.here == nil:
		v.report(missingTable, "there is no such table", "%s", strings.TrimSpace(DDL(t)))
	case f.here.kind == "r" && t.Layout != Plain:
		v.report(otherLayout, "it is an ordinary table, which layout Plain is, and not one of layout "+t.Layout.String(),
			"-- give the table the layout that it has, or move its keys to a table of the other one")
	case f.here.kind == "p" && t.Layout == Plain:
		// Never a DROP: that it is another layout of ours is what it is most of the time, and it holds every key.
		v.report(notATable, "it is a partitioned table, which layout plain is not", "-- give the table the layout that it has, or move its keys to a table of the other one")
	case f.here.kind != "r" && f.here.kind != "p":
		v.report(notATable, "it is a view or a foreign table, which layout "+t.Layout.String()+" is not", "DROP %s %s",
			map[string]string{"v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE"}[f.here.kind], name.Quoted())
	case name.Schema == "" && f.here.path > 1:
		// A role or a program with another search path would make or take another table, with other keys.
		v.report(otherSchema, fmt.Sprintf("the name finds the table in schema %s, which is not the first of the search path: a table of that name in the first would hide it, with all its keys; name it with its schema", pg.Quote(f.here.schema)),
			"SET search_path = %s", pg.Quote(f.here.schema))
	case name.Schema == "":
		for _, o := range f.others {
			if o.path > 0 {
				v.report(otherSchema, fmt.Sprintf("the search path holds a second table of this name, in schema %s, with other keys; name the one that is meant with its schema", pg.Quote(o.schema)),
					"SET search_path = %s", pg.Quote(f.here.schema))
			}
		}
	}
	return v.problems
}

type verifier struct {
	table    pg.Name
	layout   Layout
	key      []string
	problems []Problem
}

func (v *verifier) report(kind, message, fix string, args ...any) {
	sql := strings.TrimSuffix(fmt.Sprintf(fix, args...), ";") + ";"
	v.problems = append(v.problems, Problem{Table: v.table.String(), Kind: kind, Message: message, Fix: sql})
}

func (v *verifier) alter(kind, message, action string, args ...any) {
	v.report(kind, message, "ALTER TABLE %s %s", v.table.Quoted(), fmt.Sprintf(action, args...))
}

func (v *verifier) relation(r *relation) {
	switch r.persistence {
	case "u":
		v.alter(notLogged, "the table is UNLOGGED: a crash of the server empties it, and every key runs again", "SET LOGGED")
	case "t":
		v.report(notLogged, "the table is temporary: its keys end with the session", "DROP TABLE %s", v.table.Quoted())
	}
	if !r.rights {
		v.report(missingRights, "the role "+pg.Quote(r.role)+" lacks a right on the table", "GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
			v.table.Quoted(), pg.Quote(r.role))
	}
	if r.rowSecurity {
		v.report(rowSecurity, "row security applies to the role "+pg.Quote(r.role)+": a key held by a row that it cannot see is neither insertable nor readable, and a policy for INSERT alone makes claims fail",
			"ALTER ROLE %s BYPASSRLS", pg.Quote(r.role))
	}
}

// foreign reports whether the table lacks a column of the key: it is another one of the same name. Nothing else is
// said of it, for what would make it ours would drop the constraint that it has.
func (v *verifier) foreign(cols map[string]column) bool {
	var lacks []string
	for _, name := range v.key {
		if _, ok := cols[name]; !ok {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) == 0 {
		return false
	}
	v.report(notOurs, "it is not a table of this library: it has no column "+strings.Join(lacks, ", ")+"; Migrate does not change it",
		"-- leave it as it is, give the Table another name, and move the keys: folder home_made of dedup/layouts has the SQL")
	return true
}

func (v *verifier) columns(cols map[string]column) {
	for _, want := range v.layout.columnTypes() {
		c, ok := cols[want.name]
		isKey := slices.Contains(v.key, want.name) || want.name == "event_time"
		switch {
		case !ok:
			v.alter(missingColumn, "the column "+want.name+" is missing", "ADD COLUMN %s %s", pg.Quote(want.name), want.define)
			continue
		case c.kind != want.kind:
			v.alter(columnType, fmt.Sprintf("the column %s is %s, not %s", want.name, c.kind, want.kind), "ALTER COLUMN %s TYPE %s", pg.Quote(want.name), want.kind)
			continue
		}
		if c.generated {
			v.alter(generated, "the column "+want.name+" is generated, and a claim cannot set it", "ALTER COLUMN %s DROP EXPRESSION", pg.Quote(want.name))
		}
		if isKey && !c.notNull {
			v.alter(nullable, "the column "+want.name+" may be NULL, and two NULLs are not equal to a unique index", "ALTER COLUMN %s SET NOT NULL", pg.Quote(want.name))
		}
		if isKey && c.kind == "text" && !bytewise(c.collation) {
			why := "whose order may change with the operating system, which breaks the index"
			if !c.deterministic {
				why = "which is not deterministic: it takes different keys for equal"
			}
			v.alter(collation, fmt.Sprintf("the column %s has the collation %s, %s", want.name, pg.Quote(c.collation), why),
				`ALTER COLUMN %s TYPE pg_catalog.text COLLATE pg_catalog."C"`, pg.Quote(want.name))
		}
	}
}

// bytewise reports whether the collation is one of PostgreSQL's own that compare bytes.
func bytewise(collation string) bool { return collation == "C" || collation == "POSIX" }

// claimDefaults are the defaults that claims rely on; the first is the DDL's, and the others say the same.
var claimDefaults = map[string][]string{
	"processed_at": {"now()", "CURRENT_TIMESTAMP", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"},
	"attempt":      {"1"},
	"failed":       {"false"},
}

// unqualified is an expression as the catalog prints it where nobody's schema or setting changes that.
func unqualified(expr string) string {
	return strings.NewReplacer(`"`, "", "pg_catalog.", "").Replace(expr)
}

// defaults looks at what a claim leaves to the table: three columns have a default, three must not, and there must be
// nothing else that has to be given.
func (v *verifier) defaults(cols map[string]column) {
	for _, name := range []string{"processed_at", "attempt", "failed"} {
		c, ok := cols[name]
		if ok && !c.notNull {
			v.alter(nullable, "the column "+name+" may be NULL, which no reader of the table expects", "ALTER COLUMN %s SET NOT NULL", pg.Quote(name))
		}
		want := claimDefaults[name]
		switch {
		case !ok || c.generated:
		case !c.hasDefault:
			v.alter(columnDefault, "the column "+name+" has no default, and a claim does not set it", "ALTER COLUMN %s SET DEFAULT %s", pg.Quote(name), pg.Pin(want[0]))
		case c.foreignDef || !slices.Contains(want, unqualified(c.def)):
			v.alter(columnDefault, "the default of the column "+name+" is not "+want[0]+": it would say of every claim what is not so", "ALTER COLUMN %s SET DEFAULT %s", pg.Quote(name), pg.Pin(want[0]))
		}
	}
	for _, name := range []string{"payload_hash", "value", "lease_until"} {
		if c := cols[name]; c.hasDefault {
			v.alter(columnDefault, "the column "+name+" has a default, which would say of every claim what is not so", "ALTER COLUMN %s DROP DEFAULT", pg.Quote(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cols)) {
		known := slices.ContainsFunc(v.layout.columnTypes(), func(want columnSpec) bool { return want.name == name })
		if c := cols[name]; !known && c.notNull && !c.hasDefault && !c.generated {
			v.alter(columnDefault, "the column "+pg.Quote(name)+" must be given, and a claim does not know it", "ALTER COLUMN %s DROP NOT NULL", pg.Quote(name))
		}
	}
}

// indexes looks for the index that is the guarantee, and says of every other unique one what it does.
func (v *verifier) indexes(ixs []*index, cols map[string]column) {
	// An index may compare by another collation than its column has. (A column's own is reported with the column.)
	astray := func(ix *index) bool {
		for i, c := range ix.columns {
			if cols[c].kind == "text" && bytewise(cols[c].collation) && !bytewise(ix.collations[i]) {
				return true
			}
		}
		return false
	}
	sound := false
	for _, ix := range ixs {
		if ix.on(v.key) && !astray(ix) && ix.valid && ix.ready && ix.immediate && !ix.partial {
			sound = true
		}
	}
	add := func(drop string) string {
		if sound {
			return drop
		}
		constraint := "ADD PRIMARY KEY (" + strings.Join(v.key, ", ") + ")"
		if drop == "" {
			return constraint
		}
		return drop + ", " + constraint
	}
	explained := sound
	for _, ix := range ixs {
		kind, message := "", ""
		switch {
		case !ix.covers(v.key) && !slices.Contains(ix.columns, ""):
			kind, message = otherUnique, "is unique on other columns: two different keys can clash there, and the second fails with 23505"
		case !ix.valid || !ix.ready:
			kind, message = invalidIndex, "is INVALID: a CREATE INDEX CONCURRENTLY failed, and it proves nothing"
		case !ix.immediate:
			kind, message = deferrable, "is DEFERRABLE: it cannot be the arbiter of ON CONFLICT, which fails with 55000"
		case ix.partial:
			kind, message = partialIndex, "has a WHERE: rows outside of it are not unique"
		case slices.Contains(ix.columns, ""):
			kind, message = exprIndex, "is on an expression, not on the columns themselves"
		case !ix.on(v.key):
			kind, message = moreColumns, "has a column besides "+strings.Join(v.key, ", ")+": one key can be there twice"
		case astray(ix):
			kind, message = collation, `compares by another collation than "C", which may change with the operating system, or take different keys for equal`
		default:
			continue
		}
		explained = explained || kind != otherUnique
		message = "the unique index " + pg.Quote(ix.name) + " " + message
		if ix.constraint != "" {
			drop := "DROP CONSTRAINT " + pg.Quote(ix.constraint)
			if kind != otherUnique {
				drop = add(drop)
			}
			v.alter(kind, message, "%s", drop)
			continue
		}
		drop := "DROP INDEX " + pg.Name{Schema: v.table.Schema, Table: ix.name}.Quoted()
		if !sound && kind != otherUnique {
			drop += "; ALTER TABLE " + v.table.Quoted() + " " + add("")
		}
		v.report(kind, message, "%s", drop)
	}
	if !explained {
		v.alter(noConstraint, "there is no unique constraint on "+strings.Join(v.key, ", ")+": nothing keeps a key from being there twice", "%s", add(""))
	}
}
