package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// Of a table of layout Weekly there are always partitions for weeks to come.
const (
	WeeksAhead = 8 // are made
	FewWeeks   = 4 // fewer are a problem: Maintain does not run
)

var weeklyTypes = []columnSpec{
	{"event_time", "timestamp with time zone", "timestamptz", "pg_catalog.timestamptz NOT NULL"},
	{"bucket", "date", "date", "pg_catalog.date NOT NULL"},
}

// RangesSQL lists the partitions by range of the table $1. Why not read the bounds in Go: they are printed by the
// session's DateStyle, and this session can read what it prints. No backslash: with standard_conforming_strings = off
// it would be another pattern, that finds nothing.
//
// A bound has no column in it, and so pg_get_expr needs no relation. Why not give it the partition: it would lock that.
// Who finishes a DETACH ... CONCURRENTLY holds that lock, and waits for every older snapshot, this look's among them.
const RangesSQL = `
SELECT c.oid, n.nspname, c.relname, i.inhdetachpending AS pending,
       coalesce(substring(b.bound from 'FROM [(]''([^'']+)''[)]')::date, '-infinity') AS low,
       coalesce(substring(b.bound from 'TO [(]''([^'']+)''[)]')::date, 'infinity') AS high
  FROM pg_catalog.pg_inherits AS i
  JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, 0::oid) AS bound) AS b
 WHERE i.inhparent = $1::int8::oid AND b.bound <> 'DEFAULT'`

// weeksSQL lists the weeks from the one in which the retention ($2, microseconds) begins to $3 weeks from now, by the
// database's clock, and says of each whether it has a partition, and whether all partitions are of earlier weeks, or
// of later ones, and whether it is still without keys: it begins in more than a day, which no key's time may, and no
// partition is there.
var weeksSQL = pg.Pin(`
WITH parts AS (` + RangesSQL + `),
     span AS (SELECT date_trunc('week', (clock_timestamp() - $2::int8 * interval '1 microsecond') AT TIME ZONE 'UTC')::date AS oldest,
                     date_trunc('week', clock_timestamp() AT TIME ZONE 'UTC')::date AS monday),
     weeks AS (SELECT oldest + 7 * i AS week FROM span CROSS JOIN LATERAL generate_series(0, (monday - oldest) / 7 + $3::int4) AS i)
SELECT to_char(week, 'YYYY-MM-DD'), to_char(week + 7, 'YYYY-MM-DD'),
       EXISTS (SELECT FROM parts WHERE NOT pending AND low <= week AND week < high),
       coalesce(week >= (SELECT max(high) FROM parts), true),
       coalesce(week < (SELECT min(low) FROM parts WHERE NOT pending), false),
       week > clock_timestamp() AT TIME ZONE 'UTC' + interval '1 day' AND NOT EXISTS (SELECT FROM parts WHERE low < week + 7 AND week < high)
  FROM weeks
 ORDER BY week`)

type week struct {
	from, to             string
	taken, after, before bool // has a partition; is after, or before, all partitions
	unused               bool // no key can have been in it
}

func weeks(ctx context.Context, conn pg.Conn, t Table, oid int64, ahead int) ([]week, error) {
	var all []week
	args := []any{oid, t.Retention.Microseconds(), int64(ahead)}
	err := conn.Query(ctx, weeksSQL, args, func(scan func(...any) error) error {
		var w week
		err := scan(&w.from, &w.to, &w.taken, &w.after, &w.before, &w.unused)
		all = append(all, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's partitions: %w", err)
	}
	return all, nil
}

// WeekLeaf returns the name of the partition of a week, which is written as 2026-11-30.
func WeekLeaf(table pg.Name, week string) pg.Name {
	return leaf(table, "_w"+strings.ReplaceAll(week, "-", ""))
}

// createWeek makes a table for a week that is not a partition yet. Its comment says what it is, should it be left
// behind.
//
// Why not CREATE TABLE ... PARTITION OF: it takes ACCESS EXCLUSIVE on the parent. It waits for every transaction that
// has claimed, and every claim for it.
func createWeek(table pg.Name, w week) []string {
	name := WeekLeaf(table, w.from)
	return []string{
		fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING ALL)", name.Quoted(), table.Quoted()),
		CommentWeek(name, w.from),
	}
}

// CommentWeek returns the statement that says on a partition what it is.
func CommentWeek(leaf pg.Name, week string) string {
	return fmt.Sprintf("COMMENT ON TABLE %s IS '%s%s'", leaf.Quoted(), orphanComment, week)
}

const orphanComment = "pgonce dedup partition, week "

// droppedComment stands behind the week on what Maintain has begun to drop. Only such a table is dropped: one that
// was detached by hand is somebody's archive.
const droppedComment = ", being dropped"

// CommentDropped returns the statement that says on a partition that Maintain is about to detach and drop it.
func CommentDropped(leaf pg.Name, week string) string {
	return fmt.Sprintf("COMMENT ON TABLE %s IS '%s%s%s'", leaf.Quoted(), orphanComment, week, droppedComment)
}

// attachWeek makes it a partition: SHARE UPDATE EXCLUSIVE on the parent, for which no claim waits. An empty table is
// scanned in no time, and one that was detached CONCURRENTLY has a CHECK that spares the scan.
func attachWeek(table pg.Name, w week) string {
	return fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
		table.Quoted(), WeekLeaf(table, w.from).Quoted(), w.from, w.to)
}

