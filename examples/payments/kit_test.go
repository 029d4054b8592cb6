package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// bankEnv tells the processes that the kit kills where the provider is: it outlives them.
const bankEnv = "PAYMENTS_TEST_BANK"

// The API under everything that a client does, and a provider that loses nothing: its books are the Probe. See package
// idemtest.
func TestChargeBroken(t *testing.T) {
	bank := &provider{}
	if !idemtest.Child() {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var asked payment
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				t.Error(err)
			}
			_ = json.NewEncoder(w).Encode(bank.book(r.Header.Get("Idempotency-Key"), asked).receipt)
		}))
		defer server.Close()
		t.Setenv(bankEnv, server.URL)
	}
	k := idemtest.Kit[payment]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			if err := dedup.Migrate(ctx, pool); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, schema)
			return err
		},
		Handler: idemtest.HTTP(
			func(p payment) *http.Request {
				return httptest.NewRequest(http.MethodPost, "/orders/"+p.Order+"/charge",
					strings.NewReader(fmt.Sprintf(`{"amount":%d}`, p.Amount)))
			},
			func(db *idemtest.DB) http.Handler { return api{db.Pool(), os.Getenv(bankEnv)}.handler() }),
		Deliveries: []payment{{Order: "a", Amount: 100}},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
	// However often the database began anew, the provider has booked once.
	require.Len(t, bank.ledger, 1)
}
