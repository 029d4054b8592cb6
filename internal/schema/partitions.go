package schema

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// partitioningSQL reads how a table is partitioned. Columns that are expressions have no name.
var partitioningSQL = pg.Pin(`
SELECT p.partstrat::text, pg_get_partkeydef(p.partrelid), p.partdefid <> 0,
       p.partstrat = 'r' AND p.partnatts::int4 = 1
       AND coalesce((SELECT bool_and(coalesce(a.attname = 'bucket' AND o.opcdefault, false))
                       FROM ROWS FROM (unnest(p.partattrs::int2[]), unnest(p.partclass::oid[])) AS k (attnum, class)
                       LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0
                       LEFT JOIN pg_catalog.pg_opclass AS o ON o.oid = k.class), false),
       coalesce((SELECT bool_and(coalesce(a.attname IN ('key', 'operation', 'source'), false))
                   FROM unnest(p.partattrs::int2[]) AS k (attnum)
                   LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0), false)
  FROM pg_catalog.pg_partitioned_table AS p
 WHERE p.partrelid = $1::int8::oid`)

type partitioning struct {
	strategy   string // "h", "r", "l"; "": none
	definition string // as the server prints it, by the session's settings
	hasDefault bool
	weekly     bool // by range of the bucket, which layout Weekly is
	byKey      bool // on columns of the key alone
}

// partitionsSQL lists the partitions. Bounds are read from what the server prints, as in [RangesSQL].
var partitionsSQL = pg.Pin(`
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, i.inhdetachpending,
       coalesce(substring(b.bound from 'modulus ([0-9]+)'), '0')::int8, coalesce(substring(b.bound from 'remainder ([0-9]+)'), '0')::int8
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, 0::oid) AS bound) AS b
 WHERE i.inhparent = $1::int8::oid
 ORDER BY c.relname`)

type partition struct {
	oid                int64
	name               pg.Name
	kind, persistence  string
	pending            bool // a DETACH ... CONCURRENTLY was not finished: rows are no longer routed there
	modulus, remainder int64
}

// partitionIndexesSQL lists what is odd among the unique indexes of the partitions: those that belong to an index of
// the table and are not valid, and those that do not belong to one, unless they hold the whole key.
var partitionIndexesSQL = pg.Pin(`
SELECT n.nspname::text, c.relname::text, ic.relname::text, ix.indisvalid AND ix.indisready
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_index AS ix ON ix.indrelid = c.oid AND ix.indisunique
  JOIN pg_catalog.pg_class AS ic ON ic.oid = ix.indexrelid
 WHERE i.inhparent = $1::int8::oid
   AND (NOT ix.indisvalid OR NOT ix.indisready
        OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhrelid = ix.indexrelid)
           AND (SELECT count(DISTINCT a.attname)
                  FROM ROWS FROM (unnest(ix.indkey::int2[]), unnest(ix.indcollation::oid[]))
                       WITH ORDINALITY AS k (attnum, coll, ord)
                  JOIN pg_catalog.pg_attribute AS a
                    ON a.attrelid = c.oid AND a.attnum = k.attnum AND a.attcollation = k.coll
                 WHERE k.ord <= ix.indnkeyatts AND a.attname IN ('key', 'operation', 'source')) < 3)
 ORDER BY c.relname, ic.relname`)

// partitioningOf returns how a table is partitioned, and its partitions.
func partitioningOf(ctx context.Context, conn pg.Conn, oid int64) (by partitioning, parts []partition, err error) {
	err = conn.Query(ctx, partitioningSQL, []any{oid}, func(scan func(...any) error) error {
		return scan(&by.strategy, &by.definition, &by.hasDefault, &by.weekly, &by.byKey)
	})
	if err == nil {
		err = conn.Query(ctx, partitionsSQL, []any{oid}, func(scan func(...any) error) error {
			var p partition
			err := scan(&p.oid, &p.name.Schema, &p.name.Table, &p.kind, &p.persistence, &p.pending, &p.modulus, &p.remainder)
			parts = append(parts, p)
			return err
		})
	}
	if err != nil {
		return by, nil, fmt.Errorf("read the catalog's partitions: %w", err)
	}
	return by, parts, nil
}

// partitions looks at what the table's own rows in the catalog do not show: each partition has an index, triggers and a
// persistence of its own.
func (v *verifier) partitions(ctx context.Context, conn pg.Conn, oid int64, parts []partition) error {
	for _, p := range parts {
		switch {
		case p.pending: // see pending
		case p.kind != "r":
			v.report(notATable, "the partition "+p.name.String()+" is a foreign or a partitioned table",
				"-- move its keys to an ordinary table, and attach that in its place; detached, its keys run again: ALTER "+
					"TABLE %s DETACH PARTITION %s", v.table.Quoted(), p.name.Quoted())
		case p.persistence != "p":
			v.report(notLogged, "the partition "+p.name.String()+" is not logged: a crash of the server empties it, and "+
				"its keys run again",
				"ALTER TABLE %s SET LOGGED", p.name.Quoted())
		}
	}
	err := conn.Query(ctx, partitionIndexesSQL, []any{oid}, func(scan func(...any) error) error {
		var p pg.Name
		var name string
		var valid bool
		if err := scan(&p.Schema, &p.Table, &name, &valid); err != nil {
			return err
		}
		index := pg.Name{Schema: p.Schema, Table: name}
		if valid {
			v.report(otherUnique, "the unique index "+pg.Quote(name)+" of the partition "+p.String()+" is not the "+
				"table's: two different keys can clash there, and the second fails with 23505",
				"DROP INDEX %s", index.Quoted())
		} else {
			v.report(invalidIndex, "the unique index "+pg.Quote(name)+" of the partition "+p.String()+" is INVALID, and "+
				"proves nothing", "REINDEX INDEX %s", index.Quoted())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the catalog's partitions: %w", err)
	}
	return nil
}

// partitioned reports whether the table is partitioned as its layout says. Of one that is not, nothing else is said.
func (v *verifier) partitioned(by partitioning) bool {
	if v.layout == Weekly && by.weekly || v.layout.Partitions() > 0 && by.strategy == "h" && by.byKey {
		return true
	}
	v.report(otherLayout, "it is partitioned by "+by.definition+", which layout "+v.layout.String()+" is not",
		"-- give the table the layout that it has, or move its keys to a table of the other one")
	return false
}

// hash looks at the partitions by hash: together they must take every key.
func (v *verifier) hash(parts []partition) {
	// A set is complete when each remainder of the largest modulus has its partition: those of smaller ones, which divide
	// it, stand for several.
	modulus := int64(1)
	for _, p := range parts {
		modulus = max(modulus, p.modulus)
	}
	missing := []int64{}
	for r := range modulus {
		taken := false
		for _, p := range parts {
			taken = taken || !p.pending && p.modulus > 0 && r%p.modulus == p.remainder
		}
		if !taken {
			missing = append(missing, r)
		}
	}
	if len(parts) == 0 {
		v.report(noPartition, "the table has no partition, and no key can be claimed", "%s", hashLeaf(v.table, 1, 0))
		return
	}
	for _, r := range missing {
		v.report(noPartition, fmt.Sprintf("there is no partition for the remainder %d of %d: keys that belong there "+
			"cannot be claimed", r, modulus),
			"%s", hashLeaf(v.table, modulus, r))
	}
}
