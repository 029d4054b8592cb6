package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// orderKit describes a handler of orders, on a database with one product and the orders.
func orderKit(
	t *testing.T, handler func(db *idemtest.DB) func(context.Context, order) error, orders ...order,
) idemtest.Kit[order] {
	t.Helper()
	k := idemtest.Kit[order]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			if err := dedup.Migrate(ctx, pool); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, schema+`; INSERT INTO saga_stock (product, pieces) VALUES ('lamp', 100)`); err != nil {
				return err
			}
			for _, o := range orders {
				if _, err := pool.Exec(ctx, `INSERT INTO saga_orders (id, product, amount, card, address) VALUES ($1, $2, $3, $4, $5)`,
					o.ID, o.Product, o.Amount, o.Card, o.Address); err != nil {
					return err
				}
			}
			return nil
		},
		Handler:    handler,
		Deliveries: orders,
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	return k
}

// A step of the saga, cut everywhere. See package idemtest.
func TestStepBroken(t *testing.T) {
	t.Parallel()
	orderKit(t, func(db *idemtest.DB) func(context.Context, order) error { return saga{pool: db.Pool()}.takeStock },
		order{"o_1", "lamp", 10, "card", "address"}, order{"o_2", "lamp", 20, "card", "address"}).All(t)
}

// Whole sagas, of which one is undone, again and at once. Their leases make it too slow to cut them everywhere here;
// the program kills its worker instead.
func TestSagaBroken(t *testing.T) {
	t.Parallel()
	serve := func() string {
		s := &service{seen: map[string]int{}, books: map[string][]int64{}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var asked request
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				t.Error(err)
			}
			w.WriteHeader(s.book(r.Header.Get("Idempotency-Key"), asked))
			_, _ = w.Write([]byte(`{}`))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	payment, shipping := serve(), serve()
	k := orderKit(t, func(db *idemtest.DB) func(context.Context, order) error {
		return saga{db.Pool(), payment, shipping}.run
	},
		order{"o_1", "lamp", 10, "card", "address"}, order{"o_2", "lamp", 20, "card", refused})
	k.DoubleSubmit(t)
	k.Concurrent(t)
	k.Backed(t)
}
