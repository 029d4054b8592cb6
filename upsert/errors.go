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
	// the predicate of a partial target, a value ends in blanks beyond its column's length, or it cannot be sent to
	// PostgreSQL. Nothing was written.
	ErrInvalidRow = errors.New("the row cannot be applied")

	// ErrUnsettled says that the row was neither written nor seen to be newer, several times in a row. A trigger that
	// skips the row, or row security that hides it, does this.
	ErrUnsettled = errors.New("the row was not written, and no stored row explains why")
)

// RowError is an error of one row. It wraps [ErrVersionConflict], [ErrVersionAhead], [ErrInvalidRow] or [ErrUnsettled],
// and never holds what the row holds.
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
