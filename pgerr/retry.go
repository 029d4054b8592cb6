package pgerr

// Retryable reports whether the transaction that ended with err may run again, as a whole and from its start, with hope
// of success. Roll the old one back first, wait a little longer each time, and set a limit.
//
//	true    40001, 40P01                 serialization failure, deadlock
//	        55P03                        lock_timeout, NOWAIT
//	        08xxx without 08007          connection failed; PgBouncer's own refusals are 08P01
//	        57P01 57P02 57P03 57P05      server stops, starts or recovers; idle session ended
//	        26000                        a prepared statement is gone: the driver makes it anew
//	        XX000 58000, of severity FATAL   how some poolers say that they have no server
//	        25006                        read-only: after a failover, the connection may lead to a standby
//	        53000 53100 53200 53300      out of a resource: disk, memory, connections
//	        a lost or refused connection, and a statement that was not sent at all (pgconn.SafeToRetry)
//	        an error of the server that is wrapped in one with a method Retryable() bool that returns true:
//	        upsert.ErrOtherConstraint, as when one event came twice at once
//
//	false   nil
//	        a context of the caller that is canceled or past its deadline
//	        57014, 25P03, 25P04          somebody set a limit and it was reached; whoever set it decides
//	        08007, 40003                 the server does not know whether the transaction was committed
//	        53400                        a configured limit, which the next run would meet again
//	        constraint violations, syntax, permissions, wrong passwords, and every other code
//	        25P02                        ask about the error that failed the transaction instead
//	        any other error
//
// Of joined errors, each one from the server must be of the first kind, and none may be a context's error. After 25006
// close the connection rather than return it to its pool.
//
// Some values have two meanings, and the answer is true: set a limit, and look at ctx.Err() as well.
//
//   - [io.ErrUnexpectedEOF] and [io.EOF] come from a server that hangs up, and from a decoder of a body that was cut:
//     decode before the transaction.
//   - context.DeadlineExceeded inside a [pgconn.ConnectError] may be the end of connect_timeout.
//   - A network error may come from another client that the transaction's code uses.
//   - pgx/stdlib returns [driver.ErrBadConn] for a statement that it did not send because the context was done.
//
// For the error of a COMMIT ask [CommitUnknown] first: Retryable cannot see which statement lost the connection, and
// running again is then right only if the transaction can notice its own earlier commit. An error with a method
// CommitUnknown() bool that returns true is never retryable.
func Retryable(err error) bool {
	f := inspect(err)
	if f.canceled || f.commitUnknown {
		return false
	}
	for _, e := range f.server {
		if !e.passes() {
			return false
		}
	}
	return f.lost || len(f.server) > 0
}

// passes reports whether the condition of e may have passed when the transaction is run again.
func (e serverError) passes() bool {
	if e.again {
		return true
	}
	switch e.code {
	case SerializationFailure, DeadlockDetected, LockNotAvailable, ReadOnlySQLTransaction,
		"57P01", "57P02", "57P03", "57P05", // shutdowns, recovery, idle_session_timeout
		"26000",                            // invalid_sql_statement_name
		"53000", "53100", "53200", "53300": // disk, memory, connections
		return true
	case "XX000", "58000":
		return e.severity == "FATAL" || e.severity == "" && e.label == "FATAL"
	case "08007": // transaction_resolution_unknown
		return false
	}
	return e.class() == "08"
}
