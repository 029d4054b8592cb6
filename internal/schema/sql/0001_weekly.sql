-- Version 1: the table of layout Weekly. It has no partitions yet: dedup.Migrate and dedup.Table.Maintain make them.
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
  event_time   pg_catalog.timestamptz NOT NULL,   -- the event's own time, the same on every retry
  bucket       pg_catalog.date NOT NULL,          -- the Monday, in UTC, of its week

  -- The guarantee. It holds in one bucket; that a key has only one is what the two CHECKs below say: the bucket is a
  -- function of the time, and the time one of the key, where the key's last part is a UUIDv7 or a ULID. For every other
  -- key the sender must never change the time.
  PRIMARY KEY (key, operation, source, bucket),
  CONSTRAINT bucket_of_event_time CHECK (bucket = date_trunc('week', event_time AT TIME ZONE 'UTC')::date),
  CONSTRAINT event_time_of_key CHECK (
    CASE
      WHEN key ~* '(^|/)0[1-3][0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
      -- UUIDv7: 48 bits of milliseconds since 1970, in hex.
      THEN extract(epoch FROM event_time AT TIME ZONE 'UTC') * 1000
           = ('x0000' || left(right(key, 36), 8) || substr(right(key, 36), 10, 4))::bit(64)::bigint
      WHEN key ~* '(^|/)0[1-3][0-9a-hjkmnp-tv-z]{24}$'
      -- ULID: the same in ten digits of base 32, of which the first is 0.
      THEN extract(epoch FROM event_time AT TIME ZONE 'UTC') * 1000
           = ((((((((strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 2, 1))) - 1)::bigint * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 3, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 4, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 5, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 6, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 7, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 8, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 9, 1))) - 1) * 32
             + strpos('0123456789abcdefghjkmnpqrstvwxyz', lower(substr(right(key, 26), 10, 1))) - 1
      ELSE true
    END)
) PARTITION BY RANGE (bucket);
COMMENT ON TABLE /*table*/processed_events IS 'pgonce dedup table, layout weekly, version 1';
