package upsert

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

var (
	// ErrVersionConflict says that the stored row has the same version and tie-breakers, and other content: two
	// different events claim one place in the order. What arrived first stays. Add a tie-breaker (a rank that the
	// application knows), or fetch the object anew.
	ErrVersionConflict = errors.New("another event of the same version is stored")

	// ErrVersionAhead says that the version is further in the future than [Builder.MaxSkew] allows, by the database's
	// clock. Stored, it would make every later event stale. Try the delivery again when its time has come.
	ErrVersionAhead = errors.New("the version is too far in the future")

	// ErrInvalidRow says that the row can never be applied, and nothing was written. Its key, version or a tie-breaker
	// is NULL; or it lies outside the predicate of a partial target; or a value ends in blanks beyond its column's
	// length; or a value cannot be sent to PostgreSQL as drivers send it, or not be read back.
	ErrInvalidRow = errors.New("the row cannot be applied")

	// ErrUnreadable says that the stored row has a value that its field cannot take, such as a number that another
	// program stored and that is too large. The row is settled: [Result.Outcome] says how, and a retry has the same
	// answer. The field is zero, and the others are set. A field that can never take its column's type is refused
	// before the first write.
	ErrUnreadable = errors.New("the row is settled, but a stored value does not fit its field")

	// ErrUnsettled says that the row was neither written nor seen to be newer, several times in a row. A trigger that
	// skips the row does this, and so does row security that hides it.
	ErrUnsettled = errors.New("the row was not written, and no stored row explains why")

	// ErrOtherConstraint says that a unique constraint other than the conflict target, or an EXCLUDE constraint, is
	// violated (23505, 23P01). It comes with the server's error, and the transaction has failed. There are two reasons:
	//
	//   - The same event came twice at once. PostgreSQL looks at the target first, and the rival came after that look.
	//     Run again, the transaction finds the row, so pgerr.Retryable is true.
	//   - Another row has the value. Then the error stays, so set a limit.
	ErrOtherConstraint = errors.New("another constraint than the conflict target is violated")
)

// RowError is an error of one row. It wraps [ErrVersionConflict], [ErrVersionAhead], [ErrInvalidRow], [ErrUnreadable]
// or [ErrUnsettled], and never holds the row's content.
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

// clashError is a violation of another constraint.
type clashError struct {
	table string
	err   error
}

func (e *clashError) Error() string {
	return "upsert into " + e.table + ": " + ErrOtherConstraint.Error() + ": " + e.err.Error()
}

func (e *clashError) Unwrap() []error { return []error{ErrOtherConstraint, e.err} }

// Retryable is what pgerr.Retryable asks.
func (e *clashError) Retryable() bool { return true }

const (
	uniqueViolation    = "23505"
	exclusionViolation = "23P01"
	inFailedTx         = "25P02"
	tooLong            = "22001" // string_data_right_truncation

	// clashTries is how often a statement that clashed is sent again. One is enough against one rival; a batch may meet
	// a second.
	clashTries = 2
)

// sqlState returns the SQLSTATE of a server's error, or "".
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

func clashes(err error) bool {
	state := sqlState(err)
	return state == uniqueViolation || state == exclusionViolation
}

// beyondClashes calls send, and again where the statement met another constraint: a rival may have written the same
// event behind the statement's look for a conflict, and is found by the next one. A failed transaction of the
// caller's answers 25P02 to that; then the first error counts. Why not ask whether there is one: not every driver can
// tell.
func beyondClashes(send func() error) error {
	err := send()
	for n := 0; n < clashTries && clashes(err); n++ {
		next := send()
		if sqlState(next) == inFailedTx {
			return err
		}
		err = next
	}
	return err
}

// withoutContent takes out of a server's error what can hold the row: its detail and context, and the text of those
// that quote a value which does not fit (class 22, save that a string is too long). What a trigger says of a row in
// its own words stays.
func withoutContent(err error) error {
	return pg.WithoutContent(err, func(state string) string {
		if strings.HasPrefix(state, "22") && state != tooLong {
			return "a value does not fit its column or an expression (the server's words may quote it, and are left out)"
		}
		return ""
	})
}
