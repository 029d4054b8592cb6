-- A source for keys that were unique within one provider only, 3 of 3: the new index becomes the primary key. Before it, every
-- program must name the source and claim with ON CONFLICT (idempotency_key, source): that works as soon as the index is
-- there. One that still names (idempotency_key) alone fails afterwards with 42P10, and runs nothing. Two programs that
-- claim one key at the same moment may get 23505 from the old key until this is done, which is no duplicate: the delivery
-- must come again. Keys of another source are for the time after it, and so is dropping the default.
--
-- Locks: ACCESS EXCLUSIVE on webhook_events, for milliseconds (the columns are NOT NULL already, so that nothing is read). It
-- waits for every open transaction that has claimed, and claims wait behind it: at most for lock_timeout. 55P03: nothing
-- was done, run it again; with handlers that hold their transactions for longer than lock_timeout, raise that.
BEGIN;
SET LOCAL lock_timeout = '1s';
ALTER TABLE webhook_events
  DROP CONSTRAINT webhook_events_pkey,
  ADD CONSTRAINT webhook_events_pkey PRIMARY KEY USING INDEX webhook_events_source_key;
COMMIT;
