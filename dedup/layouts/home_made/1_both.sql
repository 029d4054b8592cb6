-- A home-made table to layout Plain, 1 of 3: from now on, a claim on processed_events is also one on the home-made table, so
-- that programs on the one and on the other run side by side, and nothing runs twice. Make processed_events before, by
-- dedup.Migrate, and give its claims the rights to SELECT and INSERT on the home-made table, which is
--
--   CREATE TABLE webhook_events (idempotency_key text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now(), payload_hash text)
--
-- Put your names for it, and for the source and operation of its keys. A payload hash is taken over where it is a SHA-256
-- in hex; where yours is not that of the bytes as they came, leave it out.
--
-- Locks: SHARE ROW EXCLUSIVE on processed_events, which nobody uses yet. On webhook_events none.
-- Verify reports the trigger as long as it is there. Reserve and Call are for the time after the last step: until then
-- they fail with 0A000, and send nothing. The home-made table cannot say of a key that it is not done yet.
BEGIN;
CREATE FUNCTION processed_events_claim_both() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  id pg_catalog.text := pg_catalog.replace(pg_catalog.replace(NEW.key, '%2F', '/'), '%25', '%'); -- as the sender writes it; idem.Scope.Key escapes
BEGIN
  IF pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.>) 1 OR pg_catalog.current_setting('pgonce.copying', true) OPERATOR(pg_catalog.=) 'on' THEN
    RETURN NEW; -- the copy below, or the next step's
  END IF;
  IF NEW.lease_until IS NOT NULL THEN
    RAISE EXCEPTION 'webhook_events cannot hold a reservation: Reserve and Call are for the time after the last step'
      USING ERRCODE = 'feature_not_supported';
  END IF;
  INSERT INTO webhook_events (idempotency_key, processed_at, payload_hash)
  VALUES (id, NEW.processed_at, pg_catalog.encode(NEW.payload_hash, 'hex'))
  ON CONFLICT (idempotency_key) DO NOTHING;
  IF FOUND THEN
    RETURN NEW;
  END IF;
  INSERT INTO processed_events (source, operation, key, processed_at, payload_hash)
  SELECT NEW.source, NEW.operation, NEW.key, processed_at, CASE WHEN payload_hash OPERATOR(pg_catalog.~) '^[0-9a-f]{64}$' THEN pg_catalog.decode(payload_hash, 'hex') END
    FROM webhook_events
   WHERE idempotency_key OPERATOR(pg_catalog.=) id
  ON CONFLICT (key, operation, source) DO NOTHING;
  RETURN NULL; -- the claim inserts nothing, and reads the copy
END $$;

CREATE TRIGGER processed_events_claim_both BEFORE INSERT ON processed_events
  FOR EACH ROW WHEN (NEW.source OPERATOR(pg_catalog.=) 'stripe'
    AND NEW.operation OPERATOR(pg_catalog.=) 'activate') EXECUTE FUNCTION processed_events_claim_both();
COMMIT;
