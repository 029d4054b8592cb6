-- SQL(), with id, public_id, status, payload, updated_at
INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT ("id") DO UPDATE
   SET "status" = excluded."status",
       "payload" = excluded."payload",
       "updated_at" = excluded."updated_at"
 WHERE t."updated_at" OPERATOR(pg_catalog.<) excluded."updated_at" OR t."updated_at" IS NULL;

-- One row, PostgreSQL 14 to 17
WITH event AS (
  SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "id", $2::pg_catalog.text AS "public_id",
         $3::pg_catalog.text AS "status", $4::pg_catalog.json AS "payload",
         $5::timestamp with time zone AS "updated_at"
), stored AS MATERIALIZED (
  SELECT s."id", s."public_id", s."status", s."payload", s."updated_at"
    FROM "subscription" AS s
   WHERE s."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
  SELECT e."id", e."public_id", e."status", e."payload", e."updated_at"
    FROM event AS e, pg_catalog.set_config('pgonce.hit', '', true)
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at")
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "payload" = excluded."payload",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', '1', true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) '' AS pgonce_new, t."id", t."public_id", t."status",
            t."payload", t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."public_id", a."status", a."payload",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."payload"::pg_catalog.text OPERATOR(pg_catalog.=) e."payload"::pg_catalog.text,
                          s."payload"::pg_catalog.text IS NULL AND e."payload"::pg_catalog.text IS NULL) THEN 'unchanged'
            ELSE 'conflict' END,
       s."id", s."public_id", s."status", s."payload",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- One row, from PostgreSQL 18
WITH event AS (
  SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "id", $2::pg_catalog.text AS "public_id",
         $3::pg_catalog.text AS "status", $4::pg_catalog.json AS "payload",
         $5::timestamp with time zone AS "updated_at"
), stored AS MATERIALIZED (
  SELECT s."id", s."public_id", s."status", s."payload", s."updated_at"
    FROM "subscription" AS s
   WHERE s."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
  SELECT e."id", e."public_id", e."status", e."payload", e."updated_at"
    FROM event AS e
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at")
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "payload" = excluded."payload",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING old."id" IS NULL AS pgonce_new, t."id", t."public_id", t."status", t."payload", t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."public_id", a."status", a."payload",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."payload"::pg_catalog.text OPERATOR(pg_catalog.=) e."payload"::pg_catalog.text,
                          s."payload"::pg_catalog.text IS NULL AND e."payload"::pg_catalog.text IS NULL) THEN 'unchanged'
            ELSE 'conflict' END,
       s."id", s."public_id", s."status", s."payload",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- Many rows, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."payload"::pg_catalog.text OPERATOR(pg_catalog.=) e."payload"::pg_catalog.text,
                          s."payload"::pg_catalog.text IS NULL AND e."payload"::pg_catalog.text IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q."id" COLLATE pg_catalog."C"
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 pg_catalog.rank() OVER (PARTITION BY q."id" COLLATE pg_catalog."C" ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "public_id",
                          u.c3 AS "status", u.c4::pg_catalog.json AS "payload", u.c5 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4, pg_catalog.unnest(a.a5) AS c5
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::pg_catalog.text[] AS a4,
                                          $6::timestamp with time zone[] AS a5,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."public_id", s."status", s."payload", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
  SELECT e."id", e."public_id", e."status", e."payload", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e."id" COLLATE pg_catalog."C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "payload" = excluded."payload",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', '=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text, true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING (pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) ''
             OR pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.<>) ('=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text)) IS NOT FALSE AS pgonce_new,
            t."id"
), tally AS (
  SELECT pg_catalog.count(*) AS written, pg_catalog.count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::pg_catalog.int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y)
                         OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1)
                         OR (e."id") OPERATOR(pg_catalog.=) ANY (SELECT a."id" FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1::pg_catalog.int8[])) AS d
 WHERE NOT d.written OR d.nth OPERATOR(pg_catalog.>) 1;

-- Many rows, from PostgreSQL 18
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."payload"::pg_catalog.text OPERATOR(pg_catalog.=) e."payload"::pg_catalog.text,
                          s."payload"::pg_catalog.text IS NULL AND e."payload"::pg_catalog.text IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q."id" COLLATE pg_catalog."C"
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 pg_catalog.rank() OVER (PARTITION BY q."id" COLLATE pg_catalog."C" ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "public_id",
                          u.c3 AS "status", u.c4::pg_catalog.json AS "payload", u.c5 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4, pg_catalog.unnest(a.a5) AS c5
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::pg_catalog.text[] AS a4,
                                          $6::timestamp with time zone[] AS a5
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."public_id", s."status", s."payload", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
  SELECT e."id", e."public_id", e."status", e."payload", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e."id" COLLATE pg_catalog."C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "payload" = excluded."payload",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING old."id" IS NULL AS pgonce_new, t."id"
), tally AS (
  SELECT pg_catalog.count(*) AS written, pg_catalog.count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::pg_catalog.int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y)
                         OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1)
                         OR (e."id") OPERATOR(pg_catalog.=) ANY (SELECT a."id" FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1::pg_catalog.int8[])) AS d
 WHERE NOT d.written OR d.nth OPERATOR(pg_catalog.>) 1;

-- Many rows of distinct keys, told one by one, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*, s."id" AS pgonce_s1, s."public_id" AS pgonce_s2, s."status" AS pgonce_s3,
         s."payload" AS pgonce_s4, s."updated_at" AS pgonce_s5,
       CASE WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."payload"::pg_catalog.text OPERATOR(pg_catalog.=) e."payload"::pg_catalog.text,
                          s."payload"::pg_catalog.text IS NULL AND e."payload"::pg_catalog.text IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "public_id",
                          u.c3 AS "status", u.c4::pg_catalog.json AS "payload", u.c5 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4, pg_catalog.unnest(a.a5) AS c5
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::pg_catalog.text[] AS a4,
                                          $6::timestamp with time zone[] AS a5,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."public_id", s."status", s."payload", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "public_id", "status", "payload", "updated_at")
  SELECT e."id", e."public_id", e."status", e."payload", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "payload" = excluded."payload",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', '=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text, true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING (pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) ''
             OR pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.<>) ('=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text)) IS NOT FALSE AS pgonce_new,
            t."id", t."public_id", t."status", t."payload", t."updated_at"
)
SELECT pg_catalog.row_number() OVER (PARTITION BY r.pgonce_g1 ORDER BY r.pgonce_pos) OPERATOR(pg_catalog.=) 1,
       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,
       r."id", r."public_id", r."status", r."payload",
       pg_catalog.encode(pg_catalog.timestamptz_send(r."updated_at"), 'hex'::pg_catalog.text)
  FROM (
    SELECT a."id" COLLATE pg_catalog."C" AS pgonce_g1,
           '-1'::pg_catalog.int8 AS pgonce_pos, 0::pg_catalog.int8 AS pgonce_nth, 0::pg_catalog.int8 AS pgonce_rank,
           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,
           a."id", a."public_id", a."status", a."payload", a."updated_at"
      FROM applied AS a
     UNION ALL
    SELECT e."id" COLLATE pg_catalog."C" AS pgonce_g1, e.pgonce_pos, 1::pg_catalog.int8, 1::pg_catalog.int8, coalesce(e.pgonce_verdict, ''),
           e.pgonce_s1 AS "id", e.pgonce_s2 AS "public_id", e.pgonce_s3 AS "status", e.pgonce_s4 AS "payload",
           e.pgonce_s5 AS "updated_at"
      FROM judged AS e
  ) AS r
 ORDER BY r.pgonce_g1, r.pgonce_pos;
