-- SQL(), with tenant, email, status, updated_at
INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
VALUES ($1, $2, $3, $4)
ON CONFLICT ("tenant", (lower(email))) DO UPDATE
   SET "email" = excluded."email",
       "status" = excluded."status",
       "updated_at" = excluded."updated_at"
 WHERE t."updated_at" OPERATOR(pg_catalog.<) excluded."updated_at" OR t."updated_at" IS NULL;

-- One row, PostgreSQL 14 to 17
WITH event AS MATERIALIZED (
  SELECT v.*, CASE WHEN (lower(email)) IS NULL THEN 'keyless' END AS pgonce_refused
    FROM (SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "tenant",
                  $2::pg_catalog.text AS "email", $3::pg_catalog.text AS "status",
                  $4::timestamp with time zone AS "updated_at") AS v
), stored AS MATERIALIZED (
  SELECT s."tenant", s."email", s."status", s."updated_at"
    FROM "subscription" AS s
   WHERE s."tenant" OPERATOR(pg_catalog.=) $1::pg_catalog.text AND (lower(email)) OPERATOR(pg_catalog.=) (SELECT (lower(email)) FROM event)
), applied AS (
  INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
  SELECT e."tenant", e."email", e."status", e."updated_at"
    FROM event AS e, pg_catalog.set_config('pgonce.hit', '', true)
   WHERE e.pgonce_refused IS NULL AND NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at")
  ON CONFLICT ("tenant", (lower(email))) DO UPDATE
     SET "email" = excluded."email",
         "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', '1', true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) '' AS pgonce_new, t."tenant", t."email", t."status",
            t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."tenant", a."email", a."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused
            WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."email" OPERATOR(pg_catalog.=) e."email", s."email" IS NULL AND e."email" IS NULL)
                 AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL) THEN 'unchanged'
            ELSE 'conflict' END,
       s."tenant", s."email", s."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- One row, from PostgreSQL 18
WITH event AS MATERIALIZED (
  SELECT v.*, CASE WHEN (lower(email)) IS NULL THEN 'keyless' END AS pgonce_refused
    FROM (SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "tenant",
                  $2::pg_catalog.text AS "email", $3::pg_catalog.text AS "status",
                  $4::timestamp with time zone AS "updated_at") AS v
), stored AS MATERIALIZED (
  SELECT s."tenant", s."email", s."status", s."updated_at"
    FROM "subscription" AS s
   WHERE s."tenant" OPERATOR(pg_catalog.=) $1::pg_catalog.text AND (lower(email)) OPERATOR(pg_catalog.=) (SELECT (lower(email)) FROM event)
), applied AS (
  INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
  SELECT e."tenant", e."email", e."status", e."updated_at"
    FROM event AS e
   WHERE e.pgonce_refused IS NULL AND NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at")
  ON CONFLICT ("tenant", (lower(email))) DO UPDATE
     SET "email" = excluded."email",
         "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING old."tenant" IS NULL AS pgonce_new, t."tenant", t."email", t."status", t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."tenant", a."email", a."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused
            WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."email" OPERATOR(pg_catalog.=) e."email", s."email" IS NULL AND e."email" IS NULL)
                 AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL) THEN 'unchanged'
            ELSE 'conflict' END,
       s."tenant", s."email", s."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- Many rows, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused
            WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."email" OPERATOR(pg_catalog.=) e."email", s."email" IS NULL AND e."email" IS NULL)
                 AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q.pgonce_k2, q."tenant" COLLATE pg_catalog."C", q.pgonce_refused IS NULL
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 pg_catalog.rank() OVER (PARTITION BY q.pgonce_k2, q."tenant" COLLATE pg_catalog."C", q.pgonce_refused IS NULL ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*, (lower(email)) AS pgonce_k2,
                 CASE WHEN (lower(email)) IS NULL THEN 'keyless' END AS pgonce_refused
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "tenant", u.c2 AS "email",
                          u.c3 AS "status", u.c4 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::timestamp with time zone[] AS a4,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."tenant", s."email", s."status", s."updated_at", (lower(email)) AS pgonce_k2
                         FROM "subscription" AS s
                        WHERE s."tenant" OPERATOR(pg_catalog.=) e."tenant" AND (lower(email)) OPERATOR(pg_catalog.=) e.pgonce_k2
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
  SELECT e."tenant", e."email", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e.pgonce_k2, e."tenant" COLLATE pg_catalog."C"
  ON CONFLICT ("tenant", (lower(email))) DO UPDATE
     SET "email" = excluded."email",
         "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', (SELECT ROW(k."tenant", (lower(email)))::pg_catalog.text FROM (SELECT t.*) AS k), true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING (pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) ''
             OR pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.<>) ROW(t."tenant", (lower(email)))::pg_catalog.text) IS NOT FALSE AS pgonce_new,
            t."tenant", (lower(email)) AS pgonce_k2
), tally AS (
  SELECT pg_catalog.count(*) AS written, pg_catalog.count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::pg_catalog.int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y)
                         OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1)
                         OR (e."tenant", e.pgonce_k2) OPERATOR(pg_catalog.=) ANY (SELECT a."tenant", a.pgonce_k2 FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1::pg_catalog.int8[])) AS d
 WHERE NOT d.written OR d.nth OPERATOR(pg_catalog.>) 1;

