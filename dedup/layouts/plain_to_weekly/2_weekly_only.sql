-- Plain to Weekly, 2 of 2: the old table goes. Run it when the last program on it has been stopped for longer than the
-- retention: what it has processed has expired by then.
--
-- It fails where a key of the old table is reserved or unfinished: the table may be the only one that knows. idem.Once.Open
-- on it lists them; settle them, and run it again. The look takes seconds for a million rows, and is done before the lock is
-- taken. (Keys that programs on the new table have reserved have a lease without an end here, and are settled there.)
--
-- Locks: ACCESS EXCLUSIVE on processed_events_weekly, for milliseconds. It waits for every open transaction that has claimed,
-- and claims wait behind it: at most for lock_timeout. 55P03: nothing was done, run it again; with handlers that hold
-- their transactions for longer than lock_timeout, raise that. The table keeps its name: renaming it would need a stop of
-- all programs, for their statements differ by layout.
BEGIN;
SET LOCAL lock_timeout = '1s';
DO $$
BEGIN
  IF EXISTS (SELECT FROM processed_events WHERE lease_until OPERATOR(pg_catalog.<) 'infinity') THEN
    RAISE EXCEPTION 'processed_events holds keys that are reserved or unfinished';
  END IF;
END $$;
DROP TRIGGER processed_events_claim_both ON processed_events_weekly;
DROP FUNCTION processed_events_claim_both();
DROP TRIGGER processed_events_settle_both ON processed_events_weekly;
DROP FUNCTION processed_events_settle_both();
DROP TABLE processed_events;
COMMIT;
