-- Plain to Hash, 4 of 4: the new table takes the name of the old one. Programs go on, with dedup.Table{Layout: dedup.Hash(8)}
-- for Verify and Maintain; claims are the same statements on both layouts. The old table stays as processed_events_old:
-- drop it when you are sure.
--
-- Locks: ACCESS EXCLUSIVE on both tables, for milliseconds. It waits for every open transaction that has claimed, and claims
-- wait behind it: at most for lock_timeout. 55P03: nothing was done, run it again; with handlers that hold their
-- transactions for longer than lock_timeout, raise that.
BEGIN;
SET LOCAL lock_timeout = '1s';
LOCK TABLE processed_events, processed_events_new IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER processed_events_mirror ON processed_events;
DROP FUNCTION processed_events_mirror();
ALTER TABLE processed_events RENAME CONSTRAINT processed_events_pkey TO processed_events_old_pkey;
ALTER TABLE processed_events RENAME TO processed_events_old;
ALTER TABLE processed_events_new RENAME CONSTRAINT processed_events_new_pkey TO processed_events_pkey;
ALTER TABLE processed_events_new RENAME TO processed_events;
COMMIT;
