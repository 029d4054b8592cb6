-- A home-made table to layout Plain, 2 of 3: copies its keys, 64 pages at a time, with a COMMIT after each. Run it when the
-- last program on the home-made table has been stopped, by itself, not in a transaction. Safe to run again, from the beginning.
--
-- Locks: ROW EXCLUSIVE, for which no claim waits. A claim of a key that is just being copied waits for its batch, for
-- milliseconds. Takes minutes for ten million rows. The setting tells the trigger to let the copies pass.
DO $$
DECLARE
  page  int8 := 0;
  pages bigint := pg_catalog.pg_relation_size('webhook_events') OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint;
BEGIN
  WHILE page OPERATOR(pg_catalog.<) pages LOOP
    PERFORM pg_catalog.set_config('pgonce.copying', 'on', true);
    INSERT INTO processed_events (source, operation, key, processed_at, payload_hash)
    SELECT 'stripe', 'activate', pg_catalog.replace(pg_catalog.replace(idempotency_key, '%', '%25'), '/', '%2F'), processed_at,
           CASE WHEN payload_hash OPERATOR(pg_catalog.~) '^[0-9a-f]{64}$' THEN pg_catalog.decode(payload_hash, 'hex') END
      FROM webhook_events
     WHERE ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', page)::pg_catalog.tid
       AND ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', page OPERATOR(pg_catalog.+) 64)::pg_catalog.tid
    ON CONFLICT (key, operation, source) DO NOTHING;
    page := page OPERATOR(pg_catalog.+) 64;
    COMMIT;
  END LOOP;
END $$;
