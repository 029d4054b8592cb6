-- SQL(), with id, status, updated_at
INSERT INTO "subscription" AS t ("id", "status", "updated_at")
VALUES ($1, $2, $3)
ON CONFLICT ("id") DO UPDATE
   SET "status" = excluded."status",
       "updated_at" = excluded."updated_at"
 WHERE t."updated_at" < excluded."updated_at" OR t."updated_at" IS NULL;

-- One row, PostgreSQL 14 to 17
WITH event AS (
  SELECT $1::text COLLATE pg_catalog."C" AS "id", $2::text AS "status",
         $3::timestamp with time zone AS "updated_at"
), stored AS MATERIALIZED (
  SELECT s."id", s."status", s."updated_at"
    FROM "subscription" AS s
   WHERE s."id" = $1::text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "updated_at")
  SELECT e."id", e."status", e."updated_at"
    FROM event AS e, set_config('pgonce.hit', '', true)
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" >= e."updated_at")
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE set_config('pgonce.hit', '1', true) IS NOT NULL
     AND (t."updated_at" >= excluded."updated_at") IS NOT TRUE
  RETURNING current_setting('pgonce.hit', true) = '' AS pgonce_new, t."id", t."status", t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN (s."updated_at" >= e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" > e."updated_at" THEN 'stale'
            WHEN s."status" IS NOT DISTINCT FROM e."status" THEN 'unchanged'
            ELSE 'conflict' END,
       s."id", s."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- One row, from PostgreSQL 18
WITH event AS (
  SELECT $1::text COLLATE pg_catalog."C" AS "id", $2::text AS "status",
         $3::timestamp with time zone AS "updated_at"
), stored AS MATERIALIZED (
  SELECT s."id", s."status", s."updated_at"
    FROM "subscription" AS s
   WHERE s."id" = $1::text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "updated_at")
  SELECT e."id", e."status", e."updated_at"
    FROM event AS e
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE s."updated_at" >= e."updated_at")
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" >= excluded."updated_at") IS NOT TRUE
  RETURNING old."id" IS NULL AS pgonce_new, t."id", t."status", t."updated_at"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(a."updated_at"), 'hex'::pg_catalog.text)
  FROM applied AS a
