package schema

import (
	"context"
	"fmt"
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
	replicaIdentity = "replica identity"
	notPublished    = "not published"

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

// columnSpec is a column: its type as SQL has it and as the catalog has it, and how it is defined.
type columnSpec struct{ name, kind, typname, define string }

// columnTypes are the columns that the statements name.
func (l Layout) columnTypes() []columnSpec {
	if l == Weekly {
		return append(columnTypes, weeklyTypes...)
	}
	return columnTypes
}

var columnTypes = []columnSpec{
	{"source", "text", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{"operation", "text", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{"key", "text", "text", `pg_catalog.text COLLATE pg_catalog."C" NOT NULL`},
	{
		"processed_at", "timestamp with time zone", "timestamptz",
		"pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()",
	},
	{"payload_hash", "bytea", "bytea", "pg_catalog.bytea"},
	{"value", "bytea", "bytea", "pg_catalog.bytea"},
	{"lease_until", "timestamp with time zone", "timestamptz", "pg_catalog.timestamptz"},
	{"attempt", "integer", "int4", "integer NOT NULL DEFAULT 1"},
	{"failed", "boolean", "bool", "boolean NOT NULL DEFAULT false"},
	{"token", "bigint", "int8", "bigint"},
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
	ixs, err := indexes(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	if v.foreign(cols, ixs, f.here.version()) {
		return v.problems, nil
	}
	attached, err := around(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	found, err := checks(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	copied, err := replication(ctx, conn, f.here.oid)
	if err != nil {
		return nil, err
	}
	// In the order in which the fixes can be run: a foreign key stands on an index that may have to go, a column that
	// claims do not know may be part of one, and an EXCLUDE constraint may be all that keeps a key unique.
	v.columns(cols, ixs)
	v.defaults(cols)
	v.attached(attached, true)
	v.indexes(ixs, cols)
	v.strangers(cols)
	v.attached(attached, false)
	v.checks(found, t)
	v.replication(copied)
	if err := v.citus(ctx, conn, f.here.oid, t); err != nil {
		return nil, err
	}
	if t.Layout == Plain {
		return v.problems, nil
	}

	if t.Layout == Weekly {
		err = v.weekly(ctx, conn, f.here.oid, by, t, found)
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
		v.report(otherSchema, fmt.Sprintf("the table is in schema %s, which is not on the search path; name it with "+
			"its schema", pg.Quote(other.Schema)),
			"SET search_path = %s", pg.Quote(other.Schema))
	case f.here == nil:
		v.report(missingTable, "there is no such table", "%s", strings.TrimSpace(DDL(t)))
	case f.here.persistence == "t" && f.here.kind != "v":
		v.report(notLogged, "the table is temporary: its keys end with the session, and no other session sees them",
			"-- name the table with its schema; where there is none but this one, make it by Migrate")
	case f.here.kind == "r" && t.Layout != Plain:
		v.report(otherLayout, "it is an ordinary table, which layout Plain is, and not one of layout "+t.Layout.String(),
			"-- give the table the layout that it has, or move its keys to a table of the other one")
	case f.here.kind == "p" && t.Layout == Plain:
		// Never a DROP: that it is another layout of ours is what it is most of the time, and it holds every key.
		v.report(notATable, "it is a partitioned table, which layout plain is not",
			"-- give the table the layout that it has, or move its keys to a table of the other one")
	case f.here.kind != "r" && f.here.kind != "p":
		// Never a DROP here either: Migrate would then make an empty table of the name.
		v.report(notATable, "it is a view or a foreign table, which layout "+t.Layout.String()+" is not",
			"-- give the Table the name of the table behind it")
	case name.Schema == "" && f.here.path > 1:
		// A role or a program with another search path would make or take another table, with other keys.
		v.report(otherSchema, fmt.Sprintf("the name finds the table in schema %s, which is not the first of the "+
			"search path: a table of that name in the first would hide it, with all its keys; name it with "+
			"its schema", pg.Quote(f.here.schema)),
			"SET search_path = %s", pg.Quote(f.here.schema))
	case name.Schema == "":
		for _, o := range f.others {
			if o.path > 0 {
				v.report(otherSchema, fmt.Sprintf("the search path holds a second table of this name, in schema %s, with "+
					"other keys; name the one that is meant with its schema", pg.Quote(o.schema)),
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
	if r.persistence == "u" {
		v.alter(notLogged, "the table is UNLOGGED: a crash of the server empties it, and every key "+
			"runs again", "SET LOGGED")
	}
	if !r.rights {
		v.report(missingRights, "the role "+pg.Quote(r.role)+" lacks a right on the table",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
			v.table.Quoted(), pg.Quote(r.role))
	}
	if r.rowSecurity {
		v.report(rowSecurity, "row security applies to the role "+pg.Quote(r.role)+": a key held by a row that it "+
			"cannot see is neither insertable nor readable, and a policy for INSERT alone makes claims fail",
			"ALTER ROLE %s BYPASSRLS", pg.Quote(r.role))
	}
}

// foreign reports whether the table is another one of the same name: it lacks a column of the key, or lacks others and
// has neither our comment nor our index. Nothing else is said of it, for what would make it ours would drop the
// constraint that it has, on which other programs rely.
func (v *verifier) foreign(cols map[string]column, ixs []*index, version int) bool {
	var lacks []string
	key := false
	for _, want := range v.layout.columnTypes() {
		if _, ok := cols[want.name]; !ok {
			lacks = append(lacks, want.name)
			key = key || slices.Contains(v.key, want.name)
		}
	}
	ours := version > 0 || slices.ContainsFunc(ixs, func(ix *index) bool { return v.fault(ix, cols).kind == "" })
	if len(lacks) == 0 || !key && (ours || slices.Equal(lacks, []string{"token"})) {
		return false
	}
	v.report(notOurs, "it is not a table of this library: it lacks "+strings.Join(lacks, ", ")+"; Migrate does not "+
		"change it",
		"-- leave it as it is, give the Table another name, and move the keys: folder home_made of dedup/layouts has "+
			"the SQL")
	return true
}
