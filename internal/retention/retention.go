// Package retention deletes the keys that are older than their table keeps them, over either driver. It goes through
// the table in the order in which it lies on disk, a range of pages at a time, so that it needs no index: a claim
// pays for the primary key alone. The front doors are dedup (pgx) and idemsql.
package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// What ends a purge before the end of the table.
var (
	ErrBusy    = errors.New("another purge of this table is running")
	errMissing = errors.New("there is no such table; dedup.Migrate makes it")
	errWeekly  = errors.New("the table is partitioned by range, as those of layout Weekly are: it is not purged, and " +
		"Maintain with that layout drops its partitions")
)

const (
	firstSpan = 8    // pages
	maxSpan   = 1024 // pages: 8 MB, read without a lock on any row

	// longestRest bounds a rest after a batch that was slow for reasons of its own.
	longestRest = time.Second
)

// Grace is how much longer than its retention a row stays. A key with a time of its own is refused once that time lies
// before the window, by the time and not by the row: the row must not go before.
func Grace(retention time.Duration) time.Duration { return min(retention/100, 24*time.Hour) }

// Keep is how long a row stays, by its age: Retention and Grace, or the longest time there is. A retention of
// math.MaxInt64, for ever, must not overflow into one that has passed.
func Keep(retention time.Duration) time.Duration {
	return retention + min(Grace(retention), math.MaxInt64-retention)
}

// Skew is how far ahead of the database's clock the time of a key may lie. The row of such a key is as old as its
// claim, however old the transaction is; the other half of Grace is to spare.
func Skew(retention time.Duration) time.Duration { return Grace(retention) / 2 }

// Purge is one purge of one table.
type Purge struct {
	Name  pg.Name
	Keep  time.Duration // rows claimed less long ago stay, by the database's clock
	Batch int           // rows that one transaction deletes at the most
	Rest  int           // between two batches: so many times as long as the batch took
}

// Defaults of a purge, and of the time between two.
const (
	defaultBatch    = 500
	defaultRest     = 4
	defaultInterval = time.Hour
)

// New returns the purge of a table; 0 is the default of batch and rest.
func New(name pg.Name, retention time.Duration, batch, rest int) Purge {
	return Purge{Name: name, Keep: Keep(retention), Batch: cmp.Or(batch, defaultBatch), Rest: cmp.Or(rest, defaultRest)}
}

// Every calls clean until ctx ends, whose error it returns: for the first time within a minute, or within interval
// where that is shorter, then an interval (0: an hour) after it has returned, give or take a tenth.
func Every(ctx context.Context, interval time.Duration, clean func()) error {
	interval = min(cmp.Or(interval, defaultInterval), math.MaxInt64/2) // the tenth that is added must not overflow
	t := time.NewTimer(rand.N(min(interval, time.Minute)))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		clean()
		t.Reset(interval - interval/10 + rand.N(interval/5+1))
	}
}

// Stats is what a purge has done, or would do.
type Stats struct {
	Rows    int64 // deleted, or to be deleted; only what is surely committed
	Skipped int64 // batches that met a row which somebody else had locked; the next purge takes them
}

// Run deletes what has expired. It can be ended at any point, and run again. At any moment one runs on a table: the
// others get ErrBusy, also where they took turns with it. Stats come with every error.
func (p Purge) Run(ctx context.Context, db pg.DB) (Stats, error) {
	r := run{Purge: p, db: db}
	err := r.run(ctx)
	return r.stats, err
}

type run struct {
	Purge
	db    pg.DB
	sql   statements
	stats Stats

	extent
	took time.Duration // the last batch
}

// run goes from the first page to what was the last one when it began: what is added meanwhile is new.
//
// Why not ORDER BY processed_at LIMIT n: it needs an index, for which every claim would pay. Why not the same without
// an index, or by a BRIN: under an old snapshot, or after a few cycles of purge and refill, each batch reads the
// table again.
func (r *run) run(ctx context.Context) error {
	r.sql = render(r.Name)
	tx, err := r.db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("find the table: %w", err)
	}
	r.extent, err = r.measure(ctx, tx)
	_ = tx.Rollback(ctx)
	if err != nil {
		return err
	}
	longest := max(maxSpan/r.parts, 1)
	span := min(firstSpan, longest)
	for from := int64(0); from < r.pages; {
		to := min(from+span, r.pages)
		n, err := r.batch(ctx, from, to)
		switch {
		case errors.Is(err, errTooMany):
			span = max((to-from)*int64(r.Batch)/n, 1)
			continue
		case pgerr.Is(err, "55P03"), pgerr.Is(err, "40P01"):
			r.stats.Skipped++
		case err != nil:
			return fmt.Errorf("pages %d to %d: %w", from, to, err)
		default:
			r.stats.Rows += n
			if n <= int64(r.Batch)/2 {
				span = min(span*2, longest)
			}
		}
		from = to
	}
	return nil
}

