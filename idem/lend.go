package idem

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/internal/pg"
)

// lender returns how connections are taken out of db; nil where db is a wrapper, whose own SendBatch must see every
// batch.
func lender(db DB) pg.Lend {
	switch db := db.(type) {
	case *pgxpool.Pool:
		return func(ctx context.Context) (pg.PgxDB, func(), error) {
			c, err := db.Acquire(ctx)
			if err != nil {
				return nil, nil, err
			}
			return c, c.Release, nil
		}
	case *pgxpool.Conn, *pgx.Conn:
		return func(context.Context) (pg.PgxDB, func(), error) { return db, func() {}, nil }
	}
	return nil
}
