-- Version 1: the events that wait, and the lanes that relays lease.
--
-- Locks: none on any table that exists; the new tables are locked until the transaction ends, and nobody can see them yet.
-- Takes milliseconds. Nothing in it needs to be run ahead of time. Safe to run again.
-- Older versions of the library: none.
CREATE TABLE IF NOT EXISTS /*table*/outbox (
  -- 0 to 31: a hash of the ordering key. Below 0: the event, or one of its key before it, failed; -1 stands for lane 0.
  lane        smallint NOT NULL,
  -- CACHE 1: with more, a session would take a block of numbers, and those of two sessions would not be in order.
  seq         bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) NOT NULL,
  id          pg_catalog.uuid NOT NULL,
  topic       pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (octet_length(topic) >= 1 AND octet_length(topic) <= 255),
  key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (octet_length(key) <= 1024),
  headers     pg_catalog.jsonb,
  payload     pg_catalog.bytea NOT NULL,
  appended_at pg_catalog.timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts    integer NOT NULL DEFAULT 0,
  retry_at    pg_catalog.timestamptz,            -- of the first event of a key that failed; infinity: parked
  last_error  pg_catalog.text,
  PRIMARY KEY (lane, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Events that failed, in the order of their key. An append does not touch these two indexes.
CREATE INDEX IF NOT EXISTS /*held*/outbox_held ON /*table*/outbox (lane, key, seq) WHERE lane < 0;
CREATE INDEX IF NOT EXISTS /*due*/outbox_due ON /*table*/outbox (lane, retry_at) WHERE lane < 0 AND retry_at IS NOT NULL;
-- fillfactor: a lease is an update that finds its place on the same page, and needs no new entry of the index.
CREATE TABLE IF NOT EXISTS /*lanes*/outbox_lanes (
  lane        smallint PRIMARY KEY CHECK (lane >= 0 AND lane < 32),
  token       bigint NOT NULL DEFAULT 0,
  lease_until pg_catalog.timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
INSERT INTO /*lanes*/outbox_lanes (lane) SELECT g::int2 FROM generate_series(0, 31) AS g ON CONFLICT (lane) DO NOTHING;
COMMENT ON TABLE /*table*/outbox IS 'pgonce outbox table, version 1';
