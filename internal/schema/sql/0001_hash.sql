-- Version 1: the table of layout Hash. Its partitions follow; VACUUM of them comes after one key in fifty was purged, not after
-- one in five: an option that only the partitions can have.
--
-- Locks: none on any table that exists; the new tables are locked until the transaction ends, and nobody can see them yet.
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
  -- The guarantee, over all partitions: equal keys have equal hashes, so that they meet in one partition, and there in
  -- one index. That the hash is of the key alone is enough, and cheaper than of all three columns.
  PRIMARY KEY (key, operation, source)
) PARTITION BY HASH (key);
COMMENT ON TABLE /*table*/processed_events IS 'pgonce dedup table, layout hash, version 1';
