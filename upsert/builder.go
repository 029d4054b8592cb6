package upsert

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Builder says what an upsert does; [Builder.Build] checks it and makes a [Stmt]. Its methods return a changed copy,
// and Build reports mistakes.
type Builder[T any] struct{ s spec }

// rule is what settles a conflict between the stored row and a new one.
type rule uint8

const (
	byVersion rule = iota + 1
	firstWins
	lastWins
)

func (r rule) String() string { return [...]string{"", "Version", "FirstWins", "LastWins"}[r] }

// spec is a Builder without its type.
type spec struct {
	name string
	typ  reflect.Type

	target      []string // columns and expressions, as given
	where       string
	set         []string
	setNotNull  []string
	setOnInsert []string
	version     []string
	tombstone   string
	maxSkew     time.Duration
	rules       []rule
	anyVersion  bool
	accepted    []string
	problems    []error // found by the methods themselves
}

// Into begins an upsert into table, which may be schema-qualified. A part that holds a dot is quoted (`"odd.name"`).
// The case is kept: Into("Order") means "Order", not order.
//
// T is a struct whose `db` tags name the columns; the fields of an embedded struct count as T's own. A field without a
// tag is ignored. A column that no clause names is read into [Result.Stored] and never written: an id, a default, a
// generated column.
//
// A value is stored as pgx by itself stores it, whatever the driver. If drivers disagree, or the field could not take
// it back, it is refused before anything is written. That is [ErrInvalidRow], or a [*VerifyError] at the first use if
// the type tells. A time goes into a timestamp without time zone as its clock shows, and comes back in UTC (over pgx in
// the codec's ScanLocation). Bytes are a uuid's 16, a bytea, or text; never a number's text or a time's.
//
// What comes back depends on no setting of the session. What goes in may: DateStyle reads '01/02/2026'; regclass and
// its like read the search path. No array is stored with array_nulls off, and no money with an lc_monetary that reads
// "1,234.56" otherwise than C: both are the server's error.
func Into[T any](table string) Builder[T] {
	return Builder[T]{spec{name: table, typ: reflect.TypeFor[T]()}}
}

// OnConflict names the unique key: columns of T, or expressions as the index has them, told by their parenthesis:
// "lower(email)". A unique index on exactly these must exist, which [Verify] checks. A clash with any other unique
// constraint is an error, never an update of another entity's row.
//
// No trigger may change the key before a row is written. Nothing would find the row again, and each try would end in
// [ErrUnsettled] or not be noticed at all. Normalise keys in Go, or use an expression.
func (b Builder[T]) OnConflict(target ...string) Builder[T] {
	b.s.target = append(slices.Clip(b.s.target), target...)
	return b
}

// Where gives the predicate of a partial unique index, exactly as the index has it ("deleted_at IS NULL"). It is a
// literal of the program, never input. A row outside it is refused ([ErrInvalidRow]): it could never conflict, and each
// retry would insert another.
//
// With a Version, a partial target guards only among the rows inside the predicate. Once the stored row has left it, a
// late event inserts a row of its own. [Verify] says so; [Builder.Tombstone] under a full unique key has no such gap.
func (b Builder[T]) Where(predicate string) Builder[T] {
	if b.s.where != "" {
		b.s.problems = append(b.s.problems,
			fmt.Errorf("Where is given twice; join the predicates with AND, as the index has them"))
	}
	b.s.where = predicate
	return b
}

// Set names the columns that the newest event decides. [Unchanged] and [ErrVersionConflict] compare these. Where a
// trigger changes one before it is stored, the same event is an [ErrVersionConflict] the second time (with LastWins an
// [ErrUnsettled]). Let the trigger fill another column, or normalise in Go.
func (b Builder[T]) Set(columns ...string) Builder[T] {
	b.s.set = append(slices.Clip(b.s.set), columns...)
	return b
}

// SetIfNotNull names columns that a newer event changes only where it brings a value. Neither a partial payload nor a
// deletion erases them. The outcome then depends on the order of arrival: an older event's value is lost if a newer
// event without one came first.
func (b Builder[T]) SetIfNotNull(columns ...string) Builder[T] {
	b.s.setNotNull = append(slices.Clip(b.s.setNotNull), columns...)
	return b
}

