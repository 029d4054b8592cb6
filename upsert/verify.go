package upsert

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

// Problem is one reason why an upsert would fail, or be wrong.
type Problem struct {
	Table string // the table, as [Into] names it

	Kind Kind

	Message string // what is wrong, and what it would lead to
	Fix     string // the statement, or the change of the program, that fixes it; read it before you run it
}

// VerifyError lists every problem that [Verify] found, or that the first use of a statement did.
type VerifyError struct{ Problems []Problem }

// Error gives a line to each problem, with what fixes it.
func (e *VerifyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d problem(s)", len(e.Problems))
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "\n%s: %s: %s\n\tfix it with: %s", p.Table, p.Kind, p.Message,
			strings.ReplaceAll(p.Fix, "\n", "\n\t"))
	}
	return b.String()
}

// Except returns e without the problems of the kinds given, and nil where none is left. To accept a single trigger or
// constraint, name it in [Builder.Accept].
//
//	var found *upsert.VerifyError
//	if errors.As(err, &found) {
//		err = found.Except(upsert.KindGuardPartial) // rows never leave the predicate here
//	}
func (e *VerifyError) Except(kinds ...Kind) error {
	left := &VerifyError{}
	for _, p := range e.Problems {
		if !slices.Contains(kinds, p.Kind) {
			left.Problems = append(left.Problems, p)
		}
	}
	if len(left.Problems) == 0 {
		return nil
	}
	return left
}

// Statement is a [Stmt] for any type of rows.
type Statement interface {
	SQL() (sql string, columns []string)
	plan() *plan
}

// Verify compares statements with their tables, and returns a [*VerifyError] with everything that it finds. Other
// errors mean that it could not look. Call it in a test, or when the program starts. Each [Kind] names what it looks
// for:
//
//   - a table or column that is missing, a column that cannot be written (generated), one that must be written and is
//     not;
//   - a target without a unique index on exactly it, or with one that is INVALID, deferrable, or has another predicate;
//   - key columns that may be NULL, in an index that takes NULLs for different;
//   - a version guard on a partial target, and a version that does not order events (see [Builder.AnyVersionType]);
//   - triggers that change or drop rows, or mention the version, as far as their PL/pgSQL shows it; rules; tables that
//     inherit from it;
//   - further unique constraints, and EXCLUDE constraints, that an event can clash with (see [ErrOtherConstraint]);
//   - a view that PostgreSQL cannot turn into its table, or that has no unique index behind it;
//   - a column for which a deletion that leaves it out has no value.
//
// Name what you mean in [Builder.Accept]. Of a view, the columns behind it are not checked.
//
// It reads pg_catalog. A write to a view is planned, not run. For a target with an expression or a predicate it makes a
// temporary table and index, and rolls them back. That needs the TEMP privilege and a server that can be written to.
// Inside a transaction it uses a savepoint.
func Verify(ctx context.Context, db DB, stmts ...Statement) error {
	conn, err := connOf(db)
	if err != nil {
		return err
	}
	var all []Problem
	for _, s := range stmts {
		ps, err := s.plan().verify(ctx, db, conn)
		if err != nil {
			return fmt.Errorf("upsert: verifying %s: %w", s.plan().table, err)
		}
		all = append(all, ps...)
	}
	if len(all) > 0 {
		return fmt.Errorf("upsert: verify: %w", &VerifyError{all})
	}
	return nil
}

func (p *plan) verify(ctx context.Context, db DB, conn pg.Conn) ([]Problem, error) {
	l, err := readLayout(ctx, conn, p.table)
	if err != nil {
		return nil, err
	}
	ps := p.layoutProblems(l)
	if len(ps) > 0 {
		return ps, nil
	}
	ps = append(ps, p.columnProblems(l)...)
	if len(ps) == 0 {
		ps = p.fieldProblems(l)
	}
	a, err := readAround(ctx, conn, p.table)
	if err != nil {
		return nil, err
	}
	if a.Kind != "r" && a.Kind != "p" {
		more, err := p.viewProblems(ctx, db, conn, l, a)
		return slices.Concat(ps, more), err
	}
	cat, err := readCatalog(ctx, conn, p.table)
	if err != nil {
		return nil, err
	}
	targets, err := p.targetProblems(ctx, db, l, cat)
	if err != nil {
		return nil, err
	}
	if len(targets) > 0 {
		cat.Indexes = nil // until the target has its own, each of them may be meant for it
	}
	return slices.Concat(ps, targets, p.aroundProblems(l, a, cat)), nil
}

