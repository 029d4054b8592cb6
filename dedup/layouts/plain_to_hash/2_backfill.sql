-- Plain to Hash, 2 of 4: copies what was there before the mirror, 64 pages at a time, with a COMMIT after each. Run it by
-- itself, not in a transaction. Safe to run again, from the beginning.
--
-- Locks: ROW SHARE and ROW EXCLUSIVE, for which no claim waits; and FOR SHARE on the rows of one batch, for milliseconds.
-- Claims and duplicates do not wait for that; a move of a reservation, Forget and a purge do. Without it a key that is
-- deleted just now would come back: the mirror finds nothing to delete, and the copy is made after it.
-- Takes minutes for ten million rows.
DO $$
DECLARE
  page  int8 := 0;
  pages bigint := pg_catalog.pg_relation_size('processed_events') OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint;
BEGIN
  WHILE page OPERATOR(pg_catalog.<) pages LOOP
    PERFORM pg_catalog.set_config('lock_timeout', '100ms', true);
    BEGIN
      INSERT INTO processed_events_new
             (source, operation, key, processed_at, payload_hash, value, lease_until, attempt, failed, token)
      SELECT source, operation, key, processed_at, payload_hash, value, lease_until, attempt, failed, token
        FROM processed_events
       WHERE ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', page)::pg_catalog.tid
         AND ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', page OPERATOR(pg_catalog.+) 64)::pg_catalog.tid
         FOR SHARE
      ON CONFLICT (key, operation, source) DO NOTHING;
      page := page OPERATOR(pg_catalog.+) 64;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      PERFORM pg_catalog.pg_sleep(0.05); -- somebody holds a row of the batch: the same batch again
    END;
    COMMIT;
  END LOOP;
END $$;
