// Package partition keeps the partitions of a table of layout Weekly: it makes those of the weeks to come, drops
// those that have expired, and mends what a run that was killed has left half done.
//
// Nothing in it takes a lock that a claim would wait for, except for moments on catalogs. It keeps no state of its own:
// every step looks at the catalog, does one thing, and looks again. So several runs at once do no harm, and a run can
// end anywhere.
package partition

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/pgerr"
)

// Grace is how long a partition stays after its last key has expired: a transaction that has been open for a while may
// have found its key inside of the window.
const Grace = 24 * time.Hour

const (
	tries     = 20 // of a step that another run, or a lock, has come in the way of
	makeTries = 5
	lockWait  = "1s"
	pauseUpTo = 200 * time.Millisecond
)

// Stats is what a run has done.
type Stats struct {
	Made    []string // partitions made, or attached again
	Dropped []string // partitions dropped
	Kept    []string // expired partitions that hold rows which are not done, or are not of Run's making
}

// Run maintains the table.
func Run(ctx context.Context, conn pg.Conn, db pg.DB, t schema.Table) (Stats, error) {
	r := run{conn: conn, db: db, t: t, kept: map[pg.Name]bool{}}
	var err error
	if r.t, r.oid, err = schema.Find(ctx, conn, t); err != nil {
		return r.stats, err
	}
	// First the weeks to come: claims depend on them.
	if err := r.make(ctx); err != nil {
		return r.stats, err
	}
	return r.stats, r.drop(ctx)
}

type run struct {
	conn  pg.Conn
	db    pg.DB
	t     schema.Table
	oid   int64
	kept  map[pg.Name]bool
	stats Stats
	citus *bool // the table is one of Citus; nil: not asked yet
}

// make makes the partitions that are missing, all in one transaction.
func (r *run) make(ctx context.Context) error {
	for try := 1; ; try++ {
		lacks, last, err := schema.Lacks(ctx, r.conn, r.t, r.oid)
		if passing(err) && try < makeTries && pause(ctx) {
			continue
		}
		if err != nil || !lacks {
			return err
		}
		made, err := r.makeOnce(ctx)
		if err == nil {
			r.note(&r.stats.Made, made...)
			return nil
		}
		if !passing(err) || try >= makeTries || !pause(ctx) {
			return fmt.Errorf("the partitions end with the week of %s, and no more could be made: %w", last, err)
		}
	}
}

// makeOnce makes them once. Every wait for a lock is bounded: a transaction that waits keeps what it has locked
// already.
func (r *run) makeOnce(ctx context.Context) ([]pg.Name, error) {
	tx, err := r.db.Begin(ctx, &pg.Stmt{SQL: "SET LOCAL lock_timeout = '" + lockWait + "'"})
	if err != nil {
		return nil, err
	}
	made, err := schema.MakeWeeks(ctx, tx, r.t, r.oid)
	if err != nil {
		_ = tx.Rollback(ctx)
		return nil, err
	}
	return made, tx.Commit(ctx)
}

// expiredSQL lists the partitions whose weeks lie before now less $2 microseconds, and those that are half detached.
var expiredSQL = pg.Pin(`
SELECT nspname::text, relname::text, pending, coalesce(to_char(low, 'YYYY-MM-DD'), '')
  FROM (` + schema.RangesSQL + `) AS parts
 WHERE pending OR high <= (clock_timestamp() - $2::int8 * interval '1 microsecond') AT TIME ZONE 'UTC'
 ORDER BY low`)

type part struct {
	name    pg.Name
	pending bool
	week    string // with which it begins
}

// drop takes one step after the other until there is nothing left to do.
func (r *run) drop(ctx context.Context) error {
	keep := (r.t.Retention + min(Grace, math.MaxInt64-r.t.Retention)).Microseconds() // "for ever" must not overflow
	for failed := 0; ; {
		// A step, and a look into a partition before it, can be the victim of a deadlock; see finalize.
		step, err := r.next(ctx, keep)
		if err == nil && step == nil {
			return nil
		}
		if err == nil {
			err = step(ctx)
		}
		if err == nil {
			continue
		}
		// Another run was at the same step, or a lock was not had in time: what has come of it, the catalog says.
		if failed++; !passing(err) || failed >= tries || !pause(ctx) {
			return err
		}
	}
}

