-- Deletes the keys that have expired, eight pages at a time, with a COMMIT and a rest after each. Run it by itself, not in
-- a transaction. What is not done stays, and so does what another session has locked, until the next time. Where another
-- purge of the table is running it ends at once. Whatever the role's default is, it works at READ COMMITTED.
DO $pgonce$
DECLARE
  page  bigint := 0;
  pages bigint;  -- of the table, or of the largest of its partitions
  span  bigint;
  gone  bigint := 0;
  n     bigint;
  begun timestamp with time zone;
  took  interval := '0';
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_partitioned_table
              WHERE partrelid OPERATOR(pg_catalog.=) /*name*/'processed_events'::pg_catalog.regclass AND partstrat OPERATOR(pg_catalog.=) 'r') THEN
    RAISE EXCEPTION 'a table partitioned by range, as those of layout Weekly are, is not purged' USING ERRCODE = 'wrong_object_type';
  END IF;
  SELECT pg_catalog.max(pg_catalog.pg_relation_size(part) OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint),
         greatest(8 OPERATOR(pg_catalog./) pg_catalog.count(*), 1)
    INTO pages, span
    FROM (SELECT /*name*/'processed_events'::pg_catalog.regclass
          UNION SELECT relid FROM pg_catalog.pg_partition_tree(/*name*/'processed_events'::pg_catalog.regclass) WHERE isleaf) AS parts (part);
  IF pg_catalog.to_regclass('pg_catalog.citus_shards') IS NOT NULL THEN
    -- A table that Citus spreads over its nodes has no pages here; one that it does not spread has no shards.
    EXECUTE 'SELECT coalesce((pg_catalog.max(s.shard_size) OPERATOR(pg_catalog./) $2) OPERATOR(pg_catalog.+) 1::bigint, $3),
                    CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 0 THEN $4
                         ELSE greatest(8::bigint OPERATOR(pg_catalog./) pg_catalog.count(*), 1::bigint) END
               FROM pg_catalog.citus_shards AS s
               JOIN (SELECT $1 UNION SELECT t.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree($1) AS t) AS part (oid)
                 ON s.table_name::pg_catalog.oid OPERATOR(pg_catalog.=) part.oid'
      INTO pages, span
      USING /*name*/'processed_events'::pg_catalog.regclass::pg_catalog.oid, pg_catalog.current_setting('block_size')::bigint, pages, span;
  END IF;
  COMMIT;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
  WHILE page OPERATOR(pg_catalog.<) pages LOOP
    EXIT WHEN NOT pg_catalog.pg_try_advisory_xact_lock(/*class*/1, /*name*/'processed_events'::pg_catalog.regclass::pg_catalog.oid::integer);
    PERFORM pg_catalog.set_config('citus.propagate_set_commands', 'local', true); -- where it is there; else no one reads it
    SET LOCAL lock_timeout = '100ms'; -- not set_config, which Citus keeps from its other nodes
    PERFORM pg_catalog.pg_sleep(least(/*rest*/4 OPERATOR(pg_catalog.*) extract(epoch FROM took), 1));
    begun := pg_catalog.clock_timestamp();
    BEGIN
      DELETE FROM /*table*/processed_events
       WHERE ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', page)::pg_catalog.tid
         AND ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', page OPERATOR(pg_catalog.+) span)::pg_catalog.tid
         AND lease_until IS NULL
         AND processed_at OPERATOR(pg_catalog.<) (pg_catalog.now() OPERATOR(pg_catalog.-) (/*keep*/3024000 OPERATOR(pg_catalog.*) interval '1 second'));
      GET DIAGNOSTICS n = ROW_COUNT;
      gone := gone OPERATOR(pg_catalog.+) n;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      NULL;
    END;
    took := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) begun;
    page := page OPERATOR(pg_catalog.+) span;
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
  END LOOP;
  RAISE NOTICE 'pgonce: % keys deleted', gone;
END
$pgonce$;
