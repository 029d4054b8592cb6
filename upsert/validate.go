package upsert

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pgonce/pgonce/internal/pg"
)

// role is what a statement does with a column.
type role uint8

const (
	roleRead role = iota // never written
	roleKey
	roleOnInsert
	roleSet
	roleIfNotNull
	roleTombstone
	roleVersion
)

// member is one column of T as the statement uses it.
type member struct {
	field
	role role
}

// key is one part of the conflict target.
type key struct {
	column string // or
	expr   string
}

// plan is a checked statement: what can be known without the database. The rest is kept in use, once read.
type plan struct {
	table    pg.Name
	rule     rule
	keys     []key
	where    string
	names    []string // identifiers in the predicate and the expressions
	written  []member // in the order of the parameters: keys, insert-only, Set, SetIfNotNull, tombstone, versions
	read     []member // the other columns of T
	versions []string
	spec     spec

	use atomic.Pointer[texts]
}

// reserved begins the names that the statements make for themselves.
const reserved = "pgonce_"

// newPlan checks s.
func newPlan(s spec) (*plan, error) {
	p := &plan{spec: s, where: strings.TrimSpace(s.where)}
	var err error
	if p.table, err = pg.ParseName(s.name); err != nil {
		return nil, fmt.Errorf("upsert: %w", err)
	}
	if err := p.check(s); err != nil {
		return nil, fmt.Errorf("upsert into %s: %w", p.table, err)
	}
	return p, nil
}

func (p *plan) check(s spec) error {
	fields, err := fieldsOf(s.typ)
	if err != nil {
		return err
	}
	if len(s.problems) > 0 {
		return errors.Join(s.problems...)
	}
	if err := p.checkRule(s); err != nil {
		return err
	}
	roles, err := p.assign(s, fields)
	if err != nil {
		return err
	}
	if err := p.checkTarget(s, fields, roles); err != nil {
		return err
	}
	if err := p.checkTombstone(s, fields); err != nil {
		return err
	}
	for _, f := range fields {
		if len(f.column) > pg.MaxIdentifier {
			return fmt.Errorf("the tag %q has %d bytes; PostgreSQL keeps %d", f.column, len(f.column), pg.MaxIdentifier)
		}
		if strings.HasPrefix(f.column, reserved) || strings.IndexByte(f.column, 0) >= 0 {
			return fmt.Errorf("the tag %q: names that begin with %s are taken, and a NUL is not allowed", f.column, reserved)
		}
		if roles[f.column] == roleRead {
			p.read = append(p.read, member{field: f})
		}
	}
	p.versions = s.version
	// Keys come first as OnConflict has them, then the columns as the clauses have them.
	for _, name := range slices.Concat(p.keyColumns(), s.setOnInsert, s.set, s.setNotNull, one(s.tombstone), s.version) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.column == name })
		p.written = append(p.written, member{fields[i], roles[name]})
	}
	return nil
}

