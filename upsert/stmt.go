package upsert

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/internal/pg"
)

// Stmt is a checked upsert for rows of type T. It is safe for concurrent use. Make it once for one table on one server:
// another database, or a schema that the search path puts in its place, needs its own.
//
// The first use reads the table's columns from the catalog (one more round trip) and keeps them. They are read anew
// after ALTER TABLE has changed a column's precision. So they are after errors that this may cause: the server's,
// [ErrVersionConflict] and [ErrUnsettled]. (A column that gets its first precision shows itself by one of these, once.)
type Stmt[T any] struct{ p *plan }

// Outcome says what an upsert did. The zero Outcome comes with an error; only [ErrUnreadable] comes with another.
type Outcome uint8

// The outcomes. Nothing is written for Stale and Unchanged: no dead row, no WAL.
const (
	Inserted  Outcome = iota + 1 // there was no such row
	Updated                      // the stored row was older
	Stale                        // the stored row is newer, or a newer one of the same call took its place
	Unchanged                    // the same event is stored already, or FirstWins found a row
)

func (o Outcome) String() string {
	switch o {
	case Inserted:
		return "inserted"
	case Updated:
		return "updated"
	case Stale:
		return "stale"
	case Unchanged:
		return "unchanged"
	}
	return "no outcome"
}

// Result is what became of one row.
type Result[T any] struct {
	Outcome Outcome

	// Stored is the row in the table: the new one if Inserted or Updated (with what the database filled in), else the
	// one that it was judged by. NULL leaves a field's zero value. It is set with [ErrVersionConflict] and
	// [ErrUnreadable] too, and empty with any other error.
	Stored T

	// Err is the trouble of this row alone: a [*RowError]. Exec returns it as well.
	Err error
}

// SQL returns the upsert as one would write it by hand, and the columns of its parameters $1, $2, ... in that order. It
// writes what Exec would, with these differences:
//
//   - It does not say what it did. It waits for rivals, and locks the row also when it is stale.
//   - It does not refuse what Exec refuses: a NULL version, tie-breaker or key, MaxSkew, a row outside the predicate.
//   - It takes every operator from pg_catalog. If the type of a key or a version is an extension's, use Exec. Here
//     citext as a key is compared by its case, and a type that is no text fails with 42883.
//   - It fills in no defaults. Where nothing is stored, a NULL for a NOT NULL column of SetIfNotNull fails with 23502,
//     and so does a deletion's NULL for one of Set. Exec stores the default.
func (s *Stmt[T]) SQL() (sql string, columns []string) {
	for _, m := range s.p.written {
		columns = append(columns, m.column)
	}
	return writer{p: s.p}.plain(), columns
}

func (s *Stmt[T]) plan() *plan { return s.p }

// texts are the statements for one table, as its catalog describes it.
type texts struct {
	l       *layout
	columns []*column // of the values, in the order of parameters
	one     string
	many    map[shape]string

	// unproven are the written columns whose fields are not known to read back what they send, until a first value has
	// shown it.
	unproven []atomic.Bool
}

// shape is a form of the bulk statement.
type shape struct {
	withRows bool // the stored rows are wanted
	distinct bool // no two rows have the same key
}

// prepare returns the statements, reading the catalog when it has not been read.
func (p *plan) prepare(ctx context.Context, conn pg.Conn) (*texts, error) {
	if t := p.use.Load(); t != nil {
		return t, nil
	}
	return p.prepareAnew(ctx, conn)
}

func (p *plan) prepareAnew(ctx context.Context, conn pg.Conn) (*texts, error) {
	l, err := readLayout(ctx, conn, p.table)
	if err != nil {
		return nil, err
	}
	t, err := p.textsFor(l)
	if err == nil {
		p.use.Store(t)
	}
	return t, err
}

