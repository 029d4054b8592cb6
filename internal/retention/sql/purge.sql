-- Deletes the keys that have expired, eight pages at a time, with a COMMIT and a rest after each. Run it by itself, not in
-- a transaction. What is not done stays, and so does what another session has locked, until the next time. Where another
-- purge of the table is running it ends at once. Whatever the role's default is, it works at READ COMMITTED.
DO $pgonce$
DECLARE
  page  int8 := 0;
  pages int8;  -- of the table, or of the largest of its partitions
  span  int8;
  gone  int8 := 0;
  n     int8;
  begun timestamptz;
  took  interval := '0';
BEGIN
  IF EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = /*name*/'processed_events'::regclass AND partstrat = 'r') THEN
    RAISE EXCEPTION 'a table partitioned by range, as those of layout Weekly are, is not purged' USING ERRCODE = 'wrong_object_type';
  END IF;
  SELECT max(pg_relation_size(part) / current_setting('block_size')::int8), greatest(8 / count(*), 1)
    INTO pages, span
    FROM (SELECT /*name*/'processed_events'::regclass
          UNION SELECT relid FROM pg_partition_tree(/*name*/'processed_events'::regclass) WHERE isleaf) AS parts (part);
  COMMIT;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
  WHILE page < pages LOOP
    EXIT WHEN NOT pg_try_advisory_xact_lock(/*class*/1, /*name*/'processed_events'::regclass::oid::int4);
    PERFORM set_config('lock_timeout', '100ms', true);
    PERFORM pg_sleep(least(/*rest*/4 * extract(epoch FROM took), 1));
    begun := clock_timestamp();
    BEGIN
      DELETE FROM /*table*/processed_events
       WHERE ctid >= format('(%s,0)', page)::tid AND ctid < format('(%s,0)', page + span)::tid
         AND lease_until IS NULL
         AND processed_at < now() - /*keep*/3024000 * interval '1 second';
      GET DIAGNOSTICS n = ROW_COUNT;
      gone := gone + n;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      NULL;
    END;
    took := clock_timestamp() - begun;
    page := page + span;
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
  END LOOP;
  RAISE NOTICE 'pgonce: % keys deleted', gone;
END
$pgonce$;
