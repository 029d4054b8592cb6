package pgerr

// SQLSTATEs that programs branch on, by the names that PostgreSQL's manual gives them. Compare others as strings.
const (
	NotNullViolation       = "23502"
	ForeignKeyViolation    = "23503"
	UniqueViolation        = "23505"
	CheckViolation         = "23514"
	ExclusionViolation     = "23P01"
	ReadOnlySQLTransaction = "25006" // a write to a standby, or in a READ ONLY transaction
	InFailedSQLTransaction = "25P02" // an earlier statement failed
	SerializationFailure   = "40001"
	DeadlockDetected       = "40P01"
	UndefinedTable         = "42P01"
	LockNotAvailable       = "55P03" // lock_timeout or NOWAIT
	QueryCanceled          = "57014" // statement_timeout or a cancel request
)

// Code returns the SQLSTATE of the server's error that err is or wraps, or "". Of several joined errors it is the
// first.
func Code(err error) string {
	if f := inspect(err); len(f.server) > 0 {
		return f.server[0].code
	}
	return ""
}

// Constraint returns the name of the constraint or index in the error whose code [Code] returns, or "". It is for logs
// and messages: errors of many codes name a constraint, so it does not tell a duplicate. See [Duplicate].
func Constraint(err error) string {
	if f := inspect(err); len(f.server) > 0 {
		return f.server[0].constraint
	}
	return ""
}

// Is reports whether err is, or wraps, a server's error with this SQLSTATE. Of several joined errors one is enough, as
// with [errors.Is].
func Is(err error, code string) bool {
	for _, e := range inspect(err).server {
		if e.code == code {
			return true
		}
	}
	return false
}