// orphansSQL lists the tables beside $1 that were made as its partitions and are none.
var orphansSQL = pg.Pin(`
SELECT o.name, o.week::text, pg_catalog.to_char((o.week::date + 7)::timestamp, 'YYYY-MM-DD'::text), o.marked,
       (o.week::date + 7)::timestamp <= timezone('UTC', clock_timestamp() - $2::int8 * interval '1 microsecond')
  FROM (SELECT c.relname::text AS name, substring(d.comment from '[0-9]{4}-[0-9]{2}-[0-9]{2}') AS week,
               d.comment ~ ', being dropped$'::text AS marked
          FROM pg_catalog.pg_class AS c
         CROSS JOIN LATERAL (SELECT pg_catalog.obj_description(c.oid, 'pg_class'::name) AS comment) AS d
         WHERE c.relnamespace = (SELECT t.relnamespace FROM pg_catalog.pg_class AS t WHERE t.oid = $1::int8::oid)
           AND c.relkind = 'r' AND NOT c.relispartition
           AND d.comment ~ '^pgonce dedup partition, week [0-9]{4}-[0-9]{2}-[0-9]{2}(, being dropped)?$'::text) AS o
 ORDER BY o.week`)

// Orphan is a table that was made as a partition and is none: it was detached and not dropped, or never attached.
type Orphan struct {
	Name pg.Name
	Week string
	Over bool // its week lies before what is to be kept, and Maintain has detached it
	end  string
}

