package retention

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// The statements below are valid SQL as they stand; see [pg.Marker].

// expiredSQL is the condition of every statement that deletes or counts, on the rows of some pages ($1 and $2). It is
// stated once, in the statement that deletes: at READ COMMITTED a row that somebody changed meanwhile is looked at
// again by it, in its newest version. A sub-select that picks the rows would be asked once, and pick what is a live
// reservation by the time of the DELETE.
//
// What has a lease is not done, whatever has become of the lease. now(), and not the client's clock; of the
// transaction, which is as old as the batch.
const expiredSQL = `
 WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
   AND lease_until IS NULL
   AND processed_at < now() - $3::int8 * interval '1 microsecond'`

// deleteSQL deletes, and does not lock first: a claim of such a key waits for the transaction, and runs when it
// commits. Of a row that is only locked it would be told that it is there. What it has deleted comes back as rows, a
// batch at the most: not every server's command tag can be believed.
var deleteSQL = pg.Pin(`
DELETE FROM /*table*/processed_events` + expiredSQL + `
RETURNING attempt::int8`)

var countSQL = pg.Pin(`
SELECT count(*)::int8 FROM /*table*/processed_events` + expiredSQL)

// findSQL measures a table, or the largest of a partitioned table's leaves, for a range of pages means the same range
// of each. pg_partition_tree is empty for a table that has no part in partitioning, and a partitioned table itself
// has no pages. The last column is for a caller that has not said that the layout is Weekly, whose keys may be longer
// in their window than the age of their rows says.
var findSQL = pg.Pin(`
SELECT c.oid::int8, max(pg_relation_size(part.oid) / current_setting('block_size')::int8)::int8, count(*)::int8,
       EXISTS (SELECT FROM pg_catalog.pg_partitioned_table WHERE partrelid = c.oid AND partstrat = 'r'),
       to_regclass('pg_catalog.citus_shards') IS NOT NULL
  FROM pg_catalog.pg_class AS c
 CROSS JOIN LATERAL (SELECT c.oid UNION SELECT relid::oid FROM pg_partition_tree(c.oid) WHERE isleaf) AS part (oid)
 WHERE c.oid = to_regclass($1::text) AND c.relkind IN ('r', 'p')
 GROUP BY c.oid`)

// shardsSQL measures a table that Citus spreads over its nodes, or the largest of its leaves: pg_relation_size is 0
// there. A range of pages means the same range of each shard. The count is 0 where the table is not spread.
const shardsSQL = `
SELECT pg_catalog.count(*)::pg_catalog.int8,
       (coalesce(pg_catalog.max(s.shard_size), 0::pg_catalog.int8) OPERATOR(pg_catalog./)
         pg_catalog.current_setting('block_size')::pg_catalog.int8) OPERATOR(pg_catalog.+) 1::pg_catalog.int8
  FROM pg_catalog.citus_shards AS s
  JOIN (SELECT $1::pg_catalog.int8::pg_catalog.oid
        UNION
        SELECT t.relid::pg_catalog.oid
          FROM pg_catalog.pg_partition_tree($1::pg_catalog.int8::pg_catalog.oid::pg_catalog.regclass) AS t) AS part (oid)
    ON s.table_name::pg_catalog.oid OPERATOR(pg_catalog.=) part.oid`

// lockSQL keeps other purges of the table away for as long as the transaction lasts.
var lockSQL = pg.Pin(`SELECT pg_try_advisory_xact_lock($1::int4, $2::int8::oid::int4)`)

// giveWaySQL bounds the wait for a row that somebody else has locked. Meanwhile claims of keys that the batch has
// deleted already wait, too. It's less than the server waits before it looks for deadlocks, so that it is the purge
// that gives way.
//
// It comes after lockSQL: the portal of a SELECT lives until the next statement, and its snapshot with it, which
// would keep VACUUM from its work during the rest. A SET has none.
const giveWaySQL = `SET LOCAL lock_timeout = '100ms'`

// everywhereSQL has Citus tell its other nodes of giveWaySQL, which follows: the locks are there.
const everywhereSQL = `SET LOCAL citus.propagate_set_commands = 'local'`

// lockClass is the first four bytes of SHA-256("pgonce purge"), less the sign; the second number of the lock is the
// table's oid.
const lockClass int64 = 0x01e693ac

type statements struct{ delete, count string }

func render(name pg.Name) statements {
	return statements{delete: name.Into(deleteSQL), count: name.Into(countSQL)}
}

// Texts returns every statement on the table of this name, for tests that prepare them on a server.
func Texts(name pg.Name) []string {
	s := render(name)
	return []string{s.delete, s.count, findSQL, lockSQL, giveWaySQL}
}

//go:embed sql/purge.sql
var blockSQL string

// Block returns a purge as one statement, for a scheduler inside of the database.
func Block(p Purge) string {
	sql := strings.NewReplacer(
		pg.Marker, p.Name.Quoted(),
		"/*name*/'processed_events'", literal(p.Name.Quoted()),
		"/*keep*/3024000", seconds(p.Keep),
		"/*rest*/4", strconv.Itoa(max(p.Rest, 0)),
		"/*class*/1", strconv.FormatInt(lockClass, 10),
	).Replace(blockSQL)
	// The block's quotes must not occur in it, and a table's name may hold anything.
	const tag = "$pgonce$"
	if strings.Count(sql, tag) == 2 {
		return sql
	}
	body := strings.TrimSuffix(strings.TrimPrefix(sql[strings.Index(sql, "DO "+tag):], "DO "+tag), tag+";\n")
	return "DO " + literal(body) + ";\n"
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func seconds(d time.Duration) string {
	us := d.Microseconds()
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%d.%06d", us/1e6, us%1e6), "0"), ".")
}
