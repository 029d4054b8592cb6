package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// pendingSQL lists the partitions of $1 that are half detached. It says whether their week has expired ($2,
// microseconds), so that Maintain detaches them, and somebody is at it: he waits for a transaction that has locked
// the table, or has or wants the partition's own lock.
var pendingSQL = pg.Pin(`
SELECT n.nspname::text, c.relname::text,
       coalesce((w.week::date + 7)::timestamp <= timezone('UTC', clock_timestamp() - $2::int8 * interval '1 microsecond'), false)
       AND (EXISTS (SELECT FROM pg_catalog.pg_locks AS l
                     WHERE l.locktype = 'relation' AND l.database = d.oid AND l.relation = c.oid AND l.mode = 'AccessExclusiveLock')
            OR EXISTS (SELECT FROM pg_catalog.pg_locks AS l
                         JOIN pg_catalog.pg_locks AS b ON b.virtualtransaction = l.virtualxid
                        WHERE l.locktype = 'virtualxid' AND NOT l.granted
                          AND b.locktype = 'relation' AND b.database = d.oid AND b.relation = i.inhparent))
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database AS d ON d.datname = current_database()
 CROSS JOIN LATERAL (SELECT substring(pg_catalog.obj_description(c.oid, 'pg_class'::name)
                                      from '^pgonce dedup partition, week ([0-9]{4}-[0-9]{2}-[0-9]{2})') AS week) AS w
 WHERE i.inhparent = $1::int8::oid AND i.inhdetachpending
 ORDER BY c.relname`)

// pending reports the partitions that are half detached with nobody at it, or that have not expired. It looks again
// before it says so, for who is at it may have just ended.
func (v *verifier) pending(ctx context.Context, conn pg.Conn, oid int64, retention time.Duration) error {
	for look := 1; ; look++ {
		var stuck []pg.Name
		err := conn.Query(ctx, pendingSQL, []any{oid, retention.Microseconds()}, func(scan func(...any) error) error {
			var p pg.Name
			var atWork bool
			err := scan(&p.Schema, &p.Table, &atWork)
			if !atWork {
				stuck = append(stuck, p)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("read the catalog's partitions: %w", err)
		}
		if len(stuck) > 0 && look < 3 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		for _, p := range stuck {
			v.report(pendingDetach, "the partition "+p.String()+
				" is half detached: a DETACH ... CONCURRENTLY was not finished, and its keys are not seen any more",
				"ALTER TABLE %s DETACH PARTITION %s FINALIZE", v.table.Quoted(), p.Quoted())
		}
		return nil
	}
}
