package inbox

import "github.com/pgonce/pgonce/internal/pg"

// The statements of whoever looks after the table.

// depthSQL counts what waits, and what is dead. It reads the indexes of those two, and no message that is finished.
var depthSQL = pg.Pin(`
SELECT count(*), count(*) FILTER (WHERE w.due_at <= statement_timestamp() AND w.token IS NULL),
       count(*) FILTER (WHERE w.due_at = 'infinity'), count(*) FILTER (WHERE w.token IS NOT NULL),
       (SELECT count(*) FROM /*table*/inbox AS d WHERE d.due_at IS NULL AND d.finished_at IS NULL),
       coalesce((extract(epoch FROM clock_timestamp() - min(w.received_at)) * 1000000)::int8, 0)
  FROM /*table*/inbox AS w WHERE w.due_at IS NOT NULL`)

// matches is the condition of a filter: $1 the state, $2 and $3 source and operation, $4 the error class, empty where
// any will do; $5 the ids as a JSON array, and $6 and $7 the times, NULL where any will do.
//
// The first lines say the same as the state does, for the indexes of what is dead and of what waits.
const matches = `state = $1::int8::int2
   AND ($1::int8 <> 3 OR due_at IS NULL AND finished_at IS NULL)
   AND ($2::text = '' OR source = $2::text) AND ($3::text = '' OR operation = $3::text)
   AND ($4::text = '' OR error_class IS NOT NULL AND error_class = $4::text)
   AND ($5::text IS NULL OR message_id IN (SELECT j.id FROM jsonb_array_elements_text($5::text::jsonb) AS j (id)))
   AND ($6::int8 IS NULL OR received_at >= timestamptz '1970-01-01 00:00:00+00' + $6::int8 * interval '1 microsecond')
   AND ($7::int8 IS NULL OR received_at < timestamptz '1970-01-01 00:00:00+00' + $7::int8 * interval '1 microsecond')`

var listSQL = pg.Pin(`
SELECT message_id, operation, source, key, coalesce(headers::text, ''), body,
       (extract(epoch FROM received_at) * 1000000)::int8, state::int8, attempt::int8, coalesce(error_class, ''),
       coalesce(last_error, '')
  FROM /*table*/inbox WHERE ` + matches + `
 ORDER BY seq LIMIT $8::int8`)

// replaySQL has messages handled again, as if they had just come. Of what has no body any more nothing is left to be
// handled.
var replaySQL = pg.Pin(`
UPDATE /*table*/inbox
   SET state = 1, due_at = statement_timestamp(), finished_at = NULL, token = NULL, attempt = 0
 WHERE ` + matches + ` AND body IS NOT NULL
RETURNING seq`)

var discardSQL = pg.Pin(`
UPDATE /*table*/inbox SET state = 4, finished_at = clock_timestamp()
 WHERE ` + matches + `
RETURNING key`)

// healSQL makes due what waits behind a message that is not there any more: somebody has deleted it by hand, or a
// part of the table was restored.
var healSQL = pg.Pin(`
UPDATE /*table*/inbox AS m SET due_at = statement_timestamp()
 WHERE m.due_at = 'infinity'
   AND NOT EXISTS (SELECT FROM /*table*/inbox AS e
                    WHERE e.key = m.key AND e.key <> '' AND e.finished_at IS NULL AND e.seq < m.seq)
RETURNING m.seq`)

var purgeKeysSQL = pg.Pin(`
WITH old AS MATERIALIZED (
  SELECT i.message_id, i.operation, i.source FROM /*table*/inbox AS i
   WHERE i.finished_at IS NOT NULL AND i.finished_at < statement_timestamp() - $1::int8 * interval '1 microsecond'
   ORDER BY i.finished_at LIMIT $2::int8 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM /*table*/inbox AS m USING old AS o
   WHERE m.message_id = o.message_id AND m.operation = o.operation AND m.source = o.source RETURNING m.seq
)
SELECT count(*) FROM gone`)

var purgeBodiesSQL = pg.Pin(`
WITH old AS MATERIALIZED (
  SELECT i.message_id, i.operation, i.source FROM /*table*/inbox AS i
   WHERE i.finished_at IS NOT NULL AND i.body IS NOT NULL
     AND i.finished_at < statement_timestamp() - $1::int8 * interval '1 microsecond'
   ORDER BY i.finished_at LIMIT $2::int8 FOR UPDATE SKIP LOCKED
), emptied AS (
  UPDATE /*table*/inbox AS m SET body = NULL, headers = NULL FROM old AS o
   WHERE m.message_id = o.message_id AND m.operation = o.operation AND m.source = o.source RETURNING m.seq
)
SELECT count(*) FROM emptied`)
