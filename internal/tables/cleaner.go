package tables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/internal/partition"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/retention"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/pgerr"
)

// ErrBusy: another purge of the same table is running.
var ErrBusy = retention.ErrBusy

// Stats is a dedup.Stats, field by field.
type Stats struct {
	Deleted, Skipped    int64
	Made, Dropped, Kept []string
	Took                time.Duration
}

// Ended is the end of a purge or of a maintenance, for an observer.
type Ended struct {
	Stats
	Table string
	Err   error // another one than ErrBusy
	Code  string
}

// Cleaner is a dedup.Cleaner, as its user wrote it.
type Cleaner struct {
	Table       Table
	Batch, Rest int
	Interval    time.Duration
	Tell        func(context.Context, Ended) // may be nil
}

// Check validates c and returns its table.
func (c Cleaner) Check() (schema.Table, error) {
	switch {
	case c.Batch < 0:
		return schema.Table{}, errors.New("the cleaner's batch is negative")
	case c.Interval < 0:
		return schema.Table{}, errors.New("the cleaner's interval is negative")
	}
	return c.Table.Resolve()
}

// purge is what the engine does for c.
func (c Cleaner) purge() (retention.Purge, error) {
	t, err := c.Check()
	switch {
	case err != nil:
		return retention.Purge{}, err
	case t.Layout == schema.Weekly:
		// Its rows stay for as long as the time of their event says, not that of their claim.
		return retention.Purge{}, errors.New("a table of layout Weekly is not purged; Maintain drops its partitions")
	}
	return retention.New(t.Name, t.Retention, c.Batch, c.Rest), nil
}

// PurgeSQL returns the purge as one statement, for a scheduler inside of the database.
func (c Cleaner) PurgeSQL() (string, error) {
	p, err := c.purge()
	if err != nil {
		return "", err
	}
	return retention.Block(p), nil
}

// Purge deletes the keys that have expired, in transactions of db: one of [pg.WriterPgx] or [pg.WriterSQL].
func (c Cleaner) Purge(ctx context.Context, db pg.DB) (Stats, error) {
	p, err := c.purge()
	if err != nil {
		return Stats{}, fmt.Errorf("purge: %w", err)
	}
	begun := time.Now()
	done, err := p.Run(ctx, db)
	return c.ended(ctx, "purge", p.Name, begun, Stats{Deleted: done.Rows, Skipped: done.Skipped}, err)
}

// Maintain purges the table; of layout Weekly it makes and drops partitions. db is as for Purge; conn is the same
// database, outside of a transaction.
func (c Cleaner) Maintain(ctx context.Context, conn pg.Conn, db pg.DB) (Stats, error) {
	t, err := c.Check()
	if err != nil {
		return Stats{}, fmt.Errorf("maintain: %w", err)
	}
	if t.Layout != schema.Weekly {
		return c.Purge(ctx, db)
	}
	begun := time.Now()
	done, err := partition.Run(ctx, conn, db, t)
	return c.ended(ctx, "maintain", t.Name, begun, Stats{Made: done.Made, Dropped: done.Dropped, Kept: done.Kept}, err)
}

// ended completes the answer of what, and tells it.
func (c Cleaner) ended(
	ctx context.Context, what string, name pg.Name, begun time.Time, s Stats, err error,
) (Stats, error) {
	s.Took = time.Since(begun)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", what, name, err)
	}
	if c.Tell != nil {
		e := Ended{Stats: s, Table: name.String()}
		if err != nil && !errors.Is(err, ErrBusy) {
			e.Err, e.Code = err, pgerr.Code(err)
		}
		c.Tell(ctx, e)
	}
	return s, err
}

// Count counts what Purge would delete.
func (c Cleaner) Count(ctx context.Context, conn pg.Conn) (Stats, error) {
	p, err := c.purge()
	if err != nil {
		return Stats{}, fmt.Errorf("count: %w", err)
	}
	begun := time.Now()
	found, err := p.Count(ctx, conn)
	if err != nil {
		err = fmt.Errorf("count %s: %w", p.Name, err)
	}
	return Stats{Deleted: found.Rows, Took: time.Since(begun)}, err
}

// Run calls maintain again and again until ctx ends, whose error it returns; or at once what is wrong with c.
func (c Cleaner) Run(ctx context.Context, maintain func()) error {
	if _, err := c.Check(); err != nil {
		return fmt.Errorf("cleaner: %w", err)
	}
	return retention.Every(ctx, c.Interval, maintain)
}
