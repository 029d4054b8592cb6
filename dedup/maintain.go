package dedup

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

// Maintain keeps the table in order. Run it at least once a day, in one process or in several. Of [Plain] and [Hash] it
// purges, as [Table.Purge] does. Of [Weekly] it makes the partitions of 8 weeks to come, and fixes what a killed run
// left half done. If it cannot make one, the error names the last week that has one. It drops partitions whose keys
// have expired: Retention and a day after the end of their week, by the database's clock. Some it keeps, and names in
// Stats:
//
//   - one that holds a key which is not done (reserved, unfinished), until the next time;
//   - one that it has not made: by hand, or from before the table was renamed or moved. Rename or drop it yourself.
//
// It never drops a partition that you detached by hand after it expired. It does not make a week again that lost its
// partition otherwise, unless it is still to come, for its keys would run again; [Verify] reports it.
//
// No claim waits for it. DETACH ... CONCURRENTLY waits for all running transactions, so give it a ctx that ends; a
// statement_timeout ends it, too, and the next run goes on from there. Without Maintain claims fail after 8 weeks, with
// an error that names the table. Verify reports it 4 weeks before.
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
