package idemsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/partition"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/retention"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/pgerr"
)

// CleanDB is what [Maintain] and [Clean] need: a *sql.DB, a *sql.Conn, or a wrapper of one. They use one connection at a time.
type CleanDB interface {
	Conn
	DB
}

// Maintain is [dedup.Cleaner.Maintain] over database/sql: it purges the cleaner's table once, or makes and drops its partitions
// where its layout is Weekly. Several at once, and one that ends early, do no harm; of several purges one works, and the others
// return [dedup.ErrBusy]. Stats come with every error. Safe for concurrent use where db is.
func Maintain(ctx context.Context, db CleanDB, c dedup.Cleaner) (dedup.Stats, error) {
	if err := c.Validate(); err != nil {
		return dedup.Stats{}, fmt.Errorf("idemsql: maintain: %w", err)
	}
	all, err := resolve([]dedup.Table{c.Table})
	if err != nil {
		return dedup.Stats{}, fmt.Errorf("idemsql: maintain: %w", err)
	}
	t, begun := all[0], time.Now()
	txs := pg.FromSQLDB(db, sql.TxOptions{Isolation: sql.LevelReadCommitted})
	var stats dedup.Stats
	if t.Layout == schema.Weekly {
		var done partition.Stats
		done, err = partition.Run(ctx, pg.FromSQL(db), txs, t)
		stats = dedup.Stats{Made: done.Made, Dropped: done.Dropped, Kept: done.Kept}
	} else {
		var done retention.Stats
		done, err = retention.New(t.Name, t.Retention, c.Batch, c.Rest).Run(ctx, txs)
		stats = dedup.Stats{Deleted: done.Rows, Skipped: done.Skipped}
	}
	stats.Took = time.Since(begun)
	e := dedup.Event{Table: t.Name.String(), What: dedup.Purged, Rows: stats.Deleted, Held: stats.Took}
	if err != nil {
		if !errors.Is(err, dedup.ErrBusy) {
			e.What, e.Code = dedup.PurgeFailed, pgerr.Code(err)
		}
		err = fmt.Errorf("idemsql: maintain %s: %w", t.Name, err)
	}
	if c.Observer != nil {
		c.Observer.Observe(ctx, e)
	}
	return stats, err
}

// Clean is [dedup.Cleaner.Run] over database/sql: it maintains the cleaner's table again and again, at times that are random,
// until ctx ends, whose error it returns; or at once an error that says what is wrong with c. It may run in every process.
func Clean(ctx context.Context, db CleanDB, c dedup.Cleaner) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("idemsql: clean: %w", err)
	}
	return retention.Every(ctx, c.Interval, func() {
		stats, err := Maintain(ctx, db, c)
		if c.Done != nil {
			c.Done(ctx, stats, err)
		}
	})
}
