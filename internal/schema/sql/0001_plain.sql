-- Version 1: the table of layout Plain.
--
-- Locks: none on any table that exists; the new table is locked until the transaction ends, and nobody can see it yet.
-- Takes milliseconds. Nothing in it needs to be run ahead of time. Safe to run again.
-- Older versions of the library: none.
CREATE TABLE IF NOT EXISTS /*table*/processed_events (
  source       pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (octet_length(source) >= 1 AND octet_length(source) <= 255),
  operation    pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (octet_length(operation) >= 1 AND octet_length(operation) <= 255),
  key          pg_catalog.text COLLATE pg_catalog."C" NOT NULL CHECK (octet_length(key) >= 1 AND octet_length(key) <= 1024),
  processed_at pg_catalog.timestamptz NOT NULL DEFAULT now(),
  payload_hash pg_catalog.bytea CHECK (octet_length(payload_hash) = 32),
  value        pg_catalog.bytea,
  lease_until  pg_catalog.timestamptz,            -- NULL: done
  attempt      integer NOT NULL DEFAULT 1,
  failed       boolean NOT NULL DEFAULT false,
  -- The guarantee. The key comes first, for it alone tells most rows apart: a smaller index, and faster claims, than
  -- with the source first. COLLATE "C" above: no update of the operating system can change what is equal or its order.
  PRIMARY KEY (key, operation, source)
);
COMMENT ON TABLE /*table*/processed_events IS 'pgonce dedup table, layout plain, version 1';
