package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The worker under everything that a queue does. See package idemtest.
func TestWorkerBroken(t *testing.T) {
	t.Parallel()
	k := idemtest.Kit[message]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			_, err := newWorker(ctx, db)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, message) error {
			w := worker{db.SQL(), idemsql.Once{MaxWait: 2 * time.Second}}
			return func(ctx context.Context, m message) error {
				_, err := w.handle(ctx, m)
				return err
			}
		},
		Deliveries: []message{{"msg_1", "alice", "bob", 30}, {"msg_2", "bob", "alice", 10}},
		Keys:       []func(message) idem.Key{func(m message) idem.Key { return transfers.Key(m.ID) }},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
