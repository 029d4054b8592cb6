package idem

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/jackc/puddle/v2"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/pgerr"
)

// What a caller branches on, with errors.Is. Each comes wrapped in an *[Error]. None is a duplicate, and none means
// that the message may simply be acknowledged: see the table in the package documentation.
var (
	// ErrInProgress: another call holds the key, and may still fail. The same delivery should come again later.
	ErrInProgress = claim.ErrInProgress

	// ErrUnfinished: the key's reservation has run out, so its effect may be half done.
	ErrUnfinished = claim.ErrUnfinished

	// ErrPayloadMismatch: the key was used before with another payload ([Key.WithPayload]).
	ErrPayloadMismatch = claim.ErrPayloadMismatch

	// ErrExpired: the key's time ([Key.OccurredAt]) lies before the table's retention, and there is no row. It may have
	// been processed and purged, so it is not run.
	ErrExpired = claim.ErrExpired

	// ErrFuture: the key's time lies too far ahead of the database's clock, so it is not run: nobody could tell later
	// whether the key has left the window. The limit is 24 hours on a table of layout dedup.Weekly. On others it is a
	// two-hundredth of the retention, at most 12 hours; 4 hours and 12 minutes of 35 days.
	ErrFuture = claim.ErrFuture

	// ErrNotFound: [Once.Lookup] or [Once.Forget] found no row.
	ErrNotFound = claim.ErrNotFound

	// ErrNested: a call that writes a key was made inside that key's own fn. It would wait for itself, or take for a
	// duplicate what has not happened yet. Both calls fail, for the code is wrong; see [Do].
	ErrNested = claim.ErrNested
)

// FinalError says that the key has ended in a failure that no retry can help.
type FinalError struct {
	Value []byte // what the failing call stored about it
	Err   error  // in the call that failed: the error itself; in a duplicate: nil
}

// Error does not print the value.
func (e *FinalError) Error() string { return "the key ended in a final failure" }

// Unwrap returns the error that the call failed with, if it is this call.
func (e *FinalError) Unwrap() error { return e.Err }

// Stage is where in a call an error came.
type Stage string

// The stages of an [Error].
const (
	StageTable    = Stage(claim.StageTable)    // the table's settings, or a key that it cannot hold; nothing was sent
	StageSettings = Stage(claim.StageSettings) // those of Once; nothing was sent
	StageClaim    = Stage(claim.StageClaim)    // inserting the key's row, and what a row that is there means
	// reading that row; [Reservation.Confirm]; a transaction that was lost behind fn
	StageConfirm = Stage(claim.StageConfirm)
	StageFn      = Stage(claim.StageFn) // what fn did to its transaction; effects that [Once.Apply] refuses
	StageCommit  = Stage(claim.StageCommit)
	StageLookup  = Stage(claim.StageLookup)
	StageForget  = Stage(claim.StageForget)
	StageValue   = Stage(claim.StageValue) // what was to be stored, or is stored
	StageStore   = Stage(claim.StageStore) // storing it
	StageReserve = Stage(claim.StageReserve)
	StageSend    = Stage(claim.StageSend) // before or after [Call].Send
	StageExtend  = Stage(claim.StageExtend)
	StageRelease = Stage(claim.StageRelease)
	StageFail    = Stage(claim.StageFail)
	StageVoid    = Stage(claim.StageVoid)
	StagePending = Stage(claim.StagePending)
)

// Error is every error of this package that is not the effect's own or a *[KeyError]. It never holds a key or a
// payload.
type Error struct {
	Scope Scope
	Table string // as in dedup.Table.Name; empty for the default table

	// Stage is where it came.
	Stage Stage

	// Unknown is true if COMMIT was not answered and its result could not be found out: the effect is there once, or
	// not at all. The same key, delivered again, gets the right answer. See pgerr.CommitUnknown.
	Unknown bool

	Err error // the cause: a sentinel of this package, or the error of the server or driver
}

// Error names the stage and the scope, then the cause, then what to do where that is known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("idem: " + string(e.Stage))
	if e.Scope != (Scope{}) {
		b.WriteString(" (" + e.Scope.Source + ", " + e.Scope.Operation + ")")
	}
	b.WriteString(": ")
	if e.Unknown {
		b.WriteString("the outcome is unknown: ")
	}
	b.WriteString(e.Err.Error()) // and, behind it, what the engine knows to do about it
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CommitUnknown is what pgerr.CommitUnknown asks: only an error of the commit can leave it open.
func (e *Error) CommitUnknown() bool { return e.Unknown }

// Retryable reports whether the same delivery, sent again later, may succeed without anybody's doing. It is the column
// "again?" of the table in the package documentation. A context that ended and a closed pool are true: a consumer that
// shuts down must not send its message to the dead letters. So are a limit of time that was reached, and a server that
// is short of something.
//
// All else is false, nil too. Keep the message all the same: a missing table wants an operator, and then the delivery
// again. pgerr.Retryable is about running a transaction again at once, and is false for reached limits.
func Retryable(err error) bool {
	var e *Error
	var final *FinalError
	var attempt *front.Attempt
	switch {
	case err == nil, errors.As(err, &final): // whatever Final was said of
		return false
	case errors.As(err, &e) && e.Stage == StageFn:
		return false // whatever fn met: the key may be committed without the whole effect
	case errors.As(err, &attempt) && attempt.Again:
		return true
	case errors.Is(err, ErrInProgress), errors.Is(err, ErrLostLease):
		return true
	case errors.As(err, &e) && e.Unknown:
		return true
	case errors.As(err, &e) && (e.Stage == StageClaim || e.Stage == StageReserve) && pgerr.Is(err, "23505"):
		return true // the key's index is being rebuilt concurrently
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	case pgerr.Is(err, "57014"), pgerr.Is(err, "25P03"), pgerr.Is(err, "25P04"):
		return true // statement_timeout or a cancel request, idle_in_transaction_session_timeout, transaction_timeout
	case errors.Is(err, puddle.ErrClosedPool), errors.Is(err, sql.ErrConnDone), errors.Is(err, closedDB()):
		return true // the program shuts down
	}
	return pgerr.Retryable(err)
}

// closedDB returns the error of a *sql.DB that is closed, which database/sql has no name for.
func closedDB() error {
	db := sql.OpenDB(nowhere{})
	_ = db.Close()
	_, err := db.Conn(context.Background())
	return err
}

type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, driver.ErrBadConn }
func (nowhere) Driver() driver.Driver                        { return nil }

// translate gives the engine's failures the types of this package. The effect's own errors pass as they are.
func (o Once) translate(scope Scope, err error) error {
	return front.Translate(err, front.Types{
		Fault: func(f *front.KeyFault) error { return &KeyError{f.Role, f.Problem} },
		Final: func(f *claim.Final) error { return &FinalError{Value: f.Value, Err: f.Err} },
		Failure: func(f *claim.Failure, cause error) error {
			return &Error{Scope: scope, Table: o.Table.Name, Stage: Stage(f.Stage), Unknown: f.CommitUnknown, Err: cause}
		},
	})
}
