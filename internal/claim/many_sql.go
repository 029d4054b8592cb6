package claim

// The keys of a batch travel as arrays, in step: $1 sources, $2 operations, $3 ids, $4 payload hashes, $5 the keys' own
// times (microseconds since 1970, NULL without one). They are sorted, and inserted in that order: so two batches that
// share keys cannot deadlock.
//
// The token stands in a subquery, which is computed once for all rows: with a mark it is a function that counts.

// insertManySQL is insertSQL and insertTimedSQL for a batch. $6 is the retention window, $7 the allowed future (both in
// microseconds), $8 the token.
const insertManySQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, token)
SELECT k.source, k.operation, k.id, k.payload_hash, CASE WHEN k.at IS NULL THEN now() ELSE clock_timestamp() END, (SELECT $8::int8)
  FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::bytea[]), unnest($5::int8[]))
       WITH ORDINALITY AS k (source, operation, id, payload_hash, at, n)
 WHERE k.at IS NULL
    OR timestamptz 'epoch' + k.at * interval '1 microsecond' >= clock_timestamp() - $6::int8 * interval '1 microsecond'
       AND timestamptz 'epoch' + k.at * interval '1 microsecond' <= clock_timestamp() + $7::int8 * interval '1 microsecond'
 ORDER BY k.n
ON CONFLICT (key, operation, source) DO NOTHING
RETURNING source, operation, key, token, 0::int8`

// insertManyWeeklySQL is insertWeeklySQL for a batch. The last column is the day of the bucket, from 1970 on.
const insertManyWeeklySQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, event_time, bucket, token)
SELECT k.source, k.operation, k.id, k.payload_hash, e.at, date_trunc('week', e.at AT TIME ZONE 'UTC')::date, (SELECT $8::int8)
  FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::bytea[]), unnest($5::int8[]))
       WITH ORDINALITY AS k (source, operation, id, payload_hash, at, n)
 CROSS JOIN LATERAL (SELECT timestamptz 'epoch' + k.at * interval '1 microsecond') AS e (at)
 WHERE e.at >= clock_timestamp() - $6::int8 * interval '1 microsecond'
   AND e.at <= clock_timestamp() + $7::int8 * interval '1 microsecond'
 ORDER BY k.n
ON CONFLICT (key, operation, source, bucket) DO NOTHING
RETURNING source, operation, key, token, (bucket - date '1970-01-01')::int8`

// readManySQL is readSQL for a batch: a row for each key that is there, with its place in the arrays. Of the value only
// that of a final failure is of use.
const readManySQL = `
SELECT k.n, encode(t.payload_hash, 'hex'), encode(CASE WHEN t.failed THEN t.value END, 'hex'), t.lease_until IS NULL,
       coalesce(t.lease_until > clock_timestamp(), false), t.failed, t.attempt, t.token,
       (extract(epoch FROM t.processed_at) * 1000000)::int8,
       (extract(epoch FROM clock_timestamp() - t.processed_at) * 1000000)::int8
  FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[])) WITH ORDINALITY AS k (source, operation, id, n)
  JOIN /*table*/processed_events AS t ON t.key = k.id AND t.operation = k.operation AND t.source = k.source`

// readManyWeeklySQL names the bucket as well; $4 are the keys' times.
const readManyWeeklySQL = `
SELECT k.n, encode(t.payload_hash, 'hex'), encode(CASE WHEN t.failed THEN t.value END, 'hex'), t.lease_until IS NULL,
       coalesce(t.lease_until > clock_timestamp(), false), t.failed, t.attempt, t.token,
       (extract(epoch FROM t.processed_at) * 1000000)::int8,
       (extract(epoch FROM clock_timestamp() - t.processed_at) * 1000000)::int8
  FROM ROWS FROM (unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::int8[]))
       WITH ORDINALITY AS k (source, operation, id, at, n)
  JOIN /*table*/processed_events AS t ON t.key = k.id AND t.operation = k.operation AND t.source = k.source
       AND t.bucket = date_trunc('week', timestamp 'epoch' + k.at * interval '1 microsecond')::date`

// windowManySQL is windowSQL for a batch of times: a row for each that lies outside.
const windowManySQL = `
SELECT k.n, timestamptz 'epoch' + k.at * interval '1 microsecond' < clock_timestamp() - $2::int8 * interval '1 microsecond'
  FROM unnest($1::int8[]) WITH ORDINALITY AS k (at, n)
 WHERE timestamptz 'epoch' + k.at * interval '1 microsecond' < clock_timestamp() - $2::int8 * interval '1 microsecond'
    OR timestamptz 'epoch' + k.at * interval '1 microsecond' > clock_timestamp() + $3::int8 * interval '1 microsecond'`
