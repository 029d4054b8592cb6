package dedup

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

// Maintain keeps the table in order. Run it at least once a day, in one process or in several. Of [Plain] and [Hash] it
// purges what has expired, as [Table.Purge] does. Of [Weekly]
//
//   - it makes the partitions of 8 weeks to come. If that fails, the error names the last week that has one;
//   - it drops the partitions that have expired: Retention and a day after the end of their week, by the database's
//     clock;
//   - it keeps an expired partition that holds a key which is not done (reserved, unfinished), names it in Stats, and
//     looks again next time;
//   - it keeps one that it has not made itself, too: one made by hand, or one from before the table was renamed or
//     moved. Rename those, or drop them yourself. A partition that you detached by hand after it expired is never
//     dropped;
//   - it fixes what a run that was killed has left half done.
//
// No claim waits for it. DETACH ... CONCURRENTLY waits for all running transactions, so give it a ctx that ends; a
// statement_timeout ends it, too, and the next run goes on from there. A week that lost its partition otherwise is not
// made again unless it is still to come, for its keys would run again; [Verify] reports it.
//
// Without Maintain nothing is dropped, and after 8 weeks claims fail with an error that names the table. Verify reports
// it 4 weeks before.
//
// Run it as the table's owner, on connections to the server or through a pooler. It owns its transactions, and uses one
// connection at a time. Stats come with every error, and say what had been done. Safe for concurrent use if db is.
func (t Table) Maintain(ctx context.Context, db DB) (Stats, error) {
	return Cleaner{Table: t}.Maintain(ctx, db)
}

// Maintain is [Table.Maintain] with the settings of c.
func (c Cleaner) Maintain(ctx context.Context, db DB) (Stats, error) {
	return answered(c.below().Maintain(ctx, pg.FromPgx(db), pg.WriterPgx(db)))
}