func one(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func (p *plan) keyColumns() []string {
	var names []string
	for _, k := range p.keys {
		if k.expr == "" {
			names = append(names, k.column)
		}
	}
	return names
}

// checkRule finds the one rule that settles conflicts.
func (p *plan) checkRule(s spec) error {
	switch {
	case len(s.rules) == 0:
		return errors.New("nothing says which of two events stays; write Version(column) for the newest by the event's own " +
			"time or number, " +
			"FirstWins() to keep the stored row, or LastWins() to overwrite it, also with what is older")
	case len(s.rules) > 1:
		return fmt.Errorf("%s and %s are both given; keep one", s.rules[0], s.rules[1])
	}
	p.rule = s.rules[0]
	switch {
	case p.rule == firstWins && len(s.set)+len(s.setNotNull) > 0:
		return errors.New("with FirstWins a stored row is never changed; name the columns with SetOnInsert instead of Set")
	case p.rule == lastWins && len(s.set)+len(s.setNotNull) == 0:
		return errors.New("LastWins has nothing to overwrite; name columns with Set, or write FirstWins()")
	case p.rule != byVersion && s.maxSkew != 0:
		return errors.New("MaxSkew limits a version; write Version(column)")
	case p.rule != byVersion && s.anyVersion:
		return errors.New("AnyVersionType is about a version; write Version(column)")
	}
	return nil
}

// assign gives each named column its role.
func (p *plan) assign(s spec, fields []field) (map[string]role, error) {
	roles := map[string]role{}
	clauses := []struct {
		name    string
		role    role
		columns []string
	}{
		{"Set", roleSet, s.set},
		{"SetIfNotNull", roleIfNotNull, s.setNotNull},
		{"SetOnInsert", roleOnInsert, s.setOnInsert},
		{"Tombstone", roleTombstone, one(s.tombstone)},
		{"Version", roleVersion, s.version},
	}
	has := func(name string) bool {
		return slices.ContainsFunc(fields, func(f field) bool { return f.column == name })
	}
	in := map[string]string{}
	for _, t := range s.target {
		if !has(t) && strings.Contains(t, "(") {
			p.keys = append(p.keys, key{expr: t})
			continue
		}
		if !has(t) {
			return nil, unknown("OnConflict", t, s.typ, fields)
		}
		if in[t] != "" {
			return nil, fmt.Errorf("OnConflict names %q twice", t)
		}
		p.keys = append(p.keys, key{column: t})
		roles[t], in[t] = roleKey, "OnConflict"
	}
	for _, c := range clauses {
		for _, name := range c.columns {
			switch was := in[name]; {
			case !has(name):
				return nil, unknown(c.name, name, s.typ, fields)
			case was == "OnConflict":
				return nil, fmt.Errorf("%q is a key column, and named in %s; a key is never changed, so leave it out there", name,
					c.name)
			case was == c.name:
				return nil, fmt.Errorf("%s names %q twice", c.name, name)
			case was != "" && c.name == "Version":
				return nil, fmt.Errorf("%q is the version, and named in %s; the version is always written, so leave it out there",
					name, was)
			case was != "":
				return nil, fmt.Errorf("%q is named in %s and in %s; keep one", name, was, c.name)
			}
			roles[name], in[name] = c.role, c.name
		}
	}
	return roles, nil
}

func unknown(clause, name string, typ reflect.Type, fields []field) error {
	var names []string
	for _, f := range fields {
		names = append(names, f.column)
	}
	return fmt.Errorf("%s names %q, and no field of %s has that tag; it has %s", clause, name, typ,
		strings.Join(names, ", "))
}

func (p *plan) checkTarget(s spec, fields []field, roles map[string]role) error {
	if len(p.keys) == 0 {
		return errors.New("no OnConflict; name the columns of the unique key (without them PostgreSQL would swallow a " +
			"clash with any constraint)")
	}
	for _, k := range p.keys {
		if k.expr == "" {
			continue
		}
		names, err := identifiers(k.expr)
		if err != nil {
			return fmt.Errorf("the expression in OnConflict: %w", err)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return roles[n] != roleRead }) {
			return fmt.Errorf("OnConflict has the expression %q, and no column in it is written; name one of its columns in "+
				"Set or SetOnInsert", k.expr)
		}
		p.names = append(p.names, names...)
	}
	if s.where != "" && p.where == "" {
		return errors.New("Where is empty; leave it out for a full unique index")
	}
	names, err := identifiers(p.where)
	if err != nil {
		return fmt.Errorf("the predicate in Where: %w", err)
	}
	p.names = append(p.names, names...)
	return nil
}

func (p *plan) checkTombstone(s spec, fields []field) error {
	if s.tombstone == "" {
		return nil
	}
	if p.rule != byVersion {
		return fmt.Errorf("Tombstone needs Version: with %s a late event would undo the deletion, or the deletion would be "+
			"ignored", p.rule)
	}
	if p.where != "" {
		return errors.New("Tombstone on a partial target: a late event would insert a live row beside the deleted one; " +
			"make the unique index full, and leave out Where")
	}
	f := fields[slices.IndexFunc(fields, func(f field) bool { return f.column == s.tombstone })]
	switch {
	case f.typ.Kind() == reflect.Bool, f.typ.Kind() == reflect.Pointer, f.typ.Implements(valuerType),
		reflect.PointerTo(f.typ).Implements(valuerType):
		return nil
	}
	return fmt.Errorf("Tombstone(%q) is of type %s, which cannot say \"not deleted\"; use a bool or a pointer, such as "+
		"*time.Time", s.tombstone, f.typ)
}
