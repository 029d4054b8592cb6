// Package dedup keeps the tables behind package idem: it makes them, proves that their constraints back every key, deletes
// the keys that have expired, and defines what an observer is told.
//
// The guarantee of pgonce is one line of DDL, the primary key of the table:
//
//	PRIMARY KEY (key, operation, source)
//
// (On layout [Weekly] it has one column more, which CHECKs derive from the key.)
//
// Everything else in the library is about keeping the row of that key and the effect in one transaction. So the first
// question about a system that uses it is whether that constraint is there, and sound. [Verify] answers it from the
// catalog, and returns each problem with the statement that mends it; call it when the program starts, or in its tests.
//
// # Making the table
//
// [Migrate] makes and updates it. With a migration tool of your own, take [Table.DDL].
//
//	if err := dedup.Migrate(ctx, pool); err != nil {
//		return err
//	}
//	if err := dedup.Verify(ctx, pool); err != nil { // as the role that claims
//		return err
//	}
//
// # How many tables
//
// One is enough for most programs: source and operation are part of every key. Two consumer groups that must each
// process every message take an operation each in their idem.Scope. Two senders whose windows differ much take a
// table each.
//
// # Layouts
//
// [Plain], the zero value, is right for most. [Hash] spreads one primary key over several partitions. [Weekly] is for large
// tables of keys whose own time never changes: what has expired is dropped with its week. [Table.Maintain] keeps each in
// order. Folder layouts has the SQL to change the layout of a table in use.
//
// # Retention
//
// A key is remembered for [Table].Retention from its claim on, by the database's clock: 35 days if nothing else is said. What
// comes again later runs again, unless the key carries the time of its event (idem.Key.OccurredAt): then it is refused with
// idem.ErrExpired. (A purge leaves a hundredth of the window, at most a day, for senders whose clocks run ahead of the
// database's.) Nothing goes by itself. Have one of these run:
//
//	Table.Purge             once, of Plain and Hash; Cleaner.Count says beforehand how many it would delete
//	Table.Maintain          once, of every layout: Weekly needs it, or claims fail after 8 weeks
//	Cleaner.Run             Maintain again and again, in any number of processes; idemsql.Clean over database/sql
//	Table.PurgeSQL          one statement for pg_cron, of Plain and Hash
//
// Without any of them a table of layout Plain or Hash grows, and every key is remembered. A Weekly one has no statement for
// pg_cron: DETACH PARTITION ... CONCURRENTLY cannot be run from inside of a function or a DO block.
//
// What a purge does with each kind of row:
//
//	done, inside of the window         stays
//	done, or finally failed, expired   goes
//	reserved, its lease alive          stays, however old
//	unfinished, or unknown             stays, however old: only a person or a reconciliation may settle it (idem.Once.Pending)
//	not committed yet                  stays; once it is committed, its age counts from the beginning of its transaction (with a time of its own from the claim)
//	settled late, after its window     goes with the next purge: the window counts from the reservation, not from its end
//
// A retention that was raised does not bring purged keys back: it is in force once the longer time has passed.
//
// How long must a window be? Longer than the last moment at which the sender may deliver the message again: its automatic
// retries, what its people can send again by hand, what lies in a dead-letter queue until somebody puts it back, and what a
// topic still holds when somebody rewinds it. Say what you know of it in [Table].Resends, and [Verify] compares. Then look at
// what happens: the event of every duplicate has the age of its original, and an [Ages] says how much of the window was
// used. A key takes about 250 bytes with its index: 1,000 claims a second for 35 days are 3 billion keys, some 750 GB. Where that
// is too much, a shorter window for the sender that causes it, in a table of its own, is the first thing to look at.
//
// Deleted rows leave room that later keys use, once VACUUM has been there; the files do not shrink. [Migrate] has it come
// after one key in fifty was deleted, and not after one in five, as is the default: less at a time, so that claims notice less.
//
// # Rights
//
// Claims need SELECT, INSERT, UPDATE and DELETE on the table, and no more. Let nobody but owners create in a schema of
// your search path. On PostgreSQL 14 every role may create in public, until you REVOKE CREATE ON SCHEMA public FROM
// PUBLIC. What this library sends names the schema of every operator and function, so that such a role cannot
// capture them. Your own SQL may not.
//
// # After a restore or a failover
//
// Keys are rows of this database, and no safer than its other rows. If it is set back to an earlier moment (a backup, a
// point in time, a standby that had not received everything), the keys of the lost time are lost, and so are the effects
// that were committed with them: still together, never one without the other. What follows from that:
//
//   - A message of the lost time that is delivered again runs again. For what it did in this database that is right, for that is gone.
//   - A message of the lost time that was acknowledged, and is not delivered again, stays lost, like any other row. Have the sender
//     send that time again (a rewound topic, a resend of events); whatever survived is recognised as a duplicate.
//   - What it did elsewhere (a charge, a mail, a message) is not gone. Run again, that is done twice, unless the other
//     system recognises it: pass idem.Key.External, which comes from the key alone and so is the same as before. A reservation that
//     was lost begins at attempt 1 again, and does not know that the provider may have forgotten.
//   - A reservation that the restore brings back as it was may have been settled in the lost time. It is unfinished, and asks
//     to be settled, as after a crash.
//   - A purge that was lost is repeated. Keys that come back from a backup are deleted by their age, which is the true one.
//   - A table of layout Weekly that comes back from a backup some weeks old may have no partition for this week. Claims fail with
//     an error that names the table, and nothing runs, until Maintain or [Migrate] has run: do that first.
//
// A key that is restored or replicated without its effects stays a duplicate: the effect is lost, and nothing says
// so. Restore and publish the table together with the tables of its effects, all from one moment.
//
// With a synchronous standby, a COMMIT whose wait is cancelled (a cancelled query, an administrator, a fast shutdown)
// is committed here, and the server says so with a warning alone. The outcome is executed, though no standby may have
// it: after a failover it may be lost.
//
// How much can be lost: with asynchronous replication what the standby had not received, normally less than a second, but
// without a bound; with synchronous_standby_names and synchronous_commit = on nothing that was acknowledged, as long as
// it is a synchronous standby that is promoted; with synchronous_commit = off up to three times wal_writer_delay after a crash of
// the server itself; from a backup everything since its last archived WAL. The window does not have to be longer for any of
// that, except for one thing: the time that a sender goes on delivering while the database is away counts into it.
package dedup
