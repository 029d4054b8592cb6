-- Version 3: the token by which a claim knows its own row. The client chooses it; NULL where an older version made the row.
--
-- Locks: ACCESS EXCLUSIVE on the table and its partitions, for milliseconds: nothing is rewritten. It waits for every
-- open transaction that has claimed, and claims wait behind it. So set a lock_timeout, and run it again after 55P03.
-- Migrate does both by itself. May be run ahead of time, and again.
-- Older versions of the library: they work as before. This version needs the column before its first claim.
ALTER TABLE "processed_events" ADD COLUMN IF NOT EXISTS token bigint;
COMMENT ON TABLE "processed_events" IS 'pgonce dedup table, layout plain, version 3';
