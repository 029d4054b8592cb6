-- Version 2: VACUUM comes after one key in fifty was deleted, not after one in five.
--
-- Locks: SHARE UPDATE EXCLUSIVE on the table, for a moment: no claim waits for it; a VACUUM, ANALYZE or CREATE INDEX CONCURRENTLY
-- of the table that is running is waited for. Nothing is rewritten. May be run ahead of time, and again.
-- Older versions of the library: they work as before.
ALTER TABLE "processed_events" SET (autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE "processed_events" IS 'pgonce dedup table, layout plain, version 2';

---- create above / drop below ----

-- An older version of the table keeps what a newer one added.
SELECT;
