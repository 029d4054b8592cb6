-- A source for keys that were unique within one provider only, 1 of 3: every key so far is of one source.
--
-- Locks: ACCESS EXCLUSIVE on webhook_events, for milliseconds: the default is written to the catalog and not to the rows. It
-- waits for every open transaction that has claimed, and claims wait behind it: at most for lock_timeout. 55P03: nothing
-- was done, run it again; with handlers that hold their transactions for longer than lock_timeout, raise that.
BEGIN;
SET LOCAL lock_timeout = '1s';
ALTER TABLE webhook_events ADD COLUMN source text COLLATE "C" NOT NULL DEFAULT 'stripe';
COMMIT;
