package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

func (v *verifier) columns(cols map[string]column, ixs []*index) {
	equal := "two NULLs are not equal to a unique index"
	if slices.ContainsFunc(ixs, func(ix *index) bool { return ix.nulls && v.fault(ix, cols).kind == "" }) {
		equal = "no claim sends one, and no reader expects one" // NULLS NOT DISTINCT
	}
	for _, want := range v.layout.columnTypes() {
		c, ok := cols[want.name]
		isKey := slices.Contains(v.key, want.name) || want.name == "event_time"
		switch {
		case !ok:
			v.alter(missingColumn, "the column "+want.name+" is missing", "ADD COLUMN %s %s", pg.Quote(want.name), want.define)
			continue
		case c.typname != want.typname:
			message := fmt.Sprintf("the column %s is %s, not %s", want.name, c.kind, want.kind)
			v.retype(want, columnType, message, converts(c.kind, want.kind))
		}
		v.generated(want, c, isKey)
		if isKey && !c.notNull {
			v.alter(nullable, "the column "+want.name+" may be NULL, and "+equal,
				"ALTER COLUMN %s SET NOT NULL", pg.Quote(want.name))
		}
		if isKey && c.typname == "text" && !bytewise(c.collation) {
			why := "whose order may change with the operating system, which breaks the index"
			if !c.deterministic {
				why = "which is not deterministic: it takes different keys for equal"
			}
			message := fmt.Sprintf("the column %s has the collation %s, %s", want.name, pg.Quote(c.collation), why)
			v.retype(want, collation, message, true)
		}
	}
}

// generated reports a column that PostgreSQL computes or counts.
func (v *verifier) generated(want columnSpec, c column, isKey bool) {
	name, message := pg.Quote(want.name), "the column "+want.name+" is generated, and a claim cannot set it"
	var actions string
	switch c.generated {
	case "":
		return
	case "v":
		// There is nothing stored that could stay.
		if isKey {
			v.report(generated, message, "-- make a new table, and move the keys: a virtual column becomes no other one")
			return
		}
		actions = "DROP COLUMN " + name + ", ADD COLUMN " + name + " " + want.define
	case "s":
		actions = "ALTER COLUMN " + name + " DROP EXPRESSION"
	default:
		message = "the column " + want.name + " is an identity: it counts keys, and is not what a claim makes it"
		actions = "ALTER COLUMN " + name + " DROP IDENTITY"
	}
	if d := claimDefaults[want.name]; d != nil && c.generated != "v" {
		actions += ", ALTER COLUMN " + name + " SET DEFAULT " + pg.Pin(d[0])
	}
	v.alter(generated, message, "%s", actions)
}

// retype reports a column that is of another type than it should be. easily: PostgreSQL converts the values by itself,
// and none of them becomes another one.
func (v *verifier) retype(want columnSpec, kind, message string, easily bool) {
	to := "pg_catalog." + want.typname
	if slices.Contains(v.key, want.name) && to == "pg_catalog.text" {
		to += ` COLLATE pg_catalog."C"`
	}
	action := "ALTER COLUMN " + pg.Quote(want.name) + " TYPE " + to
	switch {
	case v.layout == Weekly && want.name == "bucket" || v.layout.Partitions() > 0 && want.name == "key":
		v.report(kind, message,
			"-- make a new table, and move the keys: a column by which a table is partitioned keeps its type")
	case easily:
		v.alter(kind, message, "%s", action)
	default:
		v.report(kind, message,
			"-- say in USING what the stored values become: ALTER TABLE %s %s USING ...", v.table.Quoted(), action)
	}
}

// converts reports whether ALTER TABLE changes the type by itself, so that no value means something else afterwards. A
// timestamp without a time zone does not say which moment it is.
func converts(from, to string) bool {
	switch to {
	case "text":
		return true
	case "integer", "bigint":
		return slices.Contains([]string{"smallint", "integer", "bigint", "numeric"}, from)
	case "timestamp with time zone":
		return strings.HasPrefix(from, "timestamp(") && strings.HasSuffix(from, ") with time zone")
	}
	return false
}

// bytewise reports whether the collation is one of PostgreSQL's own that compare bytes.
func bytewise(collation string) bool { return collation == "C" || collation == "POSIX" }

// claimDefaults are the defaults that claims rely on; the first is the DDL's, and the others say the same.
var claimDefaults = map[string][]string{
	"processed_at": {
		"now()", "CURRENT_TIMESTAMP", "transaction_timestamp()", "statement_timestamp()",
		"clock_timestamp()",
	},
	"attempt": {"1"},
	"failed":  {"false"},
}

// unqualified is an expression as the catalog prints it where nobody's schema or setting changes that.
func unqualified(expr string) string {
	return strings.NewReplacer(`"`, "", "pg_catalog.", "").Replace(expr)
}

// defaults looks at what a claim leaves to the table: three columns have a default, and three must not.
func (v *verifier) defaults(cols map[string]column) {
	for _, name := range []string{"processed_at", "attempt", "failed"} {
		c, ok := cols[name]
		if ok && !c.notNull {
			v.alter(nullable, "the column "+name+" may be NULL, which no reader of the table expects",
				"ALTER COLUMN %s SET NOT NULL", pg.Quote(name))
		}
		want := claimDefaults[name]
		switch {
		case !ok || c.generated != "":
		case !c.hasDefault:
			v.alter(columnDefault, "the column "+name+" has no default, and a claim does not set it",
				"ALTER COLUMN %s SET DEFAULT %s", pg.Quote(name), pg.Pin(want[0]))
		case c.foreignDef || !slices.Contains(want, unqualified(c.def)):
			v.alter(columnDefault, "the default of the column "+name+" is not "+want[0]+": it would say of every claim "+
				"what is not so", "ALTER COLUMN %s SET DEFAULT %s", pg.Quote(name), pg.Pin(want[0]))
		}
	}
	for _, name := range []string{"payload_hash", "value", "lease_until"} {
		c := cols[name]
		if c.hasDefault && c.generated == "" {
			v.alter(columnDefault, "the column "+name+" has a default, which would say of every claim what is not so",
				"ALTER COLUMN %s DROP DEFAULT", pg.Quote(name))
		}
		if c.notNull {
			v.alter(columnDefault, "the column "+name+" must be given, and not every claim gives it",
				"ALTER COLUMN %s DROP NOT NULL", pg.Quote(name))
		}
	}
}

// strangers looks at the columns that are not ours: none must have to be given.
func (v *verifier) strangers(cols map[string]column) {
	for _, name := range slices.Sorted(maps.Keys(cols)) {
		known := slices.ContainsFunc(v.layout.columnTypes(), func(want columnSpec) bool { return want.name == name })
		if c := cols[name]; !known && c.notNull && !c.hasDefault && c.generated == "" {
			v.alter(columnDefault, "the column "+pg.Quote(name)+" must be given, and a claim does not "+
				"know it", "ALTER COLUMN %s DROP NOT NULL", pg.Quote(name))
		}
	}
}