// next returns the next step; nil: there is none.
func (r *run) next(ctx context.Context, keep int64) (func(context.Context) error, error) {
	var parts []part
	err := r.conn.Query(ctx, expiredSQL, []any{r.oid, keep}, func(scan func(...any) error) error {
		var p part
		err := scan(&p.name.Schema, &p.name.Table, &p.pending, &p.week)
		parts = append(parts, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog's partitions: %w", err)
	}
	orphans, err := schema.Orphans(ctx, r.conn, r.t, r.oid, keep)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.pending {
			return func(ctx context.Context) error { return r.finalize(ctx, p.name) }, nil
		}
	}
	for _, o := range orphans {
		if o.Over {
			return func(ctx context.Context) error { return r.dropOrphan(ctx, o) }, nil
		}
	}
	for _, p := range parts {
		if !r.kept[p.name] {
			return func(ctx context.Context) error { return r.detach(ctx, p) }, nil
		}
	}
	return nil, nil
}

// finalize ends the detaching that another run began. That one may be at it still; then one of the two fails. It holds
// the locks of the table's DDL and of the partition, and waits for every older snapshot. Who has such a snapshot and
// waits for one of those locks is in a deadlock with it: another run at a step, or a reader of the partition. So the
// looks at the catalog lock no partition.
func (r *run) finalize(ctx context.Context, p pg.Name) error {
	return r.send(ctx, "finalize "+p.String(),
		"ALTER TABLE "+r.t.Name.Quoted()+" DETACH PARTITION "+p.Quoted()+" FINALIZE")
}

// detach makes an expired partition a table of its own, unless it holds what is not done, or has not the name that a
// run would give it: of such a one nobody would know afterwards what it was. By its comment the next step knows it.
//
// Why not DROP TABLE at once, or a plain DETACH: both take ACCESS EXCLUSIVE on the parent. They wait for every
// transaction that has claimed, and every claim for them. CONCURRENTLY waits for the same transactions, and holds
// nobody up.
func (r *run) detach(ctx context.Context, p part) error {
	keep := p.name != schema.WeekLeaf(r.t.Name, p.week)
	if !keep {
		open, err := undone(ctx, r.conn, p.name)
		if err != nil {
			return err
		}
		keep = open
	}
	if keep {
		r.kept[p.name] = true
		r.note(&r.stats.Kept, p.name)
		return nil
	}
	comment := schema.CommentDropped(p.name, p.week)
	switch citus, err := r.onCitus(ctx); {
	case err != nil:
		return err
	case citus:
		return r.detachPlain(ctx, p, comment)
	}
	if err := r.send(ctx, "comment on "+p.name.String(), comment); err != nil {
		return err
	}
	return r.send(ctx, "detach "+p.name.String(),
		"ALTER TABLE "+r.t.Name.Quoted()+" DETACH PARTITION "+p.name.Quoted()+" CONCURRENTLY")
}

// dropOrphan drops what was detached. Nobody can reach it through the table any more, and its lock keeps other runs
// from making it a partition again, so that this look is the last word; should it hold something that is not done, it
// becomes a partition again.
func (r *run) dropOrphan(ctx context.Context, o schema.Orphan) error {
	attached, open, err := r.dropUnlessOpen(ctx, o.Name)
	switch {
	case err != nil:
		return fmt.Errorf("drop %s: %w", o.Name, err)
	case attached:
		return nil // the next look sees it among the partitions
	case open:
		r.kept[o.Name] = true
		r.note(&r.stats.Kept, o.Name)
		return r.attach(ctx, o)
	}
	r.note(&r.stats.Dropped, o.Name)
	return nil
}

// attach makes o a partition again, and takes the mark away in the same transaction: who detaches it by hand later
// keeps it.
func (r *run) attach(ctx context.Context, o schema.Orphan) error {
	fit, attach := &pg.Stmt{SQL: schema.FitOrphan(o.Name)}, &pg.Stmt{SQL: schema.AttachOrphan(r.t.Name, o)}
	tx, err := r.db.Begin(ctx, fit, attach)
	if err == nil {
		if err = tx.Send(ctx, &pg.Stmt{SQL: schema.CommentWeek(o.Name, o.Week)}); err != nil {
			_ = tx.Rollback(ctx)
		} else {
			err = tx.Commit(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", o.Name, err)
	}
	return nil
}

// attachedSQL tells whether another run has made a table a partition again. To drop it then would lock the parent.
var attachedSQL = pg.Pin(`SELECT relispartition FROM pg_catalog.pg_class WHERE oid = to_regclass($1::text)`)

func (r *run) dropUnlessOpen(ctx context.Context, name pg.Name) (attached, open bool, err error) {
	tx, err := r.db.Begin(ctx, &pg.Stmt{SQL: "LOCK TABLE " + name.Quoted() + " IN ACCESS EXCLUSIVE MODE"})
	if err != nil {
		return false, false, err
	}
	err = tx.Send(ctx, &pg.Stmt{SQL: attachedSQL, Args: []any{name.Quoted()}, Dest: []any{&attached}})
	if err == nil && !attached {
		open, err = undone(ctx, tx, name)
	}
	if err != nil || attached || open {
		_ = tx.Rollback(ctx)
		return attached, open, err
	}
	if err := tx.Send(ctx, &pg.Stmt{SQL: "DROP TABLE " + name.Quoted()}); err != nil {
		_ = tx.Rollback(ctx)
		return false, false, err
	}
	return false, false, tx.Commit(ctx)
}

// undone reports whether a table holds rows that are not done. It reads all of it.
func undone(ctx context.Context, conn pg.Conn, name pg.Name) (open bool, err error) {
	sql := "SELECT EXISTS (SELECT 1 FROM " + name.Quoted() + " WHERE lease_until IS NOT NULL)" // Citus refuses no column
	if err := conn.Send(ctx, &pg.Stmt{SQL: sql, Dest: []any{&open}}); err != nil {
		return false, fmt.Errorf("look into %s: %w", name, err)
	}
	return open, nil
}

func (r *run) send(ctx context.Context, what, sql string) error {
	if err := r.conn.Send(ctx, &pg.Stmt{SQL: sql}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (r *run) note(list *[]string, names ...pg.Name) {
	for _, n := range names {
		*list = append(*list, n.String())
	}
}

// passing reports whether another look may find a way. Somebody else did the same step: the table is gone, is there
// already (for two that create it at one moment as 23505 of the catalog), is no partition any more, is one already,
// or pending; both wrote one row of the catalog (XX000). Or a lock was not had in time, or was a deadlock.
func passing(err error) bool {
	switch pgerr.Code(err) {
	case "42P01", "42P07", "42710", "55000", "42809", "42P17", "55P03", "55006", "40P01", "40001", "XX000", "23505":
		return true
	}
	return false
}

// pause waits for a moment; it reports false when ctx ends first.
func pause(ctx context.Context) bool {
	t := time.NewTimer(rand.N(pauseUpTo) + time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
