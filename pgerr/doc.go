// Package pgerr answers what a program asks about an error of PostgreSQL: is this a duplicate, may the transaction run
// again, did the COMMIT take place. It looks at codes, names and types, never at a message's text.
//
//	_, err := tx.Exec(ctx, `INSERT INTO payments (event_id, amount) VALUES ($1, $2)`, id, amount)
//	if pgerr.Duplicate(err, "app.payments_event_id_key") {
//		return tx.Rollback(ctx) // the event was processed before
//	}
//
// [Duplicate] asks for code, constraint and, if given, schema. 23505 alone may come from another constraint, or from a
// table that a trigger writes to. The name alone is also in a check (23514), an exclusion (23P01) or an index row that
// is too large (54000).
//
// The server has failed the transaction by then. [IgnoreDuplicate] runs the insert under a savepoint, so that the
// transaction can go on, and knows the partitions of a table. [SendBatch] gives each statement of a [pgx.Batch] an
// error of its own. [Retryable] says whether the whole transaction may run again. [CommitUnknown] is for the error of a
// COMMIT, which has three answers: yes, no, and unknown. [Code], [Constraint] and [Is] are for everything else.
//
// It recognises errors of pgx v5 and v4, pgx/stdlib, lib/pq, and any driver whose errors have a method SQLState()
// string. They may be wrapped as [errors.As] knows it. The functions that take an error accept nil, and are safe for
// concurrent use. [IgnoreDuplicate] and [SendBatch] are as safe as the transaction or pool that they are given.
package pgerr
