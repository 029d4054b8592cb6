package inbox

import (
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// marker stands for the table in the statements, which are valid SQL as they stand. Those of the indexes are made of
// it.
const marker = "/*table*/inbox"

// one is the condition on one message: its name is always in the first three parameters.
const one = `message_id = $1::text AND operation = $2::text AND source = $3::text`

// storeSQL stores a message. The NOT EXISTS only saves a number of the sequence where the message is there; what
// counts is the constraint.
var storeSQL = pg.Pin(`
INSERT INTO /*table*/inbox (message_id, operation, source, key, headers, body)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text::json, $6::bytea
 WHERE NOT EXISTS (SELECT FROM /*table*/inbox WHERE ` + one + `)
ON CONFLICT (message_id, operation, source) DO NOTHING
RETURNING seq`)

var seenSQL = pg.Pin(`
SELECT (extract(epoch FROM clock_timestamp() - received_at) * 1000000)::int8 FROM /*table*/inbox WHERE ` + one)

// held is the condition on a message that an attempt ($4 its token) still has.
const held = `token IN ($4::int8, -$4::int8)`

// claimSQL takes the message that is due for the longest time: $1 the token, $2 for how long it is left to its worker
// before somebody else takes it, $3 how many attempts a message has, $4 see below.
//
// A message that still has a token, and whose row nobody has locked, was taken by a worker that is gone; or its
// transaction has ended just now, later than $2, and its worker is about to write down what failed. So the message is
// first left to it for $4 more, and its token is made negative, by which the next look knows. Who fails or finishes
// takes the token away, or the time.
//
// The attempt of a worker that is gone is counted, and where it was the last one, the message is dead. Else nobody
// would ever stop a message that kills its worker.
var claimSQL = pg.Pin(`
WITH picked AS MATERIALIZED (
  SELECT i.message_id, i.operation, i.source FROM /*table*/inbox AS i
   WHERE i.due_at <= statement_timestamp()
   ORDER BY i.due_at, i.seq LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE /*table*/inbox AS m
   SET attempt = CASE WHEN m.token > 0 OR m.attempt >= $3::int8 THEN m.attempt ELSE m.attempt + 1 END,
       state = CASE WHEN m.token > 0 OR m.attempt < $3::int8 THEN 1 ELSE 3 END,
       token = CASE WHEN m.token > 0 THEN -m.token WHEN m.attempt < $3::int8 THEN $1::int8 END,
       due_at = CASE WHEN m.token > 0 THEN clock_timestamp() + $4::int8 * interval '1 microsecond'
                     WHEN m.attempt < $3::int8 THEN clock_timestamp() + $2::int8 * interval '1 microsecond' END,
       error_class = CASE WHEN m.token < 0 THEN 'crash' ELSE m.error_class END,
       last_error = CASE WHEN m.token < 0 THEN 'the worker was gone before the attempt ended' ELSE m.last_error END
  FROM picked AS p
 WHERE m.message_id = p.message_id AND m.operation = p.operation AND m.source = p.source
RETURNING m.message_id, m.operation, m.source, m.key, m.attempt::int8, m.state = 3, coalesce(m.token < 0, false)`)

// lockSQL begins the handler's transaction: it locks the message and reads it, if the claim ($4) still holds.
var lockSQL = pg.Pin(`
SELECT seq, coalesce(headers::text, ''), body, (extract(epoch FROM received_at) * 1000000)::int8
  FROM /*table*/inbox WHERE ` + one + ` AND ` + held + ` AND due_at IS NOT NULL
   FOR UPDATE SKIP LOCKED`)

// markSQL marks the transaction of an attempt: by $1, its token, which nothing of this module's changes; and for
// [pg.Tx].Check by $2. The server takes both back when the transaction ends, also where the next one begins at once
// (AND CHAIN), which no driver tells.
var markSQL = pg.Pin(`SELECT set_config('pgonce.attempt', $1::text, true) || set_config('` + pg.Mark +
	`', $2::text, true)`)

// same is the condition that the transaction still is that of the attempt $4.
const same = `coalesce(current_setting('pgonce.attempt', true), '') = $4::int8::text`

// sameSQL asks for that alone.
var sameSQL = pg.Pin(`SELECT ` + strings.ReplaceAll(same, "$4", "$1"))

// orderSQL says of a message that is locked, and has a key, whether an earlier one of its key is not finished, and
// whether a later one has been claimed: that one was the first when the message was not committed yet.
//
// It comes behind the claim's COMMIT, so that of two that are claimed at once the one that looks later sees the other.
// And it has a newer snapshot than the lock: an earlier message that finishes waits, to make this one due, for that
// lock.
var orderSQL = pg.Pin(`
SELECT EXISTS (SELECT FROM /*table*/inbox AS e
                WHERE e.key = $1::text AND e.key <> '' AND e.finished_at IS NULL AND e.seq < $2::int8),
       EXISTS (SELECT FROM /*table*/inbox AS r
                WHERE r.key = $1::text AND r.key <> '' AND r.due_at IS NOT NULL AND r.token IS NOT NULL AND r.seq > $2::int8)`)

// holdSQL has the message wait until one of its key has finished; behindSQL has those wait, too, that come after it
// ($1 the key, $2 its number), so that they need not be claimed for it one by one. One that somebody has locked just
// now is left out: he does it himself.
var holdSQL = pg.Pin(`
UPDATE /*table*/inbox SET due_at = 'infinity', token = NULL, attempt = attempt - 1
 WHERE ` + one + ` AND ` + held + ` AND due_at IS NOT NULL
RETURNING seq`)

var behindSQL = pg.Pin(`
WITH behind AS MATERIALIZED (
  SELECT i.message_id, i.operation, i.source FROM /*table*/inbox AS i
   WHERE i.key = $1::text AND i.key <> '' AND i.finished_at IS NULL AND i.seq > $2::int8
     AND i.due_at < 'infinity' AND i.token IS NULL
   ORDER BY i.seq LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE /*table*/inbox AS m SET due_at = 'infinity' FROM behind AS b
 WHERE m.message_id = b.message_id AND m.operation = b.operation AND m.source = b.source`)

// finishSQL marks a message as handled, in the handler's transaction and in no other. The token stays: it says, after
// a lost COMMIT, whose handler it was.
var finishSQL = pg.Pin(`
UPDATE /*table*/inbox
   SET state = 2, due_at = NULL, finished_at = clock_timestamp(), error_class = NULL, last_error = NULL
 WHERE ` + one + ` AND ` + held + ` AND due_at IS NOT NULL AND ` + same + `
RETURNING seq`)

// promoteSQL makes the first message of a key due. It waits for whoever has it locked, and may be about to hold it.
var promoteSQL = pg.Pin(`
UPDATE /*table*/inbox AS m SET due_at = statement_timestamp()
  FROM (SELECT i.message_id, i.operation, i.source FROM /*table*/inbox AS i
         WHERE i.key = $1::text AND i.key <> '' AND i.finished_at IS NULL ORDER BY i.seq LIMIT 1) AS first
 WHERE m.message_id = first.message_id AND m.operation = first.operation AND m.source = first.source
   AND m.due_at IS NOT NULL`)

// failSQL ends an attempt: $5 how long to wait, below 0 for ever; $6 how many attempts are not counted after all; $7
// and $8 the error, an empty class leaves the last one. It waits for a transaction that may still be about to commit.
var failSQL = pg.Pin(`
UPDATE /*table*/inbox
   SET token = NULL, attempt = attempt - $6::int8::int4,
       state = CASE WHEN $5::int8 < 0 THEN 3 ELSE 1 END,
       due_at = CASE WHEN $5::int8 < 0 THEN NULL ELSE statement_timestamp() + $5::int8 * interval '1 microsecond' END,
       error_class = CASE WHEN $7::text = '' THEN error_class ELSE $7::text END,
       last_error = CASE WHEN $7::text = '' THEN last_error ELSE $8::text END
 WHERE ` + one + ` AND ` + held + ` AND due_at IS NOT NULL
RETURNING seq`)

// settleSQL says whether the attempt of a token has been committed.
var settleSQL = pg.Pin(`
SELECT seq FROM /*table*/inbox WHERE ` + one + ` AND ` + held + ` AND finished_at IS NOT NULL`)

var notifySQL = pg.Pin(`SELECT pg_notify($1::text, '')`)

// SQL is the statements on one table.
type SQL struct {
	name                                          pg.Name
	store, seen, claim, lock, order, hold, behind string
	finish, promote, fail, settle                 string
	depth, list, replay, discard, heal            string
	purgeKeys, purgeBodies                        string
}

// defaultSQL is made once: every Store asks for it.
var defaultSQL = build(pg.Name{Table: DefaultTable})

// For returns the statements on the table of this name, see [ParseName].
func For(name pg.Name) SQL {
	if name == defaultSQL.name {
		return defaultSQL
	}
	return build(name)
}

func build(name pg.Name) SQL {
	quoted := name.Quoted()
	on := func(sql string) string { return strings.ReplaceAll(sql, marker, quoted) }
	return SQL{
		name: name, store: on(storeSQL), seen: on(seenSQL), claim: on(claimSQL), lock: on(lockSQL), order: on(orderSQL),
		hold: on(holdSQL), behind: on(behindSQL), finish: on(finishSQL), promote: on(promoteSQL), fail: on(failSQL),
		settle: on(settleSQL), depth: on(depthSQL), list: on(listSQL), replay: on(replaySQL), discard: on(discardSQL),
		heal: on(healSQL), purgeKeys: on(purgeKeysSQL), purgeBodies: on(purgeBodiesSQL),
	}
}

// Texts returns every statement, for tests that prepare them on a server.
func (s SQL) Texts() []string {
	return []string{
		s.store, s.seen, s.claim, s.lock, s.order, s.hold, s.behind, s.finish, s.promote, s.fail, s.settle,
		s.depth, s.list, s.replay, s.discard, s.heal, s.purgeKeys, s.purgeBodies, notifySQL, markSQL, sameSQL,
	}
}

// render is for the file of a migration, which names the indexes as well.
func render(name pg.Name, sql string) string {
	pairs := []string{marker, name.Quoted()}
	for _, suffix := range suffixes() {
		pairs = append(pairs, "/*"+suffix+"*/inbox_"+suffix, pg.Quote(name.Table+"_"+suffix))
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// suffixes are what the names of the indexes end in.
func suffixes() []string { return []string{"due", "order", "running", "dead", "finished", "bodies"} }
