-- Gives the table's schema, with all of its tables, to one node of Citus. To be run on the coordinator. A table that is made
-- in the schema later is there by itself.
--
-- Locks: none that anybody waits for, on a new table. One with keys is moved under a lock, and claims wait behind it.
-- Safe to run again.
SELECT citus_schema_distribute(n.oid::regnamespace)
  FROM pg_catalog.pg_namespace AS n
 WHERE n.nspname = /*schema*/'app' AND NOT EXISTS (SELECT FROM pg_catalog.pg_dist_schema AS d WHERE d.schemaid = n.oid);