// extent is what measure finds.
type extent struct {
	oid, pages, parts int64 // pages of the largest part; parts: with the table itself
	spread            bool  // over the nodes of Citus
}

// measure finds the table, and how large it is.
func (p Purge) measure(ctx context.Context, conn pg.Conn) (e extent, err error) {
	var byRange, citus bool
	find := &pg.Stmt{SQL: findSQL, Args: []any{p.Name.Quoted()}, Dest: []any{&e.oid, &e.pages, &e.parts, &byRange, &citus}}
	switch err := conn.Send(ctx, find); {
	case err != nil:
		return e, fmt.Errorf("find the table: %w", err)
	case find.Rows == 0:
		return e, errMissing
	case byRange:
		return e, errWeekly
	case !citus:
		return e, nil
	}
	var shards, pages int64
	if err := conn.Send(ctx, &pg.Stmt{SQL: shardsSQL, Args: []any{e.oid}, Dest: []any{&shards, &pages}}); err != nil {
		return e, fmt.Errorf("find the table's shards: %w", err)
	}
	if shards > 0 {
		e.spread, e.pages, e.parts = true, pages, shards
	}
	return e, nil
}

// errTooMany says that a range holds more than a batch may delete.
var errTooMany = errors.New("too many rows for one batch")

// batch deletes what has expired between two pages, in a transaction of its own, and says how many rows; with
// errTooMany, how many there are.
//
// The lock that keeps other purges away lasts as long as the transaction, for behind a pooler the next one may be on
// another connection. So that they stay away during the rest, too, the rest is taken inside, before anything is read or
// deleted: a transaction that waits so holds no row, and no snapshot that would keep VACUUM from its work.
func (r *run) batch(ctx context.Context, from, to int64) (n int64, err error) {
	var free bool
	lock := &pg.Stmt{SQL: lockSQL, Args: []any{lockClass, r.oid}, Dest: []any{&free}}
	stmts := []*pg.Stmt{lock, {SQL: giveWaySQL}}
	if r.spread {
		stmts = []*pg.Stmt{lock, {SQL: everywhereSQL}, {SQL: giveWaySQL}}
	}
	tx, err := r.db.Begin(ctx, stmts...)
	if err != nil {
		return 0, err
	}
	done := false
	defer func() {
		if !done {
			_ = tx.Rollback(ctx)
		}
	}()
	if !free {
		return 0, ErrBusy
	}
	if err := r.rest(ctx); err != nil {
		return 0, err
	}
	begun := time.Now()
	defer func() { r.took = time.Since(begun) }()
	args := []any{tid(from), tid(to), r.Keep.Microseconds()}
	count := &pg.Stmt{SQL: r.sql.count, Args: args, Dest: []any{&n}}
	if err := tx.Send(ctx, count); err != nil {
		return 0, err
	}
	if n > int64(r.Batch) && to-from > 1 {
		return n, errTooMany
	}
	if n == 0 {
		return 0, nil
	}
	var attempt int64
	del := &pg.Stmt{SQL: r.sql.delete, Args: args, Dest: []any{&attempt}}
	if err := tx.Send(ctx, del); err != nil {
		return 0, err
	}
	done = true
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	return del.Rows, nil
}

// rest waits between two batches. Whatever else the server does then has the disk to itself.
func (r *run) rest(ctx context.Context) error {
	d := min(r.took*time.Duration(max(r.Rest, 0)), longestRest)
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// tid returns the place before the first row of a page.
func tid(page int64) string { return fmt.Sprintf("(%d,0)", page) }

// Count counts what Run would delete. It reads the whole table, takes no lock and keeps nobody from anything.
func (p Purge) Count(ctx context.Context, conn pg.Conn) (Stats, error) {
	e, err := p.measure(ctx, conn)
	if err != nil {
		return Stats{}, err
	}
	// A range at a time, so that no snapshot is held for as long as it takes to read everything.
	var s Stats
	sql, span := render(p.Name), max(maxSpan/e.parts, 1)
	for from := int64(0); from < e.pages; from += span {
		var n int64
		count := &pg.Stmt{SQL: sql.count, Args: []any{tid(from), tid(from + span), p.Keep.Microseconds()}, Dest: []any{&n}}
		if err := conn.Send(ctx, count); err != nil {
			return s, fmt.Errorf("page %d: %w", from, err)
		}
		s.Rows += n
	}
	return s, nil
}
