package schema

import (
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// fault is what keeps a unique index from being the guarantee; the zero value is nothing.
type fault struct{ kind, message string }

// fault looks at one unique index.
func (v *verifier) fault(ix *index, cols map[string]column) fault {
	switch {
	case !ix.covers(v.key) && !slices.Contains(ix.columns, ""):
		return fault{otherUnique, "is unique on other columns: two different keys can clash there, and the second " +
			"fails with 23505"}
	case !ix.valid || !ix.ready:
		return fault{invalidIndex, "is INVALID: a CREATE INDEX CONCURRENTLY failed, and it proves nothing"}
	case !ix.immediate:
		return fault{deferrable, "is DEFERRABLE: it cannot be the arbiter of ON CONFLICT, which fails with 55000"}
	case ix.partial:
		return fault{partialIndex, "has a WHERE: rows outside of it are not unique"}
	case slices.Contains(ix.columns, ""):
		return fault{exprIndex, "is on an expression, not on the columns themselves"}
	case !ix.on(v.key):
		return fault{moreColumns, "has a column besides " + strings.Join(v.key, ", ") + ": one key can be there twice"}
	case ix.astray(cols):
		return fault{collation, `compares by another collation than "C", which may change with the operating system, ` +
			`or take different keys for equal`}
	}
	return fault{}
}

// astray reports whether the index compares by another collation than its column has. (A column's own is reported with
// the column.)
func (ix *index) astray(cols map[string]column) bool {
	for i, c := range ix.columns {
		if cols[c].typname == "text" && bytewise(cols[c].collation) && !bytewise(ix.collations[i]) {
			return true
		}
	}
	return false
}

// indexes looks for the index that is the guarantee, and says of every other unique one what it does.
//
// Where there is none, the first of these problems has its replacement. A primary key goes in the same statement, for a
// table has one only; everything else is dropped behind it. So the fixes, run in order, never take away what has kept
// the key unique so far.
func (v *verifier) indexes(ixs []*index, cols map[string]column) {
	type bad struct {
		*index
		fault
	}
	var all []bad
	sound := false
	for _, ix := range ixs {
		f := v.fault(ix, cols)
		sound = sound || f.kind == ""
		if f.kind != "" {
			all = append(all, bad{ix, f})
		}
	}
	// What was to be the guarantee comes first, and says why it is none.
	slices.SortStableFunc(all, func(a, b bad) int {
		switch {
		case (a.kind == otherUnique) == (b.kind == otherUnique):
			return 0
		case a.kind == otherUnique:
			return 1
		}
		return -1
	})
	explained := len(all) > 0 && all[0].kind != otherUnique
	if !sound && !explained {
		v.alter(noConstraint, v.without(ixs), "%s", v.replacement(ixs, nil))
	}
	for i, b := range all {
		message := "the unique index " + pg.Quote(b.name) + " " + b.message
		switch {
		case !sound && explained && i == 0:
			fix := "ALTER TABLE " + v.table.Quoted() + " " + v.replacement(ixs, b.index)
			if b.constraint == "" {
				fix += "; " + v.drop(b.index)
			}
			v.report(b.kind, message, "%s", fix)
		case !sound && b.primary:
			v.report(b.kind, message, "-- the statement that adds the primary key has dropped this one")
		default:
			v.report(b.kind, message, "%s", v.drop(b.index))
		}
	}
}

// without says of a table without an index for the guarantee what that means.
func (v *verifier) without(ixs []*index) string {
	key := strings.Join(v.key, ", ")
	other := func(c string) bool { return !slices.Contains(v.key, c) }
	for _, ix := range ixs {
		if ix.valid && !ix.partial && !slices.ContainsFunc(ix.columns, other) {
			return "there is no unique constraint on exactly " + key + ": every claim fails with 42P10"
		}
	}
	return "there is no unique constraint on " + key + ": nothing keeps a key from being there twice, and every " +
		"claim fails with 42P10"
}

// replacement returns the actions of ALTER TABLE that add the guarantee, and drop what cannot stand beside it: the
// primary key that the table has, and the constraint of the index instead, if that is not nil.
func (v *verifier) replacement(ixs []*index, instead *index) string {
	var actions []string
	for _, ix := range ixs {
		if ix.primary || ix == instead && ix.constraint != "" {
			actions = append(actions, "DROP CONSTRAINT "+pg.Quote(ix.constraint))
		}
	}
	return strings.Join(append(actions, "ADD PRIMARY KEY ("+strings.Join(v.key, ", ")+")"), ", ")
}

func (v *verifier) drop(ix *index) string {
	if ix.constraint != "" {
		return "ALTER TABLE " + v.table.Quoted() + " DROP CONSTRAINT " + pg.Quote(ix.constraint)
	}
	return "DROP INDEX " + pg.Name{Schema: v.table.Schema, Table: ix.name}.Quoted()
}
