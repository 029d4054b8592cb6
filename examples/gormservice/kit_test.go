package main

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The consumer under everything that a queue does. See package idemtest.
func TestConsumerBroken(t *testing.T) {
	t.Parallel()
	open := func(db *sql.DB) (*gorm.DB, error) {
		return gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{Logger: logger.Discard})
	}
	k := idemtest.Kit[message]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			g, err := open(db)
			if err != nil {
				return err
			}
			_, err = newConsumer(ctx, g)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, message) error {
			g, err := open(db.SQL())
			c := consumer{g, idemsql.Once{MaxWait: 2 * time.Second}}
			return func(ctx context.Context, m message) error {
				if err != nil {
					return err
				}
				_, err := c.handle(ctx, m)
				return err
			}
		},
		Deliveries: []message{{"msg_1", "lamp"}, {"msg_2", "lamp"}},
		Keys:       []func(message) idem.Key{func(m message) idem.Key { return orders.Key(m.ID) }},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
