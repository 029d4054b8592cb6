package idemsql

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/tables"
)

// CleanDB is what [Maintain] and [Clean] use, one connection at a time: a *sql.DB, a *sql.Conn, or a wrapper of one.
type CleanDB interface {
	Conn
	DB
}

// Maintain is [dedup.Cleaner.Maintain] over database/sql: it purges the cleaner's table once, or makes and drops the
// partitions of layout Weekly. Safe for concurrent use if db is.
func Maintain(ctx context.Context, db CleanDB, c dedup.Cleaner) (dedup.Stats, error) {
	stats, err := cleaner(c).Maintain(ctx, pg.FromSQL(db), pg.WriterSQL(db))
	if err != nil {
		err = fmt.Errorf("idemsql: %w", err)
	}
	return dedup.Stats(stats), err
}

// Clean is [dedup.Cleaner.Run] over database/sql: it maintains the cleaner's table again and again until ctx ends, and
// returns ctx's error; or at once an error that says what is wrong with c. It may run in every process.
func Clean(ctx context.Context, db CleanDB, c dedup.Cleaner) error {
	err := cleaner(c).Run(ctx, func() {
		stats, err := Maintain(ctx, db, c)
		if c.Done != nil {
			c.Done(ctx, stats, err)
		}
	})
	if err == ctx.Err() {
		return err
	}
	return fmt.Errorf("idemsql: %w", err)
}

// cleaner returns c for the engine.
func cleaner(c dedup.Cleaner) tables.Cleaner {
	e := tables.Cleaner{Table: below([]dedup.Table{c.Table})[0], Batch: c.Batch, Rest: c.Rest, Interval: c.Interval}
	if c.Observer != nil {
		e.Tell = func(ctx context.Context, ended tables.Ended) { c.Observer.Observe(ctx, purged(ended)) }
	}
	return e
}

func purged(ended tables.Ended) dedup.Event {
	e := dedup.Event{Table: ended.Table, Outcome: dedup.Purged, Code: ended.Code, Rows: ended.Deleted, Held: ended.Took}
	if ended.Err != nil {
		e.Outcome, e.Err = dedup.PurgeFailed, fmt.Errorf("idemsql: %w", ended.Err)
	}
	return e
}
