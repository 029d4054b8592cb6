// Package dedup keeps the tables behind package idem: it makes them, proves that their constraints back every key, and
// defines what an observer of claims is told.
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
// process every message take a table each.
//
// # Layouts
//
// [Plain], the zero value, is right for most. [Hash] spreads one primary key over several partitions. [Weekly] is for large
// tables of keys whose own time never changes: what has expired is dropped with its week. [Table.Maintain] keeps each in
// order. Folder layouts has the SQL to change the layout of a table in use.
package dedup