// report collects problems of one table.
type report struct {
	table    string
	problems []Problem
}

func (r *report) add(kind Kind, fix, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.table, kind, fmt.Sprintf(format, args...), fix})
}

// layoutProblems compares a plan with the columns of its table. What it finds would fail in every statement, so it is
// asked before the first one too.
func (p *plan) layoutProblems(l *layout) []Problem {
	r := &report{table: p.table.String()}
	if len(l.Columns) == 0 {
		r.add(KindTableMissing, "create it, or give its schema", "there is no such table, or it is not on the search path")
		return r.problems
	}
	for _, m := range slices.Concat(p.written, p.read) {
		c := l.byName[m.column]
		switch {
		case c == nil:
			var names []string
			for _, c := range l.Columns {
				names = append(names, c.Name)
			}
			r.add(KindColumnMissing, "correct the tag", "the tag %q names no column; the table has %s", m.column,
				strings.Join(names, ", "))
		case m.role == roleKey && c.Generated:
			r.add(KindColumnGenerated, "make a unique index on the expression that it is made from, and name that in OnConflict",
				"column %s is generated: no event brings a value for it, by which a stored row could be found", c.Name)
		case m.role != roleRead && c.Generated:
			r.add(KindColumnGenerated, "name the columns that it is made from", "column %s is generated, and cannot be written",
				c.Name)
		case m.role != roleRead && c.Always:
			r.add(KindColumnGenerated, "leave it out of the clauses, so that it is only read, or make it GENERATED BY DEFAULT",
				"column %s is GENERATED ALWAYS AS IDENTITY, and cannot be written", c.Name)
		case m.role == roleVersion && m.column == p.versions[0] && p.spec.maxSkew > 0 && c.OID != pgtype.TimestamptzOID:
			r.add(KindVersionType, "leave MaxSkew out, or make the column a timestamptz",
				"MaxSkew compares the version with the clock, and column %s is %s", c.Name, c.Exact)
		}
	}
	if _, ok := l.expressions(p.keys); !ok {
		r.add(KindTargetUnclear, "cast them in the index and in OnConflict to one type, such as text",
			"expressions of unique indexes that OnConflict may mean are of types with = in several schemas")
	}
	return append(r.problems, p.onSpread(l)...)
}

// columnProblems looks at types and NULLs.
func (p *plan) columnProblems(l *layout) []Problem {
	r := &report{table: p.table.String()}
	written := map[string]member{}
	for _, m := range p.written {
		written[m.column] = m
	}
	for _, c := range l.Columns {
		m, ok := written[c.Name]
		required := c.NotNull && c.Default == "" && !c.Generated && !c.Identity
		switch {
		case required && !ok:
			r.add(KindColumnNotWritten, fmt.Sprintf("name it in SetOnInsert, or ALTER TABLE %s ALTER COLUMN %s SET DEFAULT ...",
				p.table.Quoted(), pg.Quote(c.Name)),
				"column %s is NOT NULL and has no default, and the statement never writes it", c.Name)
		case required && p.spec.tombstone != "" && (m.role == roleSet || m.role == roleIfNotNull) && mayBeNull(m.typ):
			r.add(KindDeletionFails, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL", p.table.Quoted(),
				pg.Quote(c.Name)),
				"a deletion that arrives before its row, and leaves out column %s, fails: it is NOT NULL and has no default",
				c.Name)
		}
	}
	if p.rule != byVersion || p.spec.anyVersion {
		return r.problems
	}
	c := l.byName[p.versions[0]]
	switch {
	case c.OID == pgtype.TimestampOID:
		r.add(KindVersionType, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE timestamptz USING %[2]s AT TIME ZONE "+
			"'UTC', or AnyVersionType()", p.table.Quoted(), pg.Quote(c.Name)),
			"the version %s is a timestamp without time zone: what it means depends on the zone of who writes it", c.Name)
	case !c.ordersEvents():
		r.add(KindVersionType, "use a number or a timestamptz, or AnyVersionType() where every value sorts as it is meant to",
			"the version %s is %s, which may not sort in the order of events (\"10\" is less than \"9\")", c.Name, c.Exact)
	}
	return r.problems
}
