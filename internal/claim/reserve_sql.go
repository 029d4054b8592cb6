package claim

// The states of a key and the moves between them. Each move is one statement, whose WHERE holds the whole condition: a
// state that was read before, in another statement or in a sub-select, may have passed. A holder is fenced by its
// attempt and by the row's creation (processed_at): a row that was deleted and reserved anew begins at attempt 1
// again.
//
// Not now(): a transaction begun before the lease ran out would never see it run out. An INSERT takes
// clock_timestamp(). An UPDATE takes statement_timestamp(): Citus refuses volatile functions there. It is older where
// the statement waited for the row. So a lease ends sooner, and a take-over comes later: both are safe.

// returningLease gives what the holder is fenced by. The creation is taken from a timestamp without time zone, which is
// immutable: see returningToken.
const returningLease = `
RETURNING attempt::int8, (extract(epoch FROM processed_at AT TIME ZONE 'UTC') * 1000000)::int8`

// reserveSQL: absent -> reserved. Why not ON CONFLICT DO UPDATE, which would take over in the same statement: it locks
// the row of every duplicate, which is a write. $6 is the token.
const reserveSQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, lease_until, token)
VALUES ($1::text, $2::text, $3::text, $4::bytea, clock_timestamp(), clock_timestamp() + $5::int8 * interval '1 microsecond', $6::int8)
ON CONFLICT (key, operation, source) DO NOTHING` + returningLease

// reserveTimedSQL is the same for a key with a time of its own ($6, microseconds since 1970): nothing is inserted
// where it lies before the retention window ($7, microseconds), or further in the future than $8. $9 is the token.
// See insertTimedSQL.
const reserveTimedSQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, lease_until, token)
SELECT $1::text, $2::text, $3::text, $4::bytea, clock_timestamp(), clock_timestamp() + $5::int8 * interval '1 microsecond', $9::int8
 WHERE timestamptz 'epoch' + $6::int8 * interval '1 microsecond' >= clock_timestamp() - $7::int8 * interval '1 microsecond'
   AND timestamptz 'epoch' + $6::int8 * interval '1 microsecond' <= clock_timestamp() + $8::int8 * interval '1 microsecond'
ON CONFLICT (key, operation, source) DO NOTHING` + returningLease

// takeOverSQL: unfinished -> reserved, by the next attempt. $5 is how long the provider remembers: an attempt must end
// ($4, its lease) before that; NULL: for ever. $6 makes sure that the row is the one whose payload was compared. $7 is
// the token.
const takeOverSQL = `
UPDATE /*table*/processed_events
   SET lease_until = statement_timestamp() + $4::int8 * interval '1 microsecond', attempt = attempt + 1, token = $7::int8
 WHERE key = $3::text AND operation = $2::text AND source = $1::text
   AND lease_until <= statement_timestamp()
   AND processed_at = timestamptz 'epoch' + $6::int8 * interval '1 microsecond'
   AND ($5::int8 IS NULL
        OR statement_timestamp() + $4::int8 * interval '1 microsecond' - $5::int8 * interval '1 microsecond' <= processed_at)` + returningLease

// The moves of a holder end with the same condition.
const (
	fencedSQL = `
 WHERE key = $3::text AND operation = $2::text AND source = $1::text
   AND attempt = $4::int4
   AND processed_at = timestamptz 'epoch' + $5::int8 * interval '1 microsecond'
   AND lease_until IS NOT NULL`

	// confirmSQL: reserved or unfinished -> done. The row takes the token, $7, of the transaction that has settled it.
	confirmSQL = `
UPDATE /*table*/processed_events SET lease_until = NULL, value = $6::bytea, token = $7::int8` + fencedSQL + returningToken

	// confirmMarkedSQL is confirmSQL, for [marked]. The mark is made beside the UPDATE, in which Citus refuses a volatile
	// function.
	confirmMarkedSQL = `
WITH pgonce_mark AS MATERIALIZED (SELECT $7::int8 AS made)
UPDATE /*table*/processed_events SET lease_until = NULL, value = $6::bytea, token = pgonce_mark.made
  FROM pgonce_mark` + fencedSQL + returningToken

	// failSQL: reserved or unfinished -> failed.
	failSQL = `
UPDATE /*table*/processed_events SET lease_until = NULL, failed = true, value = $6::bytea` + fencedSQL + returningAttempt

	// extendSQL: reserved or unfinished -> reserved. Never shorter than it was.
	extendSQL = `
UPDATE /*table*/processed_events
   SET lease_until = greatest(lease_until, statement_timestamp() + $6::int8 * interval '1 microsecond')` + fencedSQL + returningAttempt

	// endSQL: reserved -> unfinished, before the lease is over: the attempt is over, and nobody knows what came of it.
	endSQL = `
UPDATE /*table*/processed_events SET lease_until = least(lease_until, statement_timestamp())` + fencedSQL + returningAttempt

	// giveUpSQL: reserved or unfinished -> unfinished, for an attempt after the first: it was not sent, but the earlier
	// ones may have been. The attempt is raised, so that the holder that released is fenced, too.
	giveUpSQL = `
UPDATE /*table*/processed_events SET lease_until = '-infinity', attempt = attempt + 1` + fencedSQL + returningAttempt

	// voidSQL: reserved or unfinished -> absent: nothing was ever sent under this key.
	voidSQL = `
DELETE FROM /*table*/processed_events` + fencedSQL + returningAttempt
)

// pendingSQL lists the keys that are reserved or unfinished, the longest open first. Bytes come in hex, as in readSQL.
const pendingSQL = `
SELECT source, operation, key, attempt::int8, (extract(epoch FROM processed_at) * 1000000)::int8,
       (extract(epoch FROM clock_timestamp() - processed_at) * 1000000)::int8,
       lease_until > clock_timestamp(), encode(payload_hash, 'hex')
  FROM /*table*/processed_events
 WHERE lease_until IS NOT NULL AND ($1::text = '' OR source = $1::text) AND ($2::text = '' OR operation = $2::text)
 ORDER BY processed_at
 LIMIT $3::int8`