// SetOnInsert names columns that are written with a new row and never changed: created_at, a public id. The event that
// happens to arrive first decides them.
func (b Builder[T]) SetOnInsert(columns ...string) Builder[T] {
	b.s.setOnInsert = append(slices.Clip(b.s.setOnInsert), columns...)
	return b
}

// Version names the column that orders the events of an entity, then columns that settle ties. A row is written only if
// it is newer than the stored one. The columns are compared in turn, and a stored NULL counts as oldest.
//
// The version comes from the event: its own time, or a sequence number of the source. Never use now(): a late retry
// would be the newest event of all. A time is cut to the microsecond, so events within one need a tie-breaker.
//
// A row is refused ([ErrInvalidRow]) if its version or a tie-breaker is NULL, not a number, infinite, or the zero
// time.Time.
func (b Builder[T]) Version(column string, tieBreakers ...string) Builder[T] {
	b.s.version = append(slices.Clip(b.s.version), append([]string{column}, tieBreakers...)...)
	b.s.rules = append(slices.Clip(b.s.rules), byVersion)
	return b
}

// AnyVersionType makes [Verify] accept a first version column whose type does not order events by itself: a timestamp
// without time zone (its meaning changes with the writer's zone), or text ("10" < "9").
func (b Builder[T]) AnyVersionType() Builder[T] {
	b.s.anyVersion = true
	return b
}

// MaxSkew refuses a version later than the database's clock plus d ([ErrVersionAhead]): a sender's broken clock would
// make every later event stale. The version column must be a timestamptz. Zero, the default, means no limit.
func (b Builder[T]) MaxSkew(d time.Duration) Builder[T] {
	if d <= 0 {
		b.s.problems = append(b.s.problems,
			fmt.Errorf("MaxSkew(%s): say how far ahead a version may be, such as 5*time.Minute", d))
	}
	b.s.maxSkew = d
	return b
}

// Tombstone names the column that marks an entity as deleted: a bool (deleted when true), or a column that is not NULL
// when deleted (a *time.Time, a sql.Null). A deletion is an event like others, ordered by its version, and the row
// stays. A "created" delivered late is [Stale]; an event newer than the deletion brings the entity back, and clears the
// mark.
//
// A deletion also decides the columns of Set: it stores what it brings, NULL too. For a NOT NULL column a NULL becomes
// the column's default; without a default the server refuses it (23502). To keep the content, name its columns in
// [Builder.SetIfNotNull].
func (b Builder[T]) Tombstone(column string) Builder[T] {
	if b.s.tombstone != "" {
		b.s.problems = append(b.s.problems, fmt.Errorf("Tombstone is given twice"))
	}
	b.s.tombstone = column
	return b
}

// FirstWins keeps the stored row: the first to arrive decides. Every later one is [Unchanged] and gets the stored row.
// Name the columns to write with [Builder.SetOnInsert].
func (b Builder[T]) FirstWins() Builder[T] {
	b.s.rules = append(slices.Clip(b.s.rules), firstWins)
	return b
}

// LastWins overwrites whatever is stored, so a late or repeated event undoes a newer one. It is right only where events
// cannot be reordered, or their order does not matter.
func (b Builder[T]) LastWins() Builder[T] {
	b.s.rules = append(slices.Clip(b.s.rules), lastWins)
	return b
}

// Accept names triggers, constraints and unique indexes that [Verify] would report, and that somebody has looked at and
// means. A clash with such a constraint is still [ErrOtherConstraint].
func (b Builder[T]) Accept(names ...string) Builder[T] {
	b.s.accepted = append(slices.Clip(b.s.accepted), names...)
	return b
}

// Build checks the statement and returns it. It fails without exactly one of Version, FirstWins and LastWins, on a
// column that T does not have, and on clauses that contradict each other. Each message says what to write instead. The
// first use and [Verify] check what only the database knows.
func (b Builder[T]) Build() (*Stmt[T], error) {
	p, err := newPlan(b.s)
	if err != nil {
		return nil, err
	}
	return &Stmt[T]{p: p}, nil
}

// MustBuild is Build for package-level variables: it panics on an error.
func (b Builder[T]) MustBuild() *Stmt[T] {
	stmt, err := b.Build()
	if err != nil {
		panic(err)
	}
	return stmt
}
