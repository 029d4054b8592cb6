package outbox

import (
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// Lanes is how many lanes a table has. It is no setting: two programs with different numbers would put one key into
// two lanes, and its order would be gone.
const Lanes = 32

// The statements are valid SQL as they stand. The texts behind the markers are replaced by quoted names.
const (
	marker      = "/*table*/outbox"
	lanesMarker = "/*lanes*/outbox_lanes"
	heldMarker  = "/*held*/outbox_held"
	dueMarker   = "/*due*/outbox_due"
)

// appendSQL adds an event. The lane's expression is evaluated before the identity, which is the next column: so
// whoever takes a number has a transaction id already. The low mark of a relay rests on that, see [lowMarks].
var appendSQL = pg.Pin(`
INSERT INTO /*table*/outbox (topic, key, lane, id, headers, payload)
VALUES ($1::text, $2::text, CASE WHEN pg_current_xact_id() IS NOT NULL THEN $3::int8::int2 END,
        $4::text::uuid, $5::text::jsonb, $6::bytea)`)

// What a relay writes (this, doneSQL, restSQL and what follows that) does not wait for the disk or for a standby.
// Where a crash undoes it, events are published again, as they may be anyway, and who has read them finds no token of
// its own.

// claimSQL leases the lane whose first event has waited longest. Events that failed and are due again come first or
// last, as $4 has it: 0, or a number above all. Of several such lanes the one that was left alone for longest is next.
// No lease is longer than an hour: one that ends in two or later was written before the clock was set back.
//
// Why not read the events in the same statement: a statement sees what its snapshot saw, and that is older than the
// lease. It would read what the last owner of the lane has deleted meanwhile.
var claimSQL = pg.Pin(`
UPDATE /*lanes*/outbox_lanes
   SET token = $1::int8, lease_until = clock_timestamp() + $2::int8 * interval '1 microsecond'
 WHERE lane = (
  SELECT l.lane FROM /*lanes*/outbox_lanes AS l
   CROSS JOIN LATERAL (
    (SELECT o.seq FROM /*table*/outbox AS o
      WHERE o.lane = l.lane AND o.seq > ($3::text::int8[])[l.lane + 1] ORDER BY o.seq LIMIT 1)
    UNION ALL
    (SELECT $4::int8 FROM /*table*/outbox AS o
      WHERE o.lane = -1 - l.lane AND o.lane < 0 AND o.retry_at <= statement_timestamp() LIMIT 1)) AS first
   WHERE l.lease_until <= statement_timestamp() OR l.lease_until > statement_timestamp() + interval '2 hours'
   ORDER BY first.seq, l.lease_until LIMIT 1
   FOR UPDATE OF l SKIP LOCKED)
RETURNING lane::int8, pg_current_xact_id()::text::int8, set_config('synchronous_commit', 'off', true)`)

// eventColumns are what a relay reads of an event.
func eventColumns(of string) string {
	const all = "x.lane, x.seq, x.id, x.topic, x.key, x.headers, x.payload, x.appended_at, x.attempts"
	return strings.ReplaceAll(all, "x.", of+".")
}

// readSQL reads a batch of a lane that is leased: $1 the lane, $2 the number that its failed events have, $3 the
// token, $4 the low mark, $5 and $6 how many events and bytes at the most. One event is always read, however large.
//
// A failed key gives its events from the first one on. behind says of another event that its key has failed.
var readSQL = pg.Pin(`
SELECT f.lane::int8, f.seq, f.id::text, f.topic, f.key, coalesce(f.headers::text, ''), f.payload,
       (extract(epoch FROM f.appended_at) * 1000000)::int8, f.attempts::int8, f.behind,
       pg_snapshot_xmin(pg_current_snapshot())::text::int8
  FROM /*lanes*/outbox_lanes AS l
 CROSS JOIN LATERAL (
  (SELECT ` + eventColumns("o") + `, o.key <> '' AND EXISTS (
            SELECT FROM /*table*/outbox AS h WHERE h.lane = $2::int8::int2 AND h.lane < 0 AND h.key = o.key) AS behind
     FROM (SELECT ` + eventColumns("w") + `,
                  sum(octet_length(w.payload)) OVER (ORDER BY w.seq) - octet_length(w.payload) AS bytes
             FROM /*table*/outbox AS w
            WHERE w.lane = $1::int8::int2 AND w.seq > $4::int8
            ORDER BY w.seq LIMIT $5::int8) AS o
    WHERE o.bytes = 0 OR o.bytes + octet_length(o.payload) <= $6::int8)
  UNION ALL
  (SELECT ` + eventColumns("o") + `, false
     FROM (SELECT ` + eventColumns("w") + `,
                  sum(octet_length(w.payload)) OVER (ORDER BY w.first_at, w.seq) - octet_length(w.payload) AS bytes
             FROM (SELECT ` + eventColumns("e") + `, d.retry_at AS first_at
                     FROM (SELECT a.key, a.seq, a.retry_at FROM /*table*/outbox AS a
                            WHERE a.lane = $2::int8::int2 AND a.lane < 0 AND a.retry_at <= statement_timestamp()
                            ORDER BY a.retry_at LIMIT $5::int8) AS d
                    CROSS JOIN LATERAL (
                     SELECT ` + eventColumns("k") + ` FROM /*table*/outbox AS k
                      WHERE k.lane = $2::int8::int2 AND k.lane < 0 AND k.key = d.key AND k.seq >= d.seq
                        AND k.seq <= CASE WHEN d.key = '' THEN d.seq ELSE 9223372036854775807 END
                      ORDER BY k.seq LIMIT $5::int8) AS e
                    LIMIT $5::int8) AS w) AS o
    WHERE o.bytes = 0 OR o.bytes + octet_length(o.payload) <= $6::int8)) AS f
 WHERE l.lane = $1::int8::int2 AND l.token = $3::int8`)

// doneSQL ends a lease and deletes what was published, if the lease still holds. It deletes by the numbers that were
// read, and never by a range: an event that was committed late may lie in the middle.
var doneSQL = pg.Pin(`
WITH mine AS (
  UPDATE /*lanes*/outbox_lanes SET token = 0, lease_until = '-infinity'
   WHERE lane = $1::int8::int2 AND token = $2::int8 RETURNING lane
), gone AS (
  DELETE FROM /*table*/outbox AS o USING mine
   WHERE o.lane = mine.lane AND o.seq = ANY ($3::text::int8[]) RETURNING o.seq
)
SELECT (SELECT count(*) FROM mine), (SELECT count(*) FROM gone), set_config('synchronous_commit', 'off', true)`)

// restSQL ends a lease, if it still holds, and keeps every relay from the lane for a while. Its row stays locked
// until the transaction ends, and so no other relay comes between it and what follows in the transaction.
var restSQL = pg.Pin(`
UPDATE /*lanes*/outbox_lanes SET token = 0, lease_until = statement_timestamp() + $3::int8 * interval '1 microsecond'
 WHERE lane = $1::int8::int2 AND token = $2::int8
RETURNING lane::int8, set_config('synchronous_commit', 'off', true)`)

// deleteSQL deletes what was published, of a lane and of what failed in it.
var deleteSQL = pg.Pin(`
DELETE FROM /*table*/outbox
 WHERE lane IN ($1::int8::int2, $2::int8::int2) AND seq = ANY ($3::text::int8[])`)

// moveSQL takes events out of the lane, so that nobody walks over them again while they wait.
var moveSQL = pg.Pin(`
UPDATE /*table*/outbox SET lane = $2::int8::int2 WHERE lane = $1::int8::int2 AND seq = ANY ($3::text::int8[])`)

// failSQL counts an attempt. Without a time to wait ($4 below 0) the event is parked.
var failSQL = pg.Pin(`
UPDATE /*table*/outbox
   SET attempts = $3::int8::int4, last_error = $5::text,
       retry_at = CASE WHEN $4::int8 < 0 THEN 'infinity'
                       ELSE statement_timestamp() + $4::int8 * interval '1 microsecond' END
 WHERE lane = $1::int8::int2 AND seq = $2::int8`)

// demoteSQL and promoteSQL see to it that of each failed key (in the JSON array $2) the first event has a time, and
// no other. A late commit may have come before what was the first.
var demoteSQL = pg.Pin(`
UPDATE /*table*/outbox AS o SET retry_at = NULL
 WHERE o.lane = $1::int8::int2 AND o.lane < 0 AND o.retry_at IS NOT NULL AND o.key <> ''
   AND o.key IN (SELECT j.key FROM jsonb_array_elements_text($2::text::jsonb) AS j (key))
   AND EXISTS (SELECT FROM /*table*/outbox AS f
                WHERE f.lane = o.lane AND f.lane < 0 AND f.key = o.key AND f.seq < o.seq)`)

var promoteSQL = pg.Pin(`
UPDATE /*table*/outbox AS o SET retry_at = statement_timestamp()
  FROM (SELECT (SELECT f.seq FROM /*table*/outbox AS f
                 WHERE f.lane = $1::int8::int2 AND f.lane < 0 AND f.key = j.key
                 ORDER BY f.seq LIMIT 1) AS seq
          FROM jsonb_array_elements_text($2::text::jsonb) AS j (key)) AS first
 WHERE o.lane = $1::int8::int2 AND o.seq = first.seq AND o.retry_at IS NULL`)

// The statements of whoever looks after the table.
var (
	lagSQL = pg.Pin(`
SELECT (SELECT count(*) FROM /*table*/outbox),
       (SELECT count(*) FROM /*table*/outbox WHERE lane < 0),
       (SELECT count(*) FROM /*table*/outbox WHERE lane < 0 AND retry_at = 'infinity'),
       coalesce((SELECT (extract(epoch FROM clock_timestamp() - min(appended_at)) * 1000000)::int8
                   FROM /*table*/outbox), 0)`)

	parkedSQL = pg.Pin(`
SELECT id::text, topic, key, coalesce(headers::text, ''), payload, (extract(epoch FROM appended_at) * 1000000)::int8,
       attempts::int8, coalesce(last_error, '')
  FROM /*table*/outbox
 WHERE lane < 0 AND retry_at IS NOT NULL AND retry_at = 'infinity'
 ORDER BY seq LIMIT $1::int8`)

	lockLanesSQL = pg.Pin(`SELECT lane::int8 FROM /*lanes*/outbox_lanes ORDER BY lane FOR UPDATE`)

	retrySQL = pg.Pin(`
UPDATE /*table*/outbox SET retry_at = statement_timestamp(), attempts = 0
 WHERE lane < 0 AND retry_at IS NOT NULL AND retry_at = 'infinity' AND ($1::text IS NULL OR id = ANY ($1::text::uuid[]))
RETURNING lane::int8`)

	discardSQL = pg.Pin(`
DELETE FROM /*table*/outbox
 WHERE lane < 0 AND retry_at IS NOT NULL AND retry_at = 'infinity' AND id = ANY ($1::text::uuid[])
RETURNING lane::int8, key`)

	notifySQL = pg.Pin(`SELECT pg_notify($1::text, '')`)
)

// SQL is the statements on one table.
type SQL struct {
	name                                      pg.Name
	append, claim, read, done                 string
	rest, remove, move, fail, demote, promote string
	lag, parked, lockLanes, retry, discard    string
}

// For returns the statements on the table of this name, see [ParseName].
func For(name pg.Name) SQL {
	if name == defaultSQL.name {
		return defaultSQL
	}
	return build(name)
}

// defaultSQL is made once: every Append asks for it.
var defaultSQL = build(pg.Name{Table: DefaultTable})

func build(name pg.Name) SQL {
	on := replacer(name).Replace
	return SQL{
		name: name, append: on(appendSQL), claim: on(claimSQL), read: on(readSQL), done: on(doneSQL),
		rest: on(restSQL), remove: on(deleteSQL), move: on(moveSQL), fail: on(failSQL),
		demote: on(demoteSQL), promote: on(promoteSQL),
		lag: on(lagSQL), parked: on(parkedSQL), lockLanes: on(lockLanesSQL), retry: on(retrySQL), discard: on(discardSQL),
	}
}

// Texts returns every statement, for tests that prepare them on a server.
func (s SQL) Texts() []string {
	return []string{
		s.append, s.claim, s.read, s.done, s.rest, s.remove, s.move, s.fail, s.demote, s.promote,
		s.lag, s.parked, s.lockLanes, s.retry, s.discard, notifySQL,
	}
}

func render(name pg.Name, sql string) string { return replacer(name).Replace(sql) }

func replacer(name pg.Name) *strings.Replacer {
	index := func(suffix string) string { return pg.Quote(name.Table + suffix) }
	return strings.NewReplacer(
		lanesMarker, lanesOf(name).Quoted(), heldMarker, index("_held"), dueMarker, index("_due"), marker, name.Quoted(),
	)
}

func lanesOf(name pg.Name) pg.Name { return pg.Name{Schema: name.Schema, Table: name.Table + "_lanes"} }
