-- Version 3: the token by which a claim knows its own row, chosen by the client. NULL where an older version made the row.
--
-- Locks: ACCESS EXCLUSIVE on the table and its partitions, for milliseconds: nothing is rewritten. It waits for every open
-- transaction that has claimed, and claims wait behind it: run it with a lock_timeout, again where that ends it (55P03). Migrate
-- does so by itself. May be run ahead of time, and again.
-- Older versions of the library: they work as before. This version needs the column: run it before the first program of it.
ALTER TABLE /*table*/processed_events ADD COLUMN IF NOT EXISTS token bigint;
COMMENT ON TABLE /*table*/processed_events IS 'pgonce dedup table, layout plain, version 3';
