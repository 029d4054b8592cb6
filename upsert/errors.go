package upsert

import (
	"errors"
	"fmt"
)

var (
	// ErrVersionConflict says that the stored row has the same version and the same tie-breakers, and other content: two
	// different events claim one place in the order. What arrived first stays. It can be settled with a further
	// tie-breaker (a rank that the application knows), or by fetching the object anew.
	ErrVersionConflict = errors.New("another event of the same version is stored")

	// ErrVersionAhead says that the version lies further in the future than [Builder.MaxSkew] allows, by the database's
	// clock. Stored, it would make every later event stale. The delivery may be tried again when its time has come.
	ErrVersionAhead = errors.New("the version is too far in the future")

	// ErrInvalidRow says that the row can never be applied: its key, version or a tie-breaker is NULL, it lies outside
	// the predicate of a partial target, a value ends in blanks beyond its column's length, or one cannot be
	// sent to PostgreSQL as drivers send it, or not be read back. Nothing was written.
	ErrInvalidRow = errors.New("the row cannot be applied")

	// ErrUnreadable says that the stored row has a value that its field cannot take, such as a number that another program
	// stored and that is too large. The row is settled: [Result.Outcome] says how, and a retry has the same answer. The
	// field is zero, and the others are set. A field that can never take its column's type is refused before the first write.
	ErrUnreadable = errors.New("the row is settled, but a stored value does not fit its field")

	// ErrUnsettled says that the row was neither written nor seen to be newer, several times in a row. A trigger that
	// skips the row, or row security that hides it, does this.
	ErrUnsettled = errors.New("the row was not written, and no stored row explains why")
)

// RowError is an error of one row. It wraps [ErrVersionConflict], [ErrVersionAhead], [ErrInvalidRow],
// [ErrUnreadable] or [ErrUnsettled], and never holds what the row holds.
type RowError struct {
	Table  string
	Index  int    // position in [Stmt.ExecMany], counted from 0; -1 in [Stmt.Exec]
	Column string // where one column is the reason
	Reason string // in words, where the wrapped error needs them

	err error
}

func (e *RowError) Error() string {
	s := "upsert into " + e.Table
	if e.Index >= 0 {
		s += fmt.Sprintf(", row %d", e.Index)
	}
	if e.Column != "" {
		s += ", column " + e.Column
	}
	s += ": " + e.err.Error()
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Unwrap returns the sentinel.
func (e *RowError) Unwrap() error { return e.err }
