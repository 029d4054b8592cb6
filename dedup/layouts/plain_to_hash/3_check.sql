-- Plain to Hash, 3 of 4: counts the rows that the two tables do not agree on. It must be 0 before the swap.
--
-- Locks: ACCESS SHARE, for which no claim waits. Takes seconds for a million rows. Claims may go on: what a transaction
-- writes to one table it writes to the other, so that one statement sees both or neither.
SELECT pg_catalog.count(*)
  FROM processed_events AS o
  FULL JOIN processed_events_new AS n ON n.key OPERATOR(pg_catalog.=) o.key
    AND n.operation OPERATOR(pg_catalog.=) o.operation
    AND n.source OPERATOR(pg_catalog.=) o.source
 WHERE o.key IS NULL OR n.key IS NULL
    OR (o.processed_at, o.payload_hash, o.value, o.lease_until, o.attempt, o.failed, o.token)
       IS DISTINCT FROM (n.processed_at, n.payload_hash, n.value, n.lease_until, n.attempt, n.failed, n.token);
