-- SQL(), with id, status, plan
WITH event AS (
  SELECT t."id", t."status", t."plan" FROM "subscription" AS t WHERE false
  UNION ALL
  SELECT $1, $2, $3
)
INSERT INTO "subscription" AS t ("id", "status", "plan")
SELECT e."id", e."status",
       coalesce(e."plan", (SELECT s."plan" FROM "subscription" AS s WHERE s."id" OPERATOR(pg_catalog.=) e."id"))
  FROM event AS e
ON CONFLICT ("id") DO UPDATE
   SET "status" = excluded."status",
       "plan" = coalesce((SELECT e."plan" FROM event AS e), t."plan");

-- One row, PostgreSQL 14 to 17
WITH event AS (
  SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "id", $2::pg_catalog.text AS "status",
         $3::pg_catalog.text AS "plan"
), stored AS MATERIALIZED (
  SELECT s."id", s."status", s."plan", s."public_id", true AS pgonce_found
    FROM "subscription" AS s
   WHERE s."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "plan")
  SELECT e."id", e."status", e."plan"
    FROM event AS e, pg_catalog.set_config('pgonce.hit', '', true)
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL))
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "plan" = coalesce(excluded."plan", t."plan")
   WHERE pg_catalog.set_config('pgonce.hit', '1', true) IS NOT NULL
     AND NOT (coalesce(t."status" OPERATOR(pg_catalog.=) excluded."status", t."status" IS NULL AND excluded."status" IS NULL)
                 AND coalesce(t."plan" OPERATOR(pg_catalog.=) coalesce(excluded."plan", t."plan"),
                          t."plan" IS NULL AND coalesce(excluded."plan", t."plan") IS NULL))
  RETURNING pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) '' AS pgonce_new, t."id", t."status", t."plan",
            t."public_id"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."status", a."plan", a."public_id"
  FROM applied AS a
UNION ALL
SELECT CASE WHEN s.pgonce_found AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL) THEN 'unchanged' ELSE 'raced' END,
       s."id", s."status", s."plan", s."public_id"
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- One row, from PostgreSQL 18
WITH event AS (
  SELECT $1::pg_catalog.text COLLATE pg_catalog."C" AS "id", $2::pg_catalog.text AS "status",
         $3::pg_catalog.text AS "plan"
), stored AS MATERIALIZED (
  SELECT s."id", s."status", s."plan", s."public_id", true AS pgonce_found
    FROM "subscription" AS s
   WHERE s."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "plan")
  SELECT e."id", e."status", e."plan"
    FROM event AS e
   WHERE NOT EXISTS (SELECT FROM stored AS s WHERE coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL))
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "plan" = coalesce(excluded."plan", t."plan")
   WHERE NOT (coalesce(t."status" OPERATOR(pg_catalog.=) excluded."status", t."status" IS NULL AND excluded."status" IS NULL)
                 AND coalesce(t."plan" OPERATOR(pg_catalog.=) coalesce(excluded."plan", t."plan"),
                          t."plan" IS NULL AND coalesce(excluded."plan", t."plan") IS NULL))
  RETURNING old."id" IS NULL AS pgonce_new, t."id", t."status", t."plan", t."public_id"
)
SELECT CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END,
       a."id", a."status", a."plan", a."public_id"
  FROM applied AS a
UNION ALL
SELECT CASE WHEN s.pgonce_found AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL) THEN 'unchanged' ELSE 'raced' END,
       s."id", s."status", s."plan", s."public_id"
  FROM event AS e LEFT JOIN stored AS s ON true
 WHERE NOT EXISTS (SELECT FROM applied);

