// Package upsert writes rows that only move forward. An event that is older than the stored row, or was applied before,
// changes nothing, in whatever order and however often events arrive.
//
//	var status = upsert.Into[Status]("subscription_status").
//		OnConflict("stripe_subscription_id").
//		Set("status", "plan").
//		Version("updated_at", "rank").
//		MustBuild()
//
//	res, err := status.Exec(ctx, tx, Status{ID: "sub_1", Status: "active", UpdatedAt: event.Created, Rank: 2})
//
// Mechanism: a unique index, whose row lock INSERT ... ON CONFLICT takes, and a comparison of versions under that lock.
// [Stmt.Exec] says what it did, also under races: [Inserted], [Updated], [Stale] or [Unchanged]. It does not promise
// that the version is right: the version comes from the event, and rows end in the order that it gives.
//
// # Where to look
//
//   - [Into], [Builder.OnConflict], [Builder.Set], [Builder.SetIfNotNull], [Builder.SetOnInsert]: what is written.
//   - [Builder.Version], [Builder.FirstWins], [Builder.LastWins]: which of two events stays. Give exactly one.
//   - [Builder.Tombstone]: deletions that late events do not undo. [Builder.MaxSkew]: clocks that run ahead.
//   - [Stmt.Exec] for one row, [Stmt.ExecMany] for many, [Stmt.SQL] for other drivers and for reading.
//   - [SQL] for database/sql. [Verify] for a test of the tables.
//   - MISTAKES.md, beside this file: upserts by hand that lose data, and how.
//
// # Choosing a version
//
// A sequence number of the source is best. A time of the source will do if it is fine enough; events that share a time
// need a tie-breaker. Some senders count whole seconds, or advise against ordering by time. Then rank the states as
// only the application can (canceled is final, so it ranks highest). Or fetch the object again, and store what the
// source says now.
//
// Columns of SetIfNotNull and SetOnInsert depend on the order of arrival. Those of Set do not.
package upsert