// textsFor renders the statements for a table with this layout.
func (p *plan) textsFor(l *layout) (*texts, error) {
	ps := p.layoutProblems(l)
	if len(ps) == 0 {
		ps = p.fieldProblems(l)
	}
	if len(ps) > 0 {
		return nil, fmt.Errorf("upsert: %w", &VerifyError{Problems: ps})
	}
	w := writer{p: p, l: l}
	t := &texts{
		l: l, columns: mapped(p.written, w.col), one: w.one(), many: map[shape]string{},
		unproven: make([]atomic.Bool, len(p.written)),
	}
	for i, m := range p.written {
		t.unproven[i].Store(twoWays(m.typ) || loses(m.typ, t.columns[i]))
	}
	for _, s := range []shape{{false, false}, {false, true}, {true, false}, {true, true}} {
		w.bulk = true
		t.many[s] = w.many(s)
	}
	return t, nil
}

// cachedPlan is feature_not_supported, which the server answers to a prepared statement whose result has changed its
// type.
const cachedPlan = "0A000"

// secondTime is cardinality_violation: two rows of a statement have one key after all, as in a column whose collation
// has changed.
const secondTime = "21000"

// failed wraps an error of the server, without what it says of the row, and forgets the catalog where the error may
// come from a change of it.
func (p *plan) failed(err error) error {
	if state := sqlState(err); strings.HasPrefix(state, "42") || state == cachedPlan || state == secondTime {
		p.use.Store(nil)
	}
	err = withoutContent(err)
	if clashes(err) {
		return &clashError{p.table.String(), err}
	}
	return fmt.Errorf("upsert into %s: %w", p.table, err)
}

// value is what goes to PostgreSQL for one column.
type value struct {
	text string
	null bool
}

// values appends the parameters for one row to buf.
func (p *plan) values(t *texts, row reflect.Value, index int, buf []value) ([]value, error) {
	for i, m := range p.written {
		c := t.columns[i]
		text, null, err := encode(row.FieldByIndex(m.index), c.OID, c.Elem)
		if err == nil {
			err = unfit(m, c, text, null)
		}
		if err == nil && !null && t.unproven[i].Load() {
			if err = unread(m, c, text); err == nil {
				t.unproven[i].Store(provesNothing(m.typ, c))
			} else {
				err = errOneWay
			}
		}
		if err == errBlanks {
			p.use.Store(nil) // for the column may hold more by now
		}
		if err != nil {
			return nil, &RowError{
				Table: p.table.String(), Index: index, Column: m.column, Reason: err.Error(),
				err: ErrInvalidRow,
			}
		}
		buf = append(buf, value{text, null})
	}
	return buf, nil
}

// Why a key or a version cannot be used.
var (
	errNullKey = errors.New("the key is NULL; rows are found by keys that are not, also where the index is NULLS " +
		"NOT DISTINCT")
	errNullVersion = errors.New("the version is NULL")
	errZeroTime    = errors.New("the version is the zero time")
	errNotFinite   = errors.New("the version is not a finite value; nothing could be newer")
	errOneWay      = errors.New("the field's type cannot read back what it sends")
	errBlanks      = errors.New("it ends in blanks that are more than the column holds; PostgreSQL would drop them, and " +
		"the same event would differ from what is stored: trim it")
)

// unfit says why a key or a version cannot be used, or returns nil.
func unfit(m member, c *column, text string, null bool) error {
	switch {
	case m.role == roleKey && null:
		return errNullKey
	case c.Limit > 0 && endsInBlanks(text, c.Limit):
		return errBlanks
	case m.role != roleVersion:
		return nil
	case null:
		return errNullVersion
	case c.isText():
		return nil
	case strings.HasPrefix(text, "0001-01-01") && text == encodeTime(time.Time{}, c.OID):
		return errZeroTime
	case text == "" || text[len(text)-1] >= '0' && text[len(text)-1] <= '9':
		return nil
	case endless(text):
		return errNotFinite
	}
	return nil
}

// endsInBlanks says that of text only blanks lie beyond limit. (What else is too long is the server's error.)
func endsInBlanks(text string, limit int) bool {
	if len(text) <= limit {
		return false
	}
	return utf8.RuneCountInString(text) > limit && utf8.RuneCountInString(strings.TrimRight(text, " ")) <= limit
}

// endless says that a number or a time is greater than all others.
func endless(text string) bool {
	return slices.Contains([]string{"nan", "infinity", "+infinity", "inf", "+inf"},
		strings.ToLower(strings.TrimSpace(text)))
}
