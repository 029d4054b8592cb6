-- The partitions belong to the table's group.
SELECT update_distributed_table_colocation(t.relid, /*name*/'processed_events')
  FROM pg_partition_tree(/*name*/'processed_events') AS t
  JOIN pg_catalog.pg_dist_partition AS p ON p.logicalrelid::oid = t.relid::oid
  JOIN pg_catalog.pg_dist_partition AS q ON q.logicalrelid::oid = to_regclass(/*name*/'processed_events')::oid
 WHERE t.isleaf AND p.colocationid <> q.colocationid;
