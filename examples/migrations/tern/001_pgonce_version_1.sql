-- Version 1: the table of layout Plain.
--
-- Locks: none on any table that exists; the new table is locked until the transaction ends, and nobody can see it yet.
-- Takes milliseconds. Nothing in it needs to be run ahead of time. Safe to run again.
-- Older versions of the library: none.
CREATE TABLE IF NOT EXISTS "processed_events" (
  source       text COLLATE "C" NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 255),
  operation    text COLLATE "C" NOT NULL CHECK (octet_length(operation) BETWEEN 1 AND 255),
  key          text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
  processed_at timestamptz NOT NULL DEFAULT now(),
  payload_hash bytea CHECK (octet_length(payload_hash) = 32),
  value        bytea,
  lease_until  timestamptz,                       -- NULL: done
  attempt      integer NOT NULL DEFAULT 1,
  failed       boolean NOT NULL DEFAULT false,
  -- The guarantee. The key comes first, for it alone tells most rows apart: a smaller index, and faster claims, than
  -- with the source first. COLLATE "C" above: no update of the operating system can change what is equal or its order.
  PRIMARY KEY (key, operation, source)
);
COMMENT ON TABLE "processed_events" IS 'pgonce dedup table, layout plain, version 1';

---- create above / drop below ----

-- What was remembered is gone: a message that comes again runs again.
DROP TABLE processed_events;
