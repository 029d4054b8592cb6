package pgerr

import (
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// CommitUnknown reports whether err, as COMMIT returned it, leaves open whether the transaction took place. COMMIT has
// three answers: nil is yes, an error with CommitUnknown false is no, and with CommitUnknown true nobody knows yet.
// Then ask the database, by the key of the transaction's own work, before anything is done again or reported as lost.
//
//	false   nil
//	        an error of severity ERROR: the server rolled back (40001, a deferred constraint, ...)
//	        25P03: the session had ended before COMMIT came
//	        pgx.ErrTxCommitRollback: the transaction had failed before
//	        pgx.ErrTxClosed, sql.ErrTxDone: nothing was sent. An earlier Commit's answer counts
//	true    40003, 08xxx, XXxxx, and every other error of severity FATAL or PANIC
//	        a lost connection, a context that was done, any other error
//
// If err is or wraps an error with a method CommitUnknown() bool, that one decides. Of joined errors one that leaves it
// open is enough.
//
//   - pgx v4 and lib/pq keep the severity only in the server's language. If it is not the English ERROR, an error of
//     the classes 22, 23, 40 and P0 counts as rolled back, and every other as unknown.
//   - Citus answers XX000 with severity ERROR where a worker died during COMMIT, and may have committed.
//   - pq.ErrInFailedTransaction of lib/pq and ErrTxCommitRollback of pgx v4 are a plain no, too, but have no SQLSTATE,
//     and this package does not import theirs. The answer is true: ask errors.Is(err, pq.ErrInFailedTransaction) first.
//
// It is for the error of COMMIT only. The same error of an earlier statement says that there was no COMMIT.
func CommitUnknown(err error) bool {
	if err == nil {
		return false
	}
	f := inspect(err)
	if f.commitAnswered {
		return f.commitUnknown
	}
	// Why not pgconn.SafeToRetry, which promises that nothing was sent: pgx 5.9 to 5.12 answer true when the COMMIT was
	// sent and its reply was lost, and the transaction runs a second time. The row of a key is the better witness anyway.
	if f.unclear() {
		return true
	}
	for _, e := range f.server {
		if !e.rolledBack() {
			return true
		}
	}
	return len(f.server) == 0 &&
		!errors.Is(err, pgx.ErrTxCommitRollback) && !errors.Is(err, pgx.ErrTxClosed) && !errors.Is(err, sql.ErrTxDone)
}

// rolledBack reports whether e, as the answer to COMMIT, says that the transaction was rolled back.
func (e serverError) rolledBack() bool {
	switch {
	// statement_completion_unknown; connections; internal errors
	case e.code == "40003", e.class() == "08", e.class() == "XX":
		return false
	case e.code == "25P03": // idle_in_transaction_session_timeout ends before the next statement is read, never in one
		return true
	case e.severity != "":
		return e.severity == "ERROR"
	case e.label == "ERROR":
		return true
	case e.label == "FATAL", e.label == "PANIC":
		return false
	}
	switch e.class() {
	case "22", "23", "40", "P0": // what deferred constraints and triggers raise, and serialization failures
		return true
	}
	return false
}
