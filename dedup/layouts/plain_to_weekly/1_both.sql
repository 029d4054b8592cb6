-- Plain to Weekly, 1 of 2: from now on, a claim on processed_events_weekly is also one on processed_events, so that programs
-- on the one and on the other table run side by side, and nothing runs twice. Make processed_events_weekly before, by
-- dedup.Migrate with dedup.Table{Name: "processed_events_weekly", Layout: dedup.Weekly}, and give its claims the rights to
-- SELECT, INSERT, UPDATE and DELETE on processed_events. Nothing is copied beforehand: a key that is in the old table is
-- copied when a duplicate of it comes, in the transaction of that claim.
--
-- Locks: SHARE ROW EXCLUSIVE on processed_events_weekly, which nobody uses yet. On processed_events none.
--
-- Verify reports the triggers as long as they are there. A key that a program on the old table has reserved fails with
-- 55P03 on the new one, which is retryable, until it is settled there. One that a program on the new table has reserved is
-- in progress for the old one, with a lease that never ends, until it is settled on the new one. What becomes of it there is
-- written to both tables in one transaction: done, failed, or gone.
BEGIN;
CREATE FUNCTION processed_events_claim_both() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.>) 1 THEN
    RETURN NEW; -- the copy below
  END IF;
  IF EXISTS (SELECT FROM processed_events_weekly
              WHERE key OPERATOR(pg_catalog.=) NEW.key
                AND operation OPERATOR(pg_catalog.=) NEW.operation
                AND source OPERATOR(pg_catalog.=) NEW.source
                AND bucket OPERATOR(pg_catalog.=) NEW.bucket) THEN
    RETURN NULL; -- a duplicate: a reservation of it must not begin in the old table, which may have purged the key
  END IF;
  INSERT INTO processed_events (source, operation, key, processed_at, payload_hash, lease_until)
  VALUES (NEW.source, NEW.operation, NEW.key, NEW.processed_at, NEW.payload_hash,
          CASE WHEN NEW.lease_until IS NOT NULL THEN 'infinity'::pg_catalog.timestamptz END)
  ON CONFLICT (key, operation, source) DO NOTHING;
  IF FOUND THEN
    RETURN NEW;
  END IF;
  IF EXISTS (SELECT FROM processed_events_weekly
              WHERE key OPERATOR(pg_catalog.=) NEW.key
                AND operation OPERATOR(pg_catalog.=) NEW.operation
                AND source OPERATOR(pg_catalog.=) NEW.source
                AND bucket OPERATOR(pg_catalog.=) NEW.bucket) THEN
    RETURN NULL; -- it came while this claim waited, and there is nothing to copy
  END IF;
  INSERT INTO processed_events_weekly
         (source, operation, key, processed_at, payload_hash, value, attempt, failed, event_time, bucket)
  SELECT source, operation, key, processed_at, payload_hash, value, attempt, failed, NEW.event_time, NEW.bucket
    FROM processed_events
   WHERE key OPERATOR(pg_catalog.=) NEW.key
     AND operation OPERATOR(pg_catalog.=) NEW.operation
     AND source OPERATOR(pg_catalog.=) NEW.source
     AND lease_until IS NULL
  ON CONFLICT (key, operation, source, bucket) DO NOTHING;
  IF NOT FOUND AND EXISTS (SELECT FROM processed_events
              WHERE key OPERATOR(pg_catalog.=) NEW.key
                AND operation OPERATOR(pg_catalog.=) NEW.operation
                AND source OPERATOR(pg_catalog.=) NEW.source
                AND lease_until OPERATOR(pg_catalog.<) 'infinity') THEN
    RAISE EXCEPTION 'the key is reserved by a program on the old table' USING ERRCODE = 'lock_not_available';
  END IF;
  RETURN NULL; -- the claim inserts nothing, and reads the copy
END $$;

CREATE TRIGGER processed_events_claim_both BEFORE INSERT ON processed_events_weekly
  FOR EACH ROW EXECUTE FUNCTION processed_events_claim_both();

-- What becomes of a reservation on the new table. Only its own row on the old one has a lease without an end.
CREATE FUNCTION processed_events_settle_both() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
    DELETE FROM processed_events
     WHERE key OPERATOR(pg_catalog.=) OLD.key
       AND operation OPERATOR(pg_catalog.=) OLD.operation
       AND source OPERATOR(pg_catalog.=) OLD.source
       AND lease_until OPERATOR(pg_catalog.=) 'infinity';
  ELSIF NEW.lease_until IS NULL THEN
    UPDATE processed_events
       SET lease_until = NULL, value = NEW.value, attempt = NEW.attempt, failed = NEW.failed
     WHERE key OPERATOR(pg_catalog.=) NEW.key
       AND operation OPERATOR(pg_catalog.=) NEW.operation
       AND source OPERATOR(pg_catalog.=) NEW.source
       AND lease_until OPERATOR(pg_catalog.=) 'infinity';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER processed_events_settle_both AFTER UPDATE OR DELETE ON processed_events_weekly
  FOR EACH ROW WHEN (OLD.lease_until IS NOT NULL) EXECUTE FUNCTION processed_events_settle_both();
COMMIT;
