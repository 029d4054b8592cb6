package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The handler under everything that a broker does. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	t.Parallel()
	k := idemtest.Kit[Event]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, schema)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, Event) error {
			pool := db.Pool()
			return func(ctx context.Context, e Event) error {
				_, err := apply(ctx, pool, e)
				return err
			}
		},
		Deliveries: []Event{
			{"evt_1", 1000, "sub_1", "incomplete", "basic"},
			{"evt_2", 1000, "sub_1", "active", "basic"}, // within the same second
			{"evt_3", 1005, "sub_1", "past_due", "pro"},
			{"evt_4", 1009, "sub_1", "canceled", "pro"},
			{"evt_5", 1009, "sub_2", "active", "basic"},
		},
		Ignore:      []string{"stripeorder_subscriptions.created_at"}, // of the event that arrived first
		Constraints: []string{"stripeorder_subscriptions_pkey"},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
