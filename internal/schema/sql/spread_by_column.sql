-- Spreads the table over the nodes of Citus, by a column. To be run on the coordinator, once the table is there.
--
-- Locks: none that anybody waits for, on a new table. One with keys is moved under a lock, and claims wait behind it.
-- Safe to run again. The second statement is for what Citus gets wrong: it notes the database's collation for the group, and
-- then refuses to spread the next table by a text.
SELECT create_distributed_table(/*name*/'processed_events', /*column*/'key', 'hash', 'none')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid::oid = to_regclass(/*name*/'processed_events')::oid);
SELECT update_distributed_table_colocation(/*name*/'processed_events', 'none')
 WHERE EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p
                 JOIN pg_catalog.pg_dist_colocation AS g ON g.colocationid = p.colocationid
                 JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.logicalrelid::oid AND a.attname = /*column*/'key'
                WHERE p.logicalrelid::oid = to_regclass(/*name*/'processed_events')::oid
                  AND g.distributioncolumncollation <> a.attcollation);
