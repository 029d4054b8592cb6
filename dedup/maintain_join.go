package dedup

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// JOIN: this file goes when Purge is there. DB and Stats are those of Purge, whose Stats gets the fields Made, Dropped and
// Kept; and Maintain calls t.Purge(ctx, db) instead of purge.

// DB is what [Table.Maintain] needs: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, or a wrapper of one. It uses one
// connection at a time.
type DB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Stats is what [Table.Maintain] has done.
type Stats struct {
	// Of layout Weekly: the partitions that were made (or attached again), dropped, and kept though they have expired, because
	// they hold keys that are not done.
	Made, Dropped, Kept []string

	Took time.Duration
}

func purge(context.Context, Table, DB) (Stats, error) {
	return Stats{}, errors.New("dedup: maintain: purging is not part of this build")
}
