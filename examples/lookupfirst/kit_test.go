package main

import (
	"context"
	"testing"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The handler under everything that a broker does. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	t.Parallel()
	k := idemtest.Kit[payment]{
		Setup: prepare,
		Handler: func(db *idemtest.DB) func(context.Context, payment) error {
			pool := db.Pool()
			return func(ctx context.Context, p payment) error {
				_, err := handle(ctx, pool, p)
				return err
			}
		},
		Deliveries:  []payment{event(1), event(2), event(3)},
		Constraints: []string{onePerEvent},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
