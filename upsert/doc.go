// Package upsert writes rows that can only move forward: an event that is older than what is stored, or was applied
// before, changes nothing, in whatever order and however often events arrive.
//
//	var status = upsert.Into[Status]("subscription_status").
//		OnConflict("stripe_subscription_id").
//		Set("status", "plan").
//		Version("updated_at", "rank").
//		MustBuild()
//
//	res, err := status.Exec(ctx, tx, Status{ID: "sub_1", Status: "active", UpdatedAt: event.Created, Rank: 2})
//
// Mechanism: a unique index on the conflict target, found by INSERT ... ON CONFLICT, whose row lock makes rivals wait for each other;
// and a comparison of versions under that lock. [Stmt.Exec] says what it did, one by one and also under races: [Inserted],
// [Updated], [Stale] with the stored row, or [Unchanged]. What it does not promise: that the version is right. It comes
// from the event, and the order that it gives is the order that the table ends in.
//
// # Where to look
//
//   - [Into], [Builder.OnConflict], [Builder.Set], [Builder.SetIfNotNull], [Builder.SetOnInsert]: what is written.
//   - [Builder.Version], [Builder.FirstWins], [Builder.LastWins]: which of two events stays. One of them has to be given.
//   - [Builder.Tombstone]: deletions that late events do not undo. [Builder.MaxSkew]: clocks that run ahead.
//   - [Stmt.Exec] for one row, [Stmt.ExecMany] for many in few statements, [Stmt.SQL] for other drivers and for reading.
//   - [SQL] for database/sql. [Verify] for a test of the tables.
//
// # Choosing a version
//
// A sequence number of the source is best. A time of the source will do when it is fine enough; events that share it need a
// tie-breaker. Some senders count whole seconds, or advise against ordering by their time at all. Then give
// the states a rank that only the application knows (canceled is final, so it ranks highest), or fetch the object again and
// store what the source says now.
//
// The columns of SetIfNotNull and SetOnInsert depend on the order of arrival by their nature; those of Set do not.
//
// # Common mistakes
//
// Each of these is in use somewhere, passes the tests of one worker, and loses data. A test in this package runs every one
// and shows the loss.
//
// No guard. The last to arrive wins, so a late delivery of an older event puts the old state back:
//
//	INSERT INTO status (id, status, updated_at) VALUES ($1, $2, $3)
//	ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at
//
// The time of arrival for a version. There is a guard, and it never stops anything, for now() is always newer than what is
// stored. The late retry wins again:
//
//	INSERT INTO status (id, status, updated_at) VALUES ($1, $2, now())
//	ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at
//	 WHERE status.updated_at < excluded.updated_at
//
// A guard that NULL stops. Once a row without a version is there (added before the column was), the comparison is NULL and
// every event of that entity is lost, without an error:
//
//	... WHERE status.updated_at < excluded.updated_at
//
// A guard that lets equals pass. Of two events in one second the last to arrive wins, so the end depends on the order:
//
//	... WHERE status.updated_at <= excluded.updated_at
//
// A guard that stops equals. Of two events in one second the first to arrive wins; the other, perhaps the cancellation, is lost without
// an error. A tie-breaker settles it, and without one [ErrVersionConflict] tells:
//
//	... WHERE status.updated_at < excluded.updated_at
//
// Looking first. Between the SELECT and the write a rival writes, and its newer state is overwritten:
//
//	SELECT updated_at FROM status WHERE id = $1    -- older, so:
//	UPDATE status SET status = $2, updated_at = $3 WHERE id = $1
//
// Two guards that do not belong together. Versions of two columns are compared each for itself, and the event (2, 1) after (1, 9) is
// lost:
//
//	... WHERE status.updated_at <= excluded.updated_at AND status.rank < excluded.rank
//
// A full row from a partial payload. What the event left out is overwritten with NULL; [Builder.SetIfNotNull] keeps it:
//
//	... DO UPDATE SET status = excluded.status, plan = excluded.plan
//
// DELETE for deletions. Nothing remembers the version of the deletion, so a late "created" is newer than nothing and the row is back:
//
//	DELETE FROM status WHERE id = $1
//
// A tombstone under a partial index. The deleted row does not conflict, so the late "created" is inserted beside it:
//
//	CREATE UNIQUE INDEX ON status (id) WHERE deleted_at IS NULL
//	INSERT ... ON CONFLICT (id) WHERE deleted_at IS NULL DO UPDATE SET ... WHERE status.updated_at < excluded.updated_at
//
// No conflict target. A clash with any other unique constraint is swallowed as if the event were there already:
//
//	INSERT INTO account (id, email) VALUES ($1, $2) ON CONFLICT DO NOTHING
//
// One key twice in a statement of many rows. It fails with 21000, and the whole batch with it; cut to the last by position, it
// keeps the older event when that came last:
//
//	INSERT INTO status VALUES ('a', 'active', '12:00'), ('a', 'canceled', '12:01')
//	ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at
//	 WHERE status.updated_at < excluded.updated_at
//
// MERGE. It does not wait for a rival that inserts the same key, and fails with 23505 once that one has committed:
//
//	MERGE INTO status USING (VALUES ($1, $2, $3)) AS e (id, status, updated_at) ON status.id = e.id
//	 WHEN MATCHED AND status.updated_at < e.updated_at THEN UPDATE SET status = e.status, updated_at = e.updated_at
//	 WHEN NOT MATCHED THEN INSERT VALUES (e.id, e.status, e.updated_at)
package upsert
