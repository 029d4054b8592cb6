package main

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

type delivery struct{ id, subscription, status string }

// The endpoints under everything that a network and a database can do. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Truncate(10 * 24 * time.Hour) // the same in the processes that the kit kills
	k := idemtest.Kit[delivery]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error { return prepare(ctx, pool, w.config) },
		Handler: idemtest.HTTP(
			func(d delivery) *http.Request { return w.stripe(d.id, d.subscription, d.status, at) },
			func(db *idemtest.DB) http.Handler { return w.server(db.Pool()) }),
		Deliveries: []delivery{{"evt_1", "sub_1", "active"}, {"evt_2", "sub_1", "canceled"}},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
