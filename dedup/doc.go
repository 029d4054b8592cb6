// Package dedup keeps the tables behind package idem: it makes them, proves their constraints, deletes expired keys,
// and defines what an observer is told. The guarantee of pgonce is one line of DDL:
//
//	PRIMARY KEY (key, operation, source)
//
// (Layout [Weekly] adds a column, which CHECKs derive from the key.) So the first question is whether that constraint
// is there, and sound. [Verify] answers it from the catalog.
//
//	if err := dedup.Migrate(ctx, pool); err != nil { // or Table.DDL, with a migration tool of your own
//		return err
//	}
//	if err := dedup.Verify(ctx, pool); err != nil { // as the role that claims
//		return err
//	}
//
// # How many tables, which layout
//
// One table is enough for most programs: source and operation are part of every key. Consumer groups that must each
// process every message take an operation each in their idem.Scope. Senders whose windows differ much take a table
// each.
//
// [Plain], the zero value, is right for most. [Hash] spreads one primary key over partitions. [Weekly] is for large
// tables of keys whose own time never changes: a week's keys expire with their partition. Folder layouts, beside this
// file, has the SQL to change the layout of a table in use.
//
// # Retention
//
// A key is remembered for [Table].Retention after its claim, by the database's clock; 35 days by default. What comes
// later runs again, unless the key has a time of its own (idem.Key.OccurredAt): then it is idem.ErrExpired. Nothing
// goes by itself, so run one of these:
//
//	Table.Purge             once, of Plain and Hash; Cleaner.Count says beforehand how many it would delete
//	Table.Maintain          once, of every layout: Weekly needs it, or claims fail after 8 weeks
//	Cleaner.Run             Maintain again and again, in any number of processes; idemsql.Clean over database/sql
//	Table.PurgeSQL          one statement for pg_cron, of Plain and Hash
//
// What a purge does with each kind of row:
//
//	done, inside the window            stays
//	done, or finally failed, expired   goes
//	reserved, its lease alive          stays, however old
//	unfinished, or unknown             stays, however old, until it is settled (idem.Once.Pending)
//	not committed yet                  stays; its age counts from BEGIN (with a time of its own: from the claim)
//	settled late, after its window     goes with the next purge: the window counts from the reservation
//
// A purge leaves a hundredth of the window more, at most a day, for senders whose clocks run ahead. A raised retention
// brings no purged keys back: it is in force once the longer time has passed.
//
// Choose a window longer than the message may come again: by automatic retries, by hand, from a dead-letter queue, from
// a rewound topic. Say it in [Table].Resends, and [Verify] compares. An [Ages] says how much of the window duplicates
// have used.
//
// A key takes 200 to 250 bytes with its index (a UUID; see internal/RUNS.md). 1,000 claims a second for 35 days are 3
// billion keys, 600 to 750 GB. If that is too much, give the sender that causes it a shorter window, in a table of its
// own. Files do not shrink: later keys use the room of deleted ones once VACUUM has been there. [Migrate] has it come
// after one deleted key in fifty.
//
// # Rights
//
// Claims need SELECT, INSERT, UPDATE and DELETE on the table, and no more. Let only owners create in a schema of your
// search path: on PostgreSQL 14 every role may create in public, until you REVOKE CREATE ON SCHEMA public FROM PUBLIC.
// This library's SQL names the schema of every operator and function, so such a role cannot capture them. Your own SQL
// may not.
//
// # After a restore or a failover
//
// What loses time loses keys and effects together. Restore and publish the table with the tables of its effects, all
// from one moment: a key without its effect stays a duplicate, and nothing says so. RESTORE.md, beside this file, has
// the rest.
package dedup