-- Many rows, from PostgreSQL 18
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused
            WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."email" OPERATOR(pg_catalog.=) e."email", s."email" IS NULL AND e."email" IS NULL)
                 AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q.pgonce_k2, q."tenant" COLLATE pg_catalog."C", q.pgonce_refused IS NULL
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 pg_catalog.rank() OVER (PARTITION BY q.pgonce_k2, q."tenant" COLLATE pg_catalog."C", q.pgonce_refused IS NULL ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*, (lower(email)) AS pgonce_k2,
                 CASE WHEN (lower(email)) IS NULL THEN 'keyless' END AS pgonce_refused
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "tenant", u.c2 AS "email",
                          u.c3 AS "status", u.c4 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::timestamp with time zone[] AS a4
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."tenant", s."email", s."status", s."updated_at", (lower(email)) AS pgonce_k2
                         FROM "subscription" AS s
                        WHERE s."tenant" OPERATOR(pg_catalog.=) e."tenant" AND (lower(email)) OPERATOR(pg_catalog.=) e.pgonce_k2
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
  SELECT e."tenant", e."email", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e.pgonce_k2, e."tenant" COLLATE pg_catalog."C"
  ON CONFLICT ("tenant", (lower(email))) DO UPDATE
     SET "email" = excluded."email",
         "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING old."tenant" IS NULL AS pgonce_new, t."tenant", (lower(email)) AS pgonce_k2
), tally AS (
  SELECT pg_catalog.count(*) AS written, pg_catalog.count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::pg_catalog.int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y)
                         OPERATOR(pg_catalog.=) (SELECT pg_catalog.count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1)
                         OR (e."tenant", e.pgonce_k2) OPERATOR(pg_catalog.=) ANY (SELECT a."tenant", a.pgonce_k2 FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) OPERATOR(pg_catalog.<) pg_catalog.cardinality($1::pg_catalog.int8[])) AS d
 WHERE NOT d.written OR d.nth OPERATOR(pg_catalog.>) 1;

-- Many rows of distinct keys, told one by one, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*, s."tenant" AS pgonce_s1, s."email" AS pgonce_s2, s."status" AS pgonce_s3,
         s."updated_at" AS pgonce_s4,
       CASE WHEN e.pgonce_refused IS NOT NULL THEN e.pgonce_refused
            WHEN (s."updated_at" OPERATOR(pg_catalog.>=) e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" OPERATOR(pg_catalog.>) e."updated_at" THEN 'stale'
            WHEN coalesce(s."email" OPERATOR(pg_catalog.=) e."email", s."email" IS NULL AND e."email" IS NULL)
                 AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL) THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT v.*, (lower(email)) AS pgonce_k2,
                 CASE WHEN (lower(email)) IS NULL THEN 'keyless' END AS pgonce_refused
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "tenant", u.c2 AS "email",
                          u.c3 AS "status", u.c4 AS "updated_at"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3, pg_catalog.unnest(a.a4) AS c4
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          $5::timestamp with time zone[] AS a4,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS e
    LEFT JOIN LATERAL (SELECT s."tenant", s."email", s."status", s."updated_at", (lower(email)) AS pgonce_k2
                         FROM "subscription" AS s
                        WHERE s."tenant" OPERATOR(pg_catalog.=) e."tenant" AND (lower(email)) OPERATOR(pg_catalog.=) e.pgonce_k2
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("tenant", "email", "status", "updated_at")
  SELECT e."tenant", e."email", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL
  ON CONFLICT ("tenant", (lower(email))) DO UPDATE
     SET "email" = excluded."email",
         "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE pg_catalog.set_config('pgonce.hit', (SELECT ROW(k."tenant", (lower(email)))::pg_catalog.text FROM (SELECT t.*) AS k), true) IS NOT NULL
     AND (t."updated_at" OPERATOR(pg_catalog.>=) excluded."updated_at") IS NOT TRUE
  RETURNING (pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) ''
             OR pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.<>) ROW(t."tenant", (lower(email)))::pg_catalog.text) IS NOT FALSE AS pgonce_new,
            t."tenant", t."email", t."status", t."updated_at", (lower(email)) AS pgonce_k2
)
SELECT pg_catalog.row_number() OVER (PARTITION BY r.pgonce_g1, r.pgonce_g2 ORDER BY r.pgonce_pos) OPERATOR(pg_catalog.=) 1,
       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,
       r."tenant", r."email", r."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(r."updated_at"), 'hex'::pg_catalog.text)
  FROM (
    SELECT a.pgonce_k2 AS pgonce_g1, a."tenant" COLLATE pg_catalog."C" AS pgonce_g2,
           '-1'::pg_catalog.int8 AS pgonce_pos, 0::pg_catalog.int8 AS pgonce_nth, 0::pg_catalog.int8 AS pgonce_rank,
           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,
           a."tenant", a."email", a."status", a."updated_at"
      FROM applied AS a
     UNION ALL
    SELECT e.pgonce_k2 AS pgonce_g1, e."tenant" COLLATE pg_catalog."C" AS pgonce_g2, e.pgonce_pos, 1::pg_catalog.int8, 1::pg_catalog.int8, coalesce(e.pgonce_verdict, ''),
           e.pgonce_s1 AS "tenant", e.pgonce_s2 AS "email", e.pgonce_s3 AS "status",
           e.pgonce_s4 AS "updated_at"
      FROM judged AS e
  ) AS r
 ORDER BY r.pgonce_g1, r.pgonce_g2, r.pgonce_pos;
