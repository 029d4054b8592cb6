package schema

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// relsSQL is the table $1 and its partitions, but for those that are half detached: no row goes there, and one that is
// just being detached must not be locked (see [RangesSQL]).
const relsSQL = `
WITH rels AS (
  SELECT c.oid, c.relname, n.nspname, c.relkind, c.relreplident, c.relnamespace, c.relpartbound
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
   WHERE c.oid = $1::int8::oid
      OR c.relispartition
     AND c.oid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i
                    WHERE i.inhparent = $1::int8::oid AND NOT i.inhdetachpending)
)`

// aroundSQL lists what others have attached to the table $1 and its partitions: what can change, keep or delete a row.
// A trigger of a partition that comes from the table's is listed where that one is disabled; before 15 it is internal.
// tgtype: 2 before, 4 insert, 8 delete, 16 update. ev_type 1 is SELECT.
var aroundSQL = pg.Pin(relsSQL + `
SELECT CASE WHEN t.tgtype::int4 & 2 = 2 THEN 'before' ELSE 'after' END, r.nspname::text, r.relname::text, t.tgname::text
  FROM rels AS r
  JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = r.oid
  LEFT JOIN pg_catalog.pg_trigger AS p ON p.oid = t.tgparentid
 WHERE NOT coalesce(p.tgisinternal, t.tgisinternal) AND coalesce(p.tgenabled = 'D', true)
   AND t.tgenabled <> 'D' AND t.tgtype::int4 & 28 <> 0
UNION ALL
SELECT 'rule', r.nspname::text, r.relname::text, w.rulename::text
  FROM rels AS r
  JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = r.oid
 WHERE w.ev_type <> '1' AND w.ev_enabled <> 'D'
UNION ALL
SELECT CASE WHEN con.confrelid IN (SELECT r.oid FROM rels AS r) THEN 'key to' ELSE 'key from' END,
       n.nspname::text, c.relname::text, con.conname::text
  FROM pg_catalog.pg_constraint AS con
  JOIN pg_catalog.pg_class AS c ON c.oid = con.conrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE con.contype = 'f' AND con.conparentid = 0::oid
   AND (con.confrelid IN (SELECT r.oid FROM rels AS r) OR con.conrelid IN (SELECT r.oid FROM rels AS r))
UNION ALL
SELECT 'exclude', r.nspname::text, r.relname::text, con.conname::text
  FROM rels AS r
  JOIN pg_catalog.pg_constraint AS con ON con.conrelid = r.oid
 WHERE con.contype = 'x' AND con.conparentid = 0::oid
UNION ALL
SELECT 'child', n.nspname::text, c.relname::text, ''
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE i.inhparent = $1::int8::oid AND NOT c.relispartition
UNION ALL
SELECT 'parent', n.nspname::text, c.relname::text, ''
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE i.inhrelid = $1::int8::oid
 ORDER BY 1, 2, 3, 4`)

// attachment is one of them: what it is, the table that it is on, and its name.
type attachment struct {
	what string
	on   pg.Name
	name string
}

func (a attachment) foreignKey() bool { return a.what == "key to" || a.what == "key from" }

// around lists what others have attached to the table.
func around(ctx context.Context, conn pg.Conn, oid int64) (all []attachment, err error) {
	err = conn.Query(ctx, aroundSQL, []any{oid}, func(scan func(...any) error) error {
		var a attachment
		err := scan(&a.what, &a.on.Schema, &a.on.Table, &a.name)
		all = append(all, a)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is attached to the table: %w", err)
	}
	return all, nil
}

// attached reports the foreign keys, or everything else.
func (v *verifier) attached(all []attachment, foreignKeys bool) {
	for _, a := range all {
		if a.foreignKey() == foreignKeys {
			v.attachment(a.what, a.on, a.name)
		}
	}
}

func (v *verifier) attachment(what string, on pg.Name, name string) {
	where := ""
	if on != v.table {
		where = " of " + on.String()
	}
	subject := pg.Quote(name) + where
	switch what {
	case "before":
		v.report(beforeTrigger, "the trigger "+subject+" runs before a statement and can change, keep or delete a "+
			"row: a key that it drops runs again, and one that it keeps is never settled",
			"ALTER TABLE %s DISABLE TRIGGER %s", on.Quoted(), pg.Quote(name))
	case "after":
		// The catalog does not say what its function does.
		v.report(afterTrigger, "the trigger "+subject+" runs after a statement: if it deletes or changes rows of this "+
			"table, keys run again. One that only writes elsewhere is harmless, and the catalog cannot tell: accept this "+
			"kind where you know",
			"ALTER TABLE %s DISABLE TRIGGER %s", on.Quoted(), pg.Quote(name))
	case "rule":
		v.report(ruleOn, "the rule "+subject+" rewrites statements: on INSERT or UPDATE, PostgreSQL refuses ON "+
			"CONFLICT, and so every claim; on DELETE, rows may stay or others go",
			"DROP RULE %s ON %s", pg.Quote(name), on.Quoted())
	case "key to":
		v.report(foreignKey, "the foreign key "+subject+" points to the table: a purge of a key that it points to "+
			"fails with 23503, or, with CASCADE, deletes the row that points",
			"ALTER TABLE %s DROP CONSTRAINT %s", on.Quoted(), pg.Quote(name))
	case "key from":
		v.report(foreignKey, "the foreign key "+subject+" points to another table: a claim fails with 23503 where "+
			"that has no row, and with CASCADE keys go with its rows, and run again",
			"ALTER TABLE %s DROP CONSTRAINT %s", on.Quoted(), pg.Quote(name))
	case "exclude":
		v.report(otherConstraint, "the EXCLUDE constraint "+subject+" lets two different keys clash: the second fails "+
			"with 23P01",
			"ALTER TABLE %s DROP CONSTRAINT %s", on.Quoted(), pg.Quote(name))
	case "check":
		v.report(otherConstraint, "the CHECK "+subject+" is not this library's: a claim, or the end of a reservation, "+
			"whose row it refuses fails with 23514 each time that it is tried",
			"ALTER TABLE %s DROP CONSTRAINT %s", on.Quoted(), pg.Quote(name))
	case "child":
		v.report(inheritance, "the table "+on.String()+" inherits from it: its rows are read with this table's and "+
			"are not in the unique index, so that one key can be there twice",
			"ALTER TABLE %s NO INHERIT %s", on.Quoted(), v.table.Quoted())
	case "parent":
		v.report(inheritance, "it inherits from the table "+on.String()+", or is a partition of it: what deletes or "+
			"changes rows of that one does so here",
			"-- detach it, with nobody at work: ALTER TABLE %s NO INHERIT %s, or DETACH PARTITION",
			v.table.Quoted(), on.Quoted())
	}
}

// bearable reports whether Migrate leaves a problem to Verify: it is not of the table's own making, and keeps no
// version of it from being made.
func bearable(p Problem, t Table) bool {
	switch p.Kind {
	case afterTrigger, foreignKey, otherConstraint, replicaIdentity, notPublished,
		referenceTable, byStatements, otherColocation, localTable:
		return true
	case notSpread:
		return t.Spread == Unspread // it may be spread by hand, after this
	}
	return false
}
