-- Version 1: the table of layout Plain.
--
-- Locks: none on any table that exists; the new table is locked until the transaction ends, and nobody can see it yet.
-- Takes milliseconds. Nothing in it needs to be run ahead of time. Safe to run again.
-- Older versions of the library: none.
CREATE TABLE IF NOT EXISTS "processed_events" (
  source       pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (pg_catalog.octet_length(source) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(source) OPERATOR(pg_catalog.<=) 255),
  operation    pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (pg_catalog.octet_length(operation) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(operation) OPERATOR(pg_catalog.<=) 255),
  key          pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (pg_catalog.octet_length(key) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.octet_length(key) OPERATOR(pg_catalog.<=) 1024),
  processed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
  payload_hash pg_catalog.bytea CHECK (pg_catalog.octet_length(payload_hash) OPERATOR(pg_catalog.=) 32),
  value        pg_catalog.bytea,
  lease_until  pg_catalog.timestamptz,            -- NULL: done
  attempt      integer NOT NULL DEFAULT 1,
  failed       boolean NOT NULL DEFAULT false,
  -- The guarantee. The key comes first, for it alone tells most rows apart: a smaller index, and faster claims, than
  -- with the source first. COLLATE "C" above: no update of the operating system can change what is equal or its order.
  PRIMARY KEY (key, operation, source)
);
COMMENT ON TABLE "processed_events" IS 'pgonce dedup table, layout plain, version 1';
