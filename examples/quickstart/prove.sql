-- For every event of the file: how many rows of the ledger are its effect? Two counts that are equal would prove less,
-- for a lost effect and a repeated one cancel each other out.
WITH events AS (
    SELECT provider, event_id, count(*) AS deliveries
      FROM delivered
     GROUP BY provider, event_id
), effects AS (
    SELECT provider, event_id, count(*) AS effects
      FROM quickstart_ledger
     GROUP BY provider, event_id
)
SELECT coalesce(sum(deliveries), 0)::bigint,
       count(*),
       coalesce(sum(effects), 0)::bigint,
       count(*) FILTER (WHERE effects IS NULL),
       count(*) FILTER (WHERE effects > 1)
  FROM events
  LEFT JOIN effects USING (provider, event_id);
