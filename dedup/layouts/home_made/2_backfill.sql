-- A home-made table to layout Plain, 2 of 3: copies its keys, 64 pages at a time, with a COMMIT after each. Run it when the
-- last program on the home-made table has been stopped, by itself, not in a transaction. Safe to run again, from the beginning.
--
-- Locks: ROW EXCLUSIVE, for which no claim waits. A claim of a key that is just being copied waits for its batch, for
-- milliseconds. Takes minutes for ten million rows. The setting tells the trigger to let the copies pass.
DO $$
DECLARE
  page  int8 := 0;
  pages int8 := pg_relation_size('webhook_events') / current_setting('block_size')::int8;
BEGIN
  WHILE page < pages LOOP
    PERFORM set_config('pgonce.copying', 'on', true);
    INSERT INTO processed_events (source, operation, key, processed_at, payload_hash)
    SELECT 'stripe', 'activate', replace(replace(idempotency_key, '%', '%25'), '/', '%2F'), processed_at,
           CASE WHEN payload_hash ~ '^[0-9a-f]{64}$' THEN decode(payload_hash, 'hex') END
      FROM webhook_events
     WHERE ctid >= format('(%s,0)', page)::tid AND ctid < format('(%s,0)', page + 64)::tid
    ON CONFLICT (key, operation, source) DO NOTHING;
    page := page + 64;
    COMMIT;
  END LOOP;
END $$;
