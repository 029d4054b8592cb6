package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// replicationSQL lists what logical replication makes of the table $1 and its partitions: which of them have no replica
// identity though their updates or deletes are published, and which publications have other tables, where none has all
// of this one. A publication has a table by its own name, by its partitioned table's, or by the schema of either.
//
// The schemas of a publication are read from the dependencies: PostgreSQL 14 has no catalog of them. The view
// pg_publication_tables would say the same, and locks every table that it lists.
var replicationSQL = pg.Pin(relsSQL + `,
pubs AS (
  SELECT p.oid, p.pubname, p.puballtables, p.pubinsert, p.pubupdate OR p.pubdelete AS changes,
         ARRAY(SELECT s.refobjid
                 FROM pg_catalog.pg_depend AS d
                 JOIN pg_catalog.pg_depend AS s ON s.classid = d.classid AND s.objid = d.objid
                WHERE d.classid = to_regclass('pg_catalog.pg_publication_namespace'::text)::oid
                  AND d.refclassid = 'pg_catalog.pg_publication'::regclass::oid AND d.refobjid = p.oid
                  AND s.refclassid = 'pg_catalog.pg_namespace'::regclass::oid) AS schemas
    FROM pg_catalog.pg_publication AS p
),
tables AS (
  SELECT m.prpubid, m.prrelid,
         (to_jsonb(m) ->> 'prqual'::text) IS NULL AND (to_jsonb(m) ->> 'prattrs'::text) IS NULL AS whole
    FROM pg_catalog.pg_publication_rel AS m
),
has AS (
  SELECT p.oid AS pub, r.oid AS rel, true AS whole FROM pubs AS p CROSS JOIN rels AS r WHERE p.puballtables
  UNION ALL
  SELECT p.oid, r.oid, true
    FROM pubs AS p CROSS JOIN rels AS r JOIN rels AS root ON root.oid = $1::int8::oid
   WHERE r.relnamespace = ANY (p.schemas) OR root.relnamespace = ANY (p.schemas)
  UNION ALL
  SELECT m.prpubid, r.oid, m.whole FROM tables AS m JOIN rels AS r ON r.oid = m.prrelid OR m.prrelid = $1::int8::oid
)
SELECT 'no identity', r.nspname::text, r.relname::text, p.pubname::text,
       EXISTS (SELECT FROM pg_catalog.pg_index AS ix
                WHERE ix.indrelid = r.oid AND ix.indisprimary AND ix.indisvalid AND ix.indimmediate)
  FROM rels AS r
  JOIN has AS h ON h.rel = r.oid
  JOIN pubs AS p ON p.oid = h.pub
 WHERE r.relkind = 'r' AND p.changes AND r.relreplident <> 'f'
   AND (r.relreplident = 'n'
        OR NOT EXISTS (SELECT FROM pg_catalog.pg_index AS ix
                        WHERE ix.indrelid = r.oid AND ix.indisvalid AND ix.indimmediate
                          AND CASE WHEN r.relreplident = 'd' THEN ix.indisprimary ELSE ix.indisreplident END))
UNION ALL
SELECT 'absent', '', '', p.pubname::text,
       EXISTS (SELECT FROM tables AS m WHERE m.prpubid = p.oid AND m.prrelid = $1::int8::oid)
  FROM pubs AS p
 WHERE p.pubinsert
   AND (p.schemas <> '{}'::oid[]
        OR EXISTS (SELECT FROM tables AS m LEFT JOIN rels AS r ON r.oid = m.prrelid
                    WHERE m.prpubid = p.oid AND r.oid IS NULL))
   AND NOT EXISTS (
     SELECT FROM pubs AS q
      WHERE q.pubinsert
        AND (EXISTS (SELECT FROM has AS h WHERE h.pub = q.oid AND h.rel = $1::int8::oid AND h.whole)
             OR EXISTS (SELECT FROM rels AS r WHERE r.oid <> $1::int8::oid)
                AND NOT EXISTS (SELECT FROM rels AS r
                                 WHERE r.oid <> $1::int8::oid
                                   AND NOT EXISTS (SELECT FROM has AS h
                                                    WHERE h.pub = q.oid AND h.rel = r.oid AND h.whole))))
 ORDER BY 1 DESC, 2, 3, 4`)

// published is one of them.
type published struct {
	what string
	on   pg.Name
	by   string
	has  bool // a primary key, which can be the identity; or a part of the table
}

func replication(ctx context.Context, conn pg.Conn, oid int64) (all []published, err error) {
	err = conn.Query(ctx, replicationSQL, []any{oid}, func(scan func(...any) error) error {
		var p published
		err := scan(&p.what, &p.on.Schema, &p.on.Table, &p.by, &p.has)
		all = append(all, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's publications: %w", err)
	}
	return all, nil
}

// replication reports what would stop updates and deletes, and what may leave the keys behind.
func (v *verifier) replication(all []published) {
	var last pg.Name
	var absent []string
	add := ""
	for _, p := range all {
		switch {
		case p.what == "absent":
			by := pg.Quote(p.by)
			if absent = append(absent, by); add != "" {
				break
			}
			add = "ALTER PUBLICATION " + by + " ADD TABLE " + v.table.Quoted()
			if p.has {
				add = "ALTER PUBLICATION " + by + " DROP TABLE " + v.table.Quoted() + "; " + add
			}
		case p.on != last: // else published once more
			identity := "FULL"
			if p.has {
				identity = "DEFAULT"
			}
			v.report(replicaIdentity, "the publication "+pg.Quote(p.by)+" sends updates or deletes of "+p.on.String()+
				", which has no replica identity: they fail with 55000, so that no reservation is settled, and no key is purged",
				"ALTER TABLE %s REPLICA IDENTITY %s", p.on.Quoted(), identity)
			last = p.on
		}
	}
	if len(absent) > 0 {
		v.report(notPublished, "other tables are published ("+strings.Join(absent, ", ")+"), and this one is not, "+
			"or not all of it: a server that takes over from a copy of them has effects without their keys, and runs them "+
			"again. "+
			"A copy for other purposes is harmless, and the catalog cannot tell: accept this kind where you know", "%s", add)
	}
}
