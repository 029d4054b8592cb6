-- A source for keys that were unique within one provider only, 2 of 3: the index of the new key, beside the old one. Run it
-- by itself, not in a transaction. Should it fail, it leaves an INVALID index: drop that, and run it again.
--
-- Locks: SHARE UPDATE EXCLUSIVE on webhook_events, for which no claim waits. It waits for every open transaction, twice, and
-- takes seconds for a million rows. While it is being built a claim may fail with 23505 on it, which is no duplicate: the
-- delivery must come again.
CREATE UNIQUE INDEX CONCURRENTLY webhook_events_source_key ON webhook_events (idempotency_key, source);