// Orphans lists those of the table t, whose name has a schema. keep is how long keys are kept, in microseconds.
func Orphans(ctx context.Context, conn pg.Conn, t Table, oid, keep int64) ([]Orphan, error) {
	var all []Orphan
	err := conn.Query(ctx, orphansSQL, []any{oid, keep}, func(scan func(...any) error) error {
		o := Orphan{Name: pg.Name{Schema: t.Name.Schema}}
		var marked bool
		err := scan(&o.Name.Table, &o.Week, &o.end, &marked, &o.Over)
		o.Over = o.Over && marked
		if o.Name == WeekLeaf(t.Name, o.Week) { // else another table's
			all = append(all, o)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's tables: %w", err)
	}
	return all, nil
}

// FitOrphan returns the statement that gives a table which is to be a partition again what the table has got meanwhile.
func FitOrphan(leaf pg.Name) string {
	return fmt.Sprintf("ALTER TABLE %s ADD COLUMN IF NOT EXISTS token bigint", leaf.Quoted())
}

// AttachOrphan returns the statement that makes o a partition again. [FitOrphan] comes first.
func AttachOrphan(table pg.Name, o Orphan) string {
	return fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
		table.Quoted(), o.Name.Quoted(), o.Week, o.end)
}

// Find returns the table with its schema, and its oid.
func Find(ctx context.Context, conn pg.Conn, t Table) (Table, int64, error) {
	f, err := lookUp(ctx, conn, t.Name)
	switch {
	case err != nil:
		return t, 0, err
	case f.here == nil:
		return t, 0, errors.New("there is no such table; dedup.Migrate makes it")
	case f.here.kind != "p":
		return t, 0, errors.New("it is not partitioned, which layout " + t.Layout.String() + " is")
	}
	by, _, err := partitioningOf(ctx, conn, f.here.oid)
	if err == nil && !by.weekly {
		err = errors.New("it is partitioned by " + by.definition + ", which layout " + t.Layout.String() + " is not")
	}
	t.Name = f.here.name(t.Name.Table)
	return t, f.here.oid, err
}

// Lacks reports whether MakeWeeks has something to make, and which week has the last partition.
func Lacks(ctx context.Context, conn pg.Conn, t Table, oid int64) (lacks bool, last string, err error) {
	missing, last, err := missingWeeks(ctx, conn, t, oid)
	return len(missing) > 0, last, err
}

// missingWeeks returns what is to be made: the weeks after the last partition (where there is none, the whole
// window), and those whose table is there, and was detached or never attached, and weeks to come that held no key.
// Earlier weeks are left alone: a partition that is gone may have held keys, which would run again.
func missingWeeks(
	ctx context.Context, conn pg.Conn, t Table, oid int64,
) (missing []missingWeek, last string, err error) {
	all, err := weeks(ctx, conn, t, oid, WeeksAhead)
	if err != nil {
		return nil, "", err
	}
	orphans, err := Orphans(ctx, conn, t, oid, t.Retention.Microseconds())
	if err != nil {
		return nil, "", err
	}
	last = "none"
	there := map[string]bool{}
	for _, o := range orphans {
		there[o.Week] = true
	}
	for _, w := range all {
		switch {
		case w.taken:
			last = w.from
		case w.after || w.unused || there[w.from]:
			missing = append(missing, missingWeek{w, there[w.from]})
		}
	}
	return missing, last, nil
}

type missingWeek struct {
	week
	made bool // its table is there
}

// weeksLockSQL lets one at a time make partitions, Migrate or Maintain: two that see the same week missing would both
// create its table.
var weeksLockSQL = pg.Pin(`SELECT pg_advisory_xact_lock($1::int8)`)

// weeksLockID is the first eight bytes of SHA-256("pgonce partitions"), less the sign and the room for a table's oid.
const weeksLockID int64 = 0x3ad9c4b100000000

// MakeWeeks makes the partitions that are missing, in the caller's transaction, which must be READ COMMITTED, and
// returns their names.
func MakeWeeks(ctx context.Context, tx pg.Conn, t Table, oid int64) (made []pg.Name, err error) {
	if err := tx.Send(ctx, &pg.Stmt{SQL: weeksLockSQL, Args: []any{weeksLockID + oid}}); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	missing, _, err := missingWeeks(ctx, tx, t, oid)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		if err := limitOnCitus(ctx, tx, oid); err != nil {
			return nil, err
		}
	}
	for _, w := range missing {
		var sqls []string
		if w.made {
			sqls = []string{FitOrphan(WeekLeaf(t.Name, w.from))}
		} else {
			sqls = createWeek(t.Name, w.week)
		}
		for _, sql := range append(sqls, attachWeek(t.Name, w.week)) {
			if err := tx.Send(ctx, &pg.Stmt{SQL: sql}); err != nil {
				return nil, fmt.Errorf("the partition of the week %s: %w", w.from, err)
			}
		}
		made = append(made, WeekLeaf(t.Name, w.from))
	}
	return made, nil
}

// weekly looks at what makes the primary key the whole guarantee though it holds in one bucket only, and at the
// partitions of the weeks.
func (v *verifier) weekly(
	ctx context.Context, conn pg.Conn, oid int64, by partitioning, t Table, checks []check,
) error {
	if by.hasDefault {
		v.report(defaultPart, "there is a default partition: it takes the keys of weeks that have no partition, which then "+
			"can get none",
			"-- move its keys, and drop it: ALTER TABLE %s DETACH PARTITION ...", v.table.Quoted())
	}
	v.proofs(checks)
	all, err := weeks(ctx, conn, t, oid, FewWeeks)
	if err != nil {
		return err
	}
	last := "none"
	for _, w := range all {
		fix := strings.Join(append(createWeek(v.table, w), attachWeek(v.table, w)), "; ")
		switch {
		case w.taken:
			last = w.from
		case !w.after && !w.before:
			v.report(noPartition, "the week "+w.from+
				" has no partition, though earlier and later ones have: its keys cannot be claimed; and those that were dropped "+
				"with it would run again in a new one",
				"%s", fix)
		case w.after:
			v.report(fewAhead, fmt.Sprintf("the week %s has no partition; the last one is that of %s, and from its end on "+
				"nothing can be claimed: Maintain has not run", w.from, last),
				"%s", fix)
		}
	}
	return nil
}