UNION ALL
SELECT CASE WHEN (s."updated_at" >= e."updated_at") IS NOT TRUE THEN 'raced'
            WHEN s."updated_at" > e."updated_at" THEN 'stale'
            WHEN s."status" IS NOT DISTINCT FROM e."status" THEN 'unchanged'
            ELSE 'conflict' END,
       s."id", s."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(s."updated_at"), 'hex'::pg_catalog.text)
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- Many rows, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN (s."updated_at" >= e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" > e."updated_at" THEN 'stale'
            WHEN s."status" IS NOT DISTINCT FROM e."status" THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, row_number() OVER (PARTITION BY q."id" COLLATE "C"
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 rank() OVER (PARTITION BY q."id" COLLATE "C" ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "updated_at"
                    FROM (SELECT unnest(a.pos) AS pgonce_pos, unnest(a.a1) AS c1, unnest(a.a2) AS c2,
                                  unnest(a.a3) AS c3
                            FROM (SELECT $1::int8[] AS pos, $2::text[] AS a1, $3::text[] AS a2,
                                          $4::timestamp with time zone[] AS a3,
                                          set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" = e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "updated_at")
  SELECT e."id", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth = 1
   ORDER BY e."id" COLLATE "C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE set_config('pgonce.hit', '=' || t."id"::text, true) IS NOT NULL
     AND (t."updated_at" >= excluded."updated_at") IS NOT TRUE
  RETURNING CASE current_setting('pgonce.hit', true) WHEN '' THEN true ELSE current_setting('pgonce.hit', true) IS DISTINCT FROM '=' || t."id"::text END AS pgonce_new,
            t."id"
), tally AS (
  SELECT count(*) AS written, count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y) = (SELECT count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth = 1)
                         OR (e."id") IN (SELECT a."id" FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) < cardinality($1::int8[])) AS d
 WHERE NOT d.written OR d.nth > 1;

-- Many rows, from PostgreSQL 18
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN (s."updated_at" >= e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" > e."updated_at" THEN 'stale'
            WHEN s."status" IS NOT DISTINCT FROM e."status" THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT q.*, row_number() OVER (PARTITION BY q."id" COLLATE "C"
                                         ORDER BY q."updated_at" DESC, q.pgonce_pos) AS pgonce_nth,
                 rank() OVER (PARTITION BY q."id" COLLATE "C" ORDER BY q."updated_at" DESC) AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "updated_at"
                    FROM (SELECT unnest(a.pos) AS pgonce_pos, unnest(a.a1) AS c1, unnest(a.a2) AS c2,
                                  unnest(a.a3) AS c3
                            FROM (SELECT $1::int8[] AS pos, $2::text[] AS a1, $3::text[] AS a2,
                                          $4::timestamp with time zone[] AS a3
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" = e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "updated_at")
  SELECT e."id", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth = 1
   ORDER BY e."id" COLLATE "C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE (t."updated_at" >= excluded."updated_at") IS NOT TRUE
  RETURNING old."id" IS NULL AS pgonce_new, t."id"
), tally AS (
  SELECT count(*) AS written, count(*) FILTER (WHERE NOT a.pgonce_new) AS updated FROM applied AS a
)
SELECT NULL::boolean, y.written, y.updated, 0::int8, '' FROM tally AS y
 UNION ALL
SELECT d.*
  FROM (SELECT CASE WHEN e.pgonce_verdict IS NULL
                    THEN (SELECT y.written FROM tally AS y) = (SELECT count(*) FROM judged AS e WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth = 1)
                         OR (e."id") IN (SELECT a."id" FROM applied AS a)
                    ELSE false END AS written, e.pgonce_pos, e.pgonce_nth AS nth, e.pgonce_rank, coalesce(e.pgonce_verdict, '')
          FROM judged AS e
         WHERE (SELECT y.written FROM tally AS y) < cardinality($1::int8[])) AS d
 WHERE NOT d.written OR d.nth > 1;

-- Many rows of distinct keys, told one by one, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*, s."id" AS pgonce_s1, s."status" AS pgonce_s2, s."updated_at" AS pgonce_s3,
       CASE WHEN (s."updated_at" >= e."updated_at") IS NOT TRUE THEN NULL
            WHEN s."updated_at" > e."updated_at" THEN 'stale'
            WHEN s."status" IS NOT DISTINCT FROM e."status" THEN 'unchanged'
            ELSE 'conflict' END AS pgonce_verdict
    FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "updated_at"
                    FROM (SELECT unnest(a.pos) AS pgonce_pos, unnest(a.a1) AS c1, unnest(a.a2) AS c2,
                                  unnest(a.a3) AS c3
                            FROM (SELECT $1::int8[] AS pos, $2::text[] AS a1, $3::text[] AS a2,
                                          $4::timestamp with time zone[] AS a3,
                                          set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."updated_at"
                         FROM "subscription" AS s
                        WHERE s."id" = e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "updated_at")
  SELECT e."id", e."status", e."updated_at"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "updated_at" = excluded."updated_at"
   WHERE set_config('pgonce.hit', '=' || t."id"::text, true) IS NOT NULL
     AND (t."updated_at" >= excluded."updated_at") IS NOT TRUE
  RETURNING CASE current_setting('pgonce.hit', true) WHEN '' THEN true ELSE current_setting('pgonce.hit', true) IS DISTINCT FROM '=' || t."id"::text END AS pgonce_new,
            t."id", t."status", t."updated_at"
)
SELECT row_number() OVER (PARTITION BY r.pgonce_g1 ORDER BY r.pgonce_pos) = 1,
       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,
       r."id", r."status",
       pg_catalog.encode(pg_catalog.timestamptz_send(r."updated_at"), 'hex'::pg_catalog.text)
  FROM (
    SELECT a."id" COLLATE "C" AS pgonce_g1, -1::int8 AS pgonce_pos, 0::int8 AS pgonce_nth, 0::int8 AS pgonce_rank,
           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,
           a."id", a."status", a."updated_at"
      FROM applied AS a
     UNION ALL
    SELECT e."id" COLLATE "C" AS pgonce_g1, e.pgonce_pos, 1::int8, 1::int8, coalesce(e.pgonce_verdict, ''),
           e.pgonce_s1 AS "id", e.pgonce_s2 AS "status", e.pgonce_s3 AS "updated_at"
      FROM judged AS e
  ) AS r
 ORDER BY r.pgonce_g1, r.pgonce_pos;
