package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The endpoint under everything that a sender of webhooks does. See package idemtest.
func TestEndpointBroken(t *testing.T) {
	t.Parallel()
	k := idemtest.Kit[payment]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			_, err := newService(ctx, db)
			return err
		},
		Handler: idemtest.HTTP(
			func(p payment) *http.Request {
				body := fmt.Sprintf(`{"id":%q,"account":%q,"amount":%d}`, p.ID, p.Account, p.Amount)
				return httptest.NewRequest(http.MethodPost, "/webhooks/payments", strings.NewReader(body))
			},
			func(db *idemtest.DB) http.Handler {
				return http.HandlerFunc((&service{db.SQL(), idemsql.Once{MaxWait: 2 * time.Second}}).receive)
			}),
		Deliveries: []payment{{"evt_1", "alice", 100}, {"evt_2", "bob", 250}},
		Keys:       []func(payment) idem.Key{func(p payment) idem.Key { return credits.Key(p.ID) }},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
