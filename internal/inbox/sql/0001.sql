-- Version 1: the messages that were received, and what has become of each.
--
-- Locks: none on any table that exists; the new table is locked until the transaction ends, and nobody can see it yet.
-- Takes milliseconds. Nothing in it needs to be run ahead of time. Safe to run again.
-- Older versions of the library: none.
CREATE TABLE IF NOT EXISTS /*table*/inbox (
  source      pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
  operation   pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
  message_id  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
  -- CACHE 1: with more, a session would take a block of numbers, and those of two sessions would not be in order.
  seq         bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) NOT NULL,
  key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
  headers     pg_catalog.json,
  body        pg_catalog.bytea,                  -- NULL: purged
  received_at pg_catalog.timestamptz NOT NULL DEFAULT clock_timestamp(),
  state       smallint NOT NULL DEFAULT 1,       -- 1 waiting, 2 handled, 3 dead, 4 discarded
  -- Of what waits: from when on it may be handled, or taken from a worker that is gone; infinity: behind one of its key.
  due_at      pg_catalog.timestamptz DEFAULT clock_timestamp(),
  attempt     integer NOT NULL DEFAULT 0,
  token       bigint,                            -- of the worker that has it; of what is handled, that had it
  error_class pg_catalog.text COLLATE pg_catalog."C",
  last_error  pg_catalog.text,
  finished_at pg_catalog.timestamptz,            -- when it was handled or discarded
  -- No column that changes is part of it: what comes again is a duplicate, whatever has become of the first.
  PRIMARY KEY (message_id, operation, source),
  -- No more than these two: every INSERT pays for reading each again.
  CHECK ((state = 1) = (due_at IS NOT NULL)),
  CHECK ((state = 2 OR state = 4) = (finished_at IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- The only one that storing a message without a key touches.
CREATE INDEX IF NOT EXISTS /*due*/inbox_due ON /*table*/inbox (due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS /*order*/inbox_order ON /*table*/inbox (key, seq) WHERE finished_at IS NULL AND key <> '';
CREATE INDEX IF NOT EXISTS /*running*/inbox_running ON /*table*/inbox (key, seq)
 WHERE due_at IS NOT NULL AND token IS NOT NULL AND key <> '';
CREATE INDEX IF NOT EXISTS /*dead*/inbox_dead ON /*table*/inbox (seq) WHERE due_at IS NULL AND finished_at IS NULL;
CREATE INDEX IF NOT EXISTS /*finished*/inbox_finished ON /*table*/inbox (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS /*bodies*/inbox_bodies ON /*table*/inbox (finished_at) WHERE finished_at IS NOT NULL AND body IS NOT NULL;
COMMENT ON TABLE /*table*/inbox IS 'pgonce inbox table, version 1';
