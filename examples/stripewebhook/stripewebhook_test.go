package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Whatever the order, each subscription ends as its newest event says, and has one mail.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	for range 2 {
		seed := uint64(time.Now().UnixNano())
		t.Logf("again with: go run ./examples/stripewebhook -seed %d", seed)
		dsn := pgtest.DSN(t)
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), dsn, seed, &out))
		want := fmt.Sprintf("%d of %[1]d subscriptions ended canceled, %[1]d welcome mails", subscriptions)
		require.Contains(t, out.String(), want)
		// A second run, with the same ids: no mail again.
		out.Reset()
		require.NoError(t, run(t.Context(), dsn, seed+1, &out))
		require.Contains(t, out.String(), "0 welcome mails")
	}
}

// What is not for this endpoint, and what is not Stripe's.
func TestOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, prepare(t.Context(), pool))
	answer := func(known string, e event) int {
		r, err := e.request(t.Context(), "/")
		require.NoError(t, err)
		w := httptest.NewRecorder()
		endpoint(pool, known).ServeHTTP(w, r)
		return w.Code
	}
	e := event{id: "evt_1", subscription: "sub_1", status: "active", created: time.Now().Unix()}
	require.Equal(t, 401, answer("whsec_another", e))
	e.status = "a new one"
	require.Equal(t, 500, answer(secret, e), "it must come again")
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM processed_events`).Scan(&n))
	require.Zero(t, n)
}

// The endpoint under everything that a network and a database can do. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	t.Parallel()
	at := time.Now().Truncate(10 * 24 * time.Hour).Unix() // the same in the processes that the kit kills
	k := idemtest.Kit[event]{
		Setup: prepare,
		Handler: idemtest.HTTP(
			func(e event) *http.Request { r, _ := e.request(context.Background(), "/"); return r },
			func(db *idemtest.DB) http.Handler { return endpoint(db.Pool(), secret) }),
		Deliveries: []event{{"evt_1", "sub_1", "active", at}, {"evt_2", "sub_1", "active", at + 5}},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	k.All(t)
}