-- Many rows, PostgreSQL 14 to 17
WITH judged AS MATERIALIZED (
  SELECT e.*,
       CASE WHEN s.pgonce_found AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL) THEN 'unchanged' ELSE NULL END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q."id" COLLATE pg_catalog."C"
                                         ORDER BY q.pgonce_pos DESC) AS pgonce_nth,
                 0 AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "plan"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."plan", s."public_id", true AS pgonce_found
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "plan")
  SELECT e."id", e."status", e."plan"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e."id" COLLATE pg_catalog."C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "plan" = coalesce(excluded."plan", t."plan")
   WHERE pg_catalog.set_config('pgonce.hit', '=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text, true) IS NOT NULL
     AND NOT (coalesce(t."status" OPERATOR(pg_catalog.=) excluded."status", t."status" IS NULL AND excluded."status" IS NULL)
                 AND coalesce(t."plan" OPERATOR(pg_catalog.=) coalesce(excluded."plan", t."plan"),
                          t."plan" IS NULL AND coalesce(excluded."plan", t."plan") IS NULL))
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
       CASE WHEN s.pgonce_found AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL) THEN 'unchanged' ELSE NULL END AS pgonce_verdict
    FROM (SELECT q.*, pg_catalog.row_number() OVER (PARTITION BY q."id" COLLATE pg_catalog."C"
                                         ORDER BY q.pgonce_pos DESC) AS pgonce_nth,
                 0 AS pgonce_rank
            FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "plan"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS q) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."plan", s."public_id", true AS pgonce_found
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "plan")
  SELECT e."id", e."status", e."plan"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL AND e.pgonce_nth OPERATOR(pg_catalog.=) 1
   ORDER BY e."id" COLLATE pg_catalog."C"
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "plan" = coalesce(excluded."plan", t."plan")
   WHERE NOT (coalesce(t."status" OPERATOR(pg_catalog.=) excluded."status", t."status" IS NULL AND excluded."status" IS NULL)
                 AND coalesce(t."plan" OPERATOR(pg_catalog.=) coalesce(excluded."plan", t."plan"),
                          t."plan" IS NULL AND coalesce(excluded."plan", t."plan") IS NULL))
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
  SELECT e.*, s."id" AS pgonce_s1, s."status" AS pgonce_s2, s."plan" AS pgonce_s3, s."public_id" AS pgonce_s4,
       CASE WHEN s.pgonce_found AND coalesce(s."status" OPERATOR(pg_catalog.=) e."status", s."status" IS NULL AND e."status" IS NULL)
                 AND coalesce(s."plan" OPERATOR(pg_catalog.=) coalesce(e."plan", s."plan"),
                          s."plan" IS NULL AND coalesce(e."plan", s."plan") IS NULL) THEN 'unchanged' ELSE NULL END AS pgonce_verdict
    FROM (SELECT v.*
            FROM (SELECT u.pgonce_pos, u.c1 COLLATE pg_catalog."C" AS "id", u.c2 AS "status",
                          u.c3 AS "plan"
                    FROM (SELECT pg_catalog.unnest(a.pos) AS pgonce_pos, pg_catalog.unnest(a.a1) AS c1, pg_catalog.unnest(a.a2) AS c2,
                                  pg_catalog.unnest(a.a3) AS c3
                            FROM (SELECT $1::pg_catalog.int8[] AS pos, $2::pg_catalog.text[] AS a1,
                                          $3::pg_catalog.text[] AS a2, $4::pg_catalog.text[] AS a3,
                                          pg_catalog.set_config('pgonce.hit', '', true)
                                   WHERE '{NULL}'::pg_catalog.text::pg_catalog.int8[] IS NOT NULL OFFSET 0) AS a) AS u) AS v) AS e
    LEFT JOIN LATERAL (SELECT s."id", s."status", s."plan", s."public_id", true AS pgonce_found
                         FROM "subscription" AS s
                        WHERE s."id" OPERATOR(pg_catalog.=) e."id"
                        OFFSET 0) AS s ON true
), applied AS (
  INSERT INTO "subscription" AS t ("id", "status", "plan")
  SELECT e."id", e."status", e."plan"
    FROM judged AS e
   WHERE e.pgonce_verdict IS NULL
  ON CONFLICT ("id") DO UPDATE
     SET "status" = excluded."status",
         "plan" = coalesce(excluded."plan", t."plan")
   WHERE pg_catalog.set_config('pgonce.hit', '=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text, true) IS NOT NULL
     AND NOT (coalesce(t."status" OPERATOR(pg_catalog.=) excluded."status", t."status" IS NULL AND excluded."status" IS NULL)
                 AND coalesce(t."plan" OPERATOR(pg_catalog.=) coalesce(excluded."plan", t."plan"),
                          t."plan" IS NULL AND coalesce(excluded."plan", t."plan") IS NULL))
  RETURNING (pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.=) ''
             OR pg_catalog.current_setting('pgonce.hit', true) OPERATOR(pg_catalog.<>) ('=' OPERATOR(pg_catalog.||) t."id"::pg_catalog.text)) IS NOT FALSE AS pgonce_new,
            t."id", t."status", t."plan", t."public_id"
)
SELECT pg_catalog.row_number() OVER (PARTITION BY r.pgonce_g1 ORDER BY r.pgonce_pos) OPERATOR(pg_catalog.=) 1,
       r.pgonce_pos, r.pgonce_nth, r.pgonce_rank, r.pgonce_outcome,
       r."id", r."status", r."plan", r."public_id"
  FROM (
    SELECT a."id" COLLATE pg_catalog."C" AS pgonce_g1,
           '-1'::pg_catalog.int8 AS pgonce_pos, 0::pg_catalog.int8 AS pgonce_nth, 0::pg_catalog.int8 AS pgonce_rank,
           CASE WHEN a.pgonce_new THEN 'inserted' ELSE 'updated' END AS pgonce_outcome,
           a."id", a."status", a."plan", a."public_id"
      FROM applied AS a
     UNION ALL
    SELECT e."id" COLLATE pg_catalog."C" AS pgonce_g1, e.pgonce_pos, 1::pg_catalog.int8, 1::pg_catalog.int8, coalesce(e.pgonce_verdict, ''),
           e.pgonce_s1 AS "id", e.pgonce_s2 AS "status", e.pgonce_s3 AS "plan", e.pgonce_s4 AS "public_id"
      FROM judged AS e
  ) AS r
 ORDER BY r.pgonce_g1, r.pgonce_pos;
