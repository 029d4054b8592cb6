package dedup

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/tables"
)

// ErrBusy: another purge of the same table is running, in this process or another, and does the work.
var ErrBusy = tables.ErrBusy

// DB begins the transactions of [Migrate] and of a purge: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, or a wrapper
// of one. They use one connection at a time. With database/sql see idemsql.Maintain and idemsql.Clean.
type DB interface {
	Querier
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Stats is what a purge or [Table.Maintain] has done.
type Stats struct {
	Deleted int64 // keys deleted, or to be deleted where it was only counted; what is surely committed
	Skipped int64 // batches left to the next purge, for somebody had locked one of their rows

	// Of layout Weekly: the partitions that were made (or attached again), dropped, and kept though expired, for they
	// hold keys that are not done, or are not Maintain's own.
	Made, Dropped, Kept []string

	Took time.Duration
}

// Purge deletes the keys that are done and have expired. It is [Cleaner.Purge] with the defaults of a [Cleaner].
func (t Table) Purge(ctx context.Context, db DB) (Stats, error) {
	return Cleaner{Table: t}.Purge(ctx, db)
}

// PurgeSQL returns a purge as one statement, for a scheduler in the database. It deletes what [Table.Purge] deletes, in
// batches of eight pages (about 500 rows), with a COMMIT and a rest after each. It ends at once where another purge of
// the table is running. With pg_cron:
//
//	SELECT cron.schedule('purge processed_events', '17 * * * *', $job$ ... $job$)
//
// with the statement in place of the dots. Run it by itself: inside a transaction it fails with 2D000. A
// statement_timeout of its role must be longer than the whole purge, which starts over each time. The retention is
// written into it, so schedule it anew when that changes. PurgeSQL panics where [Table.Validate] returns an error, and
// for layout [Weekly].
func (t Table) PurgeSQL() string {
	sql, err := tables.Cleaner{Table: t.below()}.PurgeSQL()
	if err != nil {
		panic("dedup: Table.PurgeSQL: " + err.Error())
	}
	return sql
}

// Cleaner purges or maintains a table, once or again and again. Its zero value works on the zero [Table]. It is a plain
// value, safe for concurrent use.
type Cleaner struct {
	Table Table

	// Batch is how many keys one transaction deletes at most; a claim of one of them waits for it. 0 means 500, which
	// takes a few milliseconds. A page of the table is never split (about 70 keys; of each partition).
	Batch int

	// Rest is how long to rest between batches, as a multiple of the last batch's time, and at most a second. 0 means
	// 4: the purge works a fifth of the time. Negative means no rest. A session rests inside a transaction that has
	// done nothing yet, so set idle_in_transaction_session_timeout to more than a second.
	Rest int

	// Interval is the time from the end of one round of Run to the beginning of the next, give or take a tenth. 0 means
	// an hour.
	Interval time.Duration

	// Observer, if not nil, is told of every purge and maintenance, as [Purged] or [PurgeFailed].
	Observer Observer

	// Done, if not nil, gets what Maintain returned, from Run, each time: the whole error and, of Weekly, the names of
	// the partitions that were kept. An err that is [ErrBusy] is no failure. Run waits for Done. ctx is Run's.
	Done func(ctx context.Context, s Stats, err error)
}

// Validate reports whether c can be a cleaner, without looking at a database.
func (c Cleaner) Validate() error {
	if _, err := c.below().Check(); err != nil {
		return fmt.Errorf("dedup: %w", err)
	}
	return nil
}

// below returns c for the engine.
func (c Cleaner) below() tables.Cleaner {
	e := tables.Cleaner{Table: c.Table.below(), Batch: c.Batch, Rest: c.Rest, Interval: c.Interval}
	if c.Observer != nil {
		e.Tell = func(ctx context.Context, ended tables.Ended) { c.Observer.Observe(ctx, purged(ended)) }
	}
	return e
}

func purged(ended tables.Ended) Event {
	e := Event{Table: ended.Table, Outcome: Purged, Code: ended.Code, Rows: ended.Deleted, Held: ended.Took}
	if ended.Err != nil {
		e.Outcome, e.Err = PurgeFailed, fmt.Errorf("dedup: %w", ended.Err)
	}
	return e
}

// answered gives an answer of the engine its type, and an error its prefix.
func answered(s tables.Stats, err error) (Stats, error) {
	if err != nil {
		err = fmt.Errorf("dedup: %w", err)
	}
	return Stats(s), err
}

// Purge deletes the expired keys, once: those claimed more than Retention ago, by the database's clock, and a hundredth
// of that (at most a day). What is not done (reserved, unfinished, with an unknown result) stays for ever. It reads the
// whole table, needs no index, and deletes in transactions of at most Batch keys with a rest between them. See
// internal/RUNS.md for 10 million keys.
//
//   - A claim of a key that is just being deleted waits for that batch. If it commits, the claim is Executed; if it is
//     rolled back, a Duplicate. Other claims do not wait.
//   - A row that somebody has locked is waited for 100 ms at most; then the next purge gets its batch.
//   - Of several purges of one table one works, and the others return [ErrBusy].
//   - When ctx ends, the connection is lost, or the process dies, only what was committed is gone, and the next purge
//     goes on. Stats say what had been done, without a COMMIT that was not answered.
//
// Purge owns its transactions, at READ COMMITTED, and holds one connection. It needs SELECT and DELETE on the table,
// and works behind PgBouncer in transaction mode. Any error but ErrBusy and ctx's is the server's, or the connection's.
func (c Cleaner) Purge(ctx context.Context, db DB) (Stats, error) {
	return answered(c.below().Purge(ctx, pg.WriterPgx(db)))
}

// Count counts the keys that Purge would delete now. It reads the whole table, and takes no lock that anybody could
// wait for.
func (c Cleaner) Count(ctx context.Context, db Querier) (Stats, error) {
	return answered(c.below().Count(ctx, pg.FromPgx(db)))
}

// Run calls [Table.Maintain] until ctx ends: first within a minute (within Interval, if shorter), then every Interval.
// It may run in every process of a service: the times are random, and of several that meet one works. Failures go to
// Observer and Done, and are tried again at the next time; without either nobody hears of them.
//
// Run returns ctx's error, or at once one that says what is wrong with c.
func (c Cleaner) Run(ctx context.Context, db DB) error {
	err := c.below().Run(ctx, func() {
		stats, err := c.Maintain(ctx, db)
		if c.Done != nil {
			c.Done(ctx, stats, err)
		}
	})
	if err == ctx.Err() {
		return err
	}
	return fmt.Errorf("dedup: %w", err)
}
