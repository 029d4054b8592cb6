package pgerr

// Duplicate reports whether err is a unique violation (23505) of this constraint, or of one of more, and of nothing
// else. It is the one error that can be taken for success: the row is there, committed, or written by this same
// transaction.
//
// The name is the constraint's or, without a constraint, the unique index's, as PostgreSQL stores it: an unquoted name
// was folded to lower case. A name longer than 63 bytes is cut as the server cuts it. Names that the server made up
// (table_column_key) are shortened otherwise: look them up. An empty or malformed name matches nothing. With a schema,
// "app.payments_pkey", that must be the error's, too; without one every schema matches. Give it where a trigger copies
// rows to a table of the same name. Quote a part that holds a dot: `"App.v2"."odd.name"`.
//
// Some names differ, which is false, so the message comes again:
//
//   - Of a partitioned table it is the partition's: name those in more, or use [IgnoreDuplicate].
//   - Of Citus it is a shard's (payments_pkey_102168), or none: use INSERT ... ON CONFLICT DO NOTHING RETURNING, and
//     count rows.
//   - While REINDEX CONCURRENTLY runs, it may be that of the index's other copy (payments_pkey_ccold).
//
// Of joined errors each one from the server must be such a violation, and none may be a lost connection or a context
// that is done. Ask before you join the errors of several messages.
//
// What true does not say:
//
//   - Of a statement with several rows, and of a COPY, one row was there; the others are not in either.
//   - Of a [pgx.Batch], one statement met the row. Later ones report the same error and never ran: use [SendBatch].
//   - The transaction has failed: roll it back, or to a savepoint, see [IgnoreDuplicate].
//   - CREATE UNIQUE INDEX over rows that are not unique raises the same code with the index's name.
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
