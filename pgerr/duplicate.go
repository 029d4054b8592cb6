package pgerr

// Duplicate reports whether err is a unique violation (23505) of this constraint, or of one of more, and of nothing else.
// It is the one error that can be taken for success: the row is there, committed, or written by this same transaction.
// Every other error is false: another code that carries the constraint's name, another constraint, an error without a
// name, a connection that was lost.
//
// The name is the constraint's or, for a unique index that is no constraint, the index's, as PostgreSQL stores it: an
// unquoted name was folded to lower case when it was made. A longer name than the 63 bytes that PostgreSQL keeps is cut as
// the server cuts it; a name that the server made up (table_column_key) is shortened in another way, so look it up. A
// name that is empty or malformed matches nothing.
//
// A name may have a schema, "app.payments_pkey", which must then be the error's, too. Without one it matches in every
// schema, because the error does not say which one the statement meant. Where a trigger copies rows to a table of the same
// name in another schema, give the schema. A part that holds a dot is written in quotes: `"App.v2"."odd.name"`.
//
// Of a partitioned table the server names the partition's constraint. Name those in more, or use [IgnoreDuplicate].
//
// Citus names a shard's constraint (payments_pkey_102168), or none: that is false, so the message comes again. There, use
// INSERT ... ON CONFLICT DO NOTHING RETURNING, and count rows.
//
// Of errors that were joined each one from the server must be such a violation, and none may be a lost connection or a
// context that is done. Ask before you join the errors of several messages.
//
// What true does not say:
//
//   - Of a statement with several rows, and of a COPY, it says that one row was there; the others are not in either.
//   - Of a [pgx.Batch] it says that one statement met the row. Later ones report the same error and never ran: use
//     [SendBatch].
//   - The transaction has failed: roll it back, or to a savepoint, see [IgnoreDuplicate].
//   - CREATE UNIQUE INDEX over rows that are not unique raises the same code with the index's name.
//
// While REINDEX CONCURRENTLY runs, the server may name the index's other copy (payments_pkey_ccold). That is false here,
// so the message comes again.
func Duplicate(err error, constraint string, more ...string) bool {
	f := inspect(err)
	if len(f.server) == 0 || f.unclear() {
		return false
	}
	for _, e := range f.server {
		if !e.violates(constraint) && !violatesAny(e, more) {
			return false
		}
	}
	return true
}

func violatesAny(e serverError, constraints []string) bool {
	for _, c := range constraints {
		if e.violates(c) {
			return true
		}
	}
	return false
}

// violates reports whether e is a unique violation of the constraint with this name.
func (e serverError) violates(constraint string) bool {
	want, err := parseName(constraint)
	return err == nil && e.code == UniqueViolation && want.names(e)
}

// names reports whether e carries this name, and this schema where n has one.
func (n name) names(e serverError) bool {
	return stored(n.constraint, e.constraint) && (n.schema == "" || stored(n.schema, e.schema))
}
