-- Plain to Hash, 1 of 4: from now on, whatever is written to processed_events is written to processed_events_new as well,
-- in the same transaction. Make processed_events_new before, by the DDL of dedup.Table{Name: "processed_events_new", Layout:
-- dedup.Hash(8)}, with the same rights.
--
-- Locks: SHARE ROW EXCLUSIVE on processed_events, for milliseconds. It waits for every open transaction that has claimed,
-- and claims wait behind it: at most for lock_timeout. 55P03: nothing was done, run it again; with handlers that hold their
-- transactions for longer than lock_timeout, raise that.
BEGIN;
SET LOCAL lock_timeout = '1s';

CREATE FUNCTION processed_events_mirror() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN
    DELETE FROM processed_events_new
     WHERE key OPERATOR(pg_catalog.=) OLD.key
       AND operation OPERATOR(pg_catalog.=) OLD.operation
       AND source OPERATOR(pg_catalog.=) OLD.source
      
         AND (TG_OP OPERATOR(pg_catalog.=) 'DELETE' OR (OLD.key, OLD.operation, OLD.source) OPERATOR(pg_catalog.<>) (NEW.key, NEW.operation, NEW.source));
  END IF;
  IF TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
    INSERT INTO processed_events_new
           (source, operation, key, processed_at, payload_hash, value, lease_until, attempt, failed, token)
    VALUES (NEW.source, NEW.operation, NEW.key, NEW.processed_at, NEW.payload_hash, NEW.value, NEW.lease_until, NEW.attempt,
            NEW.failed, NEW.token)
    ON CONFLICT (key, operation, source) DO UPDATE
       SET processed_at = EXCLUDED.processed_at, payload_hash = EXCLUDED.payload_hash, value = EXCLUDED.value,
           lease_until = EXCLUDED.lease_until, attempt = EXCLUDED.attempt, failed = EXCLUDED.failed, token = EXCLUDED.token;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER processed_events_mirror AFTER INSERT OR UPDATE OR DELETE ON processed_events
  FOR EACH ROW EXECUTE FUNCTION processed_events_mirror();
COMMIT;
