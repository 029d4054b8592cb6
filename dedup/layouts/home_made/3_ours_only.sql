-- A home-made table to layout Plain, 3 of 3: the home-made table is no longer claimed in. It stays: drop it when you are sure.
--
-- Locks: ACCESS EXCLUSIVE on processed_events, for milliseconds. It waits for every open transaction that has claimed, and
-- claims wait behind it: at most for lock_timeout. 55P03: nothing was done, run it again; with handlers that hold their
-- transactions for longer than lock_timeout, raise that.
--
-- It fails where a key of the home-made table is missing: the copying was not run, or an old program runs still. The look
-- takes seconds for a million rows, and is done before the lock is taken: a claim writes to both tables or to none. What is
-- older than the retention (put yours for the 35 days) is not asked for: a purge of processed_events may have taken it.
BEGIN;
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  IF EXISTS (SELECT FROM webhook_events AS w
              WHERE w.processed_at OPERATOR(pg_catalog.>=) (pg_catalog.now() OPERATOR(pg_catalog.-) interval '35 days')
                AND NOT EXISTS (SELECT FROM processed_events AS p
                                 WHERE p.source OPERATOR(pg_catalog.=) 'stripe'
                                   AND p.operation OPERATOR(pg_catalog.=) 'activate'
                                  
                                     AND p.key OPERATOR(pg_catalog.=) pg_catalog.replace(pg_catalog.replace(w.idempotency_key, '%', '%25'), '/', '%2F'))) THEN
    RAISE EXCEPTION 'webhook_events holds keys that were not copied';
  END IF;
END $$;
DROP TRIGGER processed_events_claim_both ON processed_events;
DROP FUNCTION processed_events_claim_both();
COMMIT;
