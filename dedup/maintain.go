package dedup

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

// Maintain keeps the table in order: it is to be run from time to time, once a day at least, by one process or by several. Of
// [Plain] and [Hash] it purges what has expired, as [Table.Purge] does. Of [Weekly]
//
//   - it makes the partitions of 8 weeks to come. Where that fails, the error names the last week that has one;
//   - it drops the partitions that have expired, a day after their last key has: Retention and a day after the end of
//     their week, by the database's clock. One that holds a key which is not done (reserved, unfinished) is kept,
//     named in Stats, and looked at again the next time. So is one that it has not made itself: of another name, as
//     one made by hand has, or those from before the table was renamed or moved to another schema. Rename those, or
//     drop them yourself. A partition that you detached by hand after it had expired is yours: it is never dropped;
//   - it mends what a run that was killed has left half done.
//
// No claim waits for it: it takes no lock on the table that a claim would conflict with, and DETACH ... CONCURRENTLY waits
// for the transactions that are running, all of them, and holds nobody up meanwhile. So it takes as long as the longest of
// those: give it a ctx that ends; a statement_timeout ends it, too, and the next run goes on from there. A week that has lost
// its partition otherwise than by Maintain is not made again, for its keys would run again, unless it is still to come;
// [Verify] reports it.
//
// Without Maintain nothing is dropped, and when the last partition is full, after 8 weeks, claims fail with an error that
// names the table. Verify reports it 4 weeks before that.
//
// It must be run by the owner of the table, on connections to the server itself or through a pooler. It owns its
// transactions, and uses one connection at a time. Stats come with every error, and say what had been done. Safe for
// concurrent use where db is.
func (t Table) Maintain(ctx context.Context, db DB) (Stats, error) {
	return Cleaner{Table: t}.Maintain(ctx, db)
}

// Maintain is [Table.Maintain] with the settings of c.
func (c Cleaner) Maintain(ctx context.Context, db DB) (Stats, error) {
	return answered(c.below().Maintain(ctx, pg.FromPgx(db), pg.WriterPgx(db)))
}
