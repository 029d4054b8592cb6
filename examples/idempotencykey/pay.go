package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
)

type payment struct {
	ID      int64  `json:"id"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// newOnce returns the middleware. It stands outside of each router, for it must see what the router makes of an error.
func newOnce(pool *pgxpool.Pool) (func(http.Handler) http.Handler, error) {
	return idemhttp.New(pool, idem.Once{}, idemhttp.Config{Caller: account})
}

// account says whose request it is. Yours looks the token up.
func account(r *http.Request) (string, error) {
	name, _, ok := r.BasicAuth()
	if !ok {
		return "", errors.New("no account")
	}
	return name, nil
}

// pay makes a payment in the transaction of the request, and returns the status and the answer.
func pay(ctx context.Context, r *http.Request) (int, any) {
	p := payment{}
	p.Account, _ = account(r)
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Cents <= 0 {
		return http.StatusUnprocessableEntity, map[string]string{"error": "cents must be positive"}
	}
	tx, ok := idemhttp.Tx(ctx)
	if !ok {
		return http.StatusInternalServerError, map[string]string{"error": "the route is not behind the middleware"}
	}
	err := tx.QueryRow(ctx, `
		INSERT INTO idempotencykey_payments (account, cents) VALUES ($1::text, $2::bigint)
		RETURNING id`, p.Account, p.Cents).Scan(&p.ID)
	if err != nil {
		idemhttp.Fail(ctx, err) // a conflict runs the handler again
		return http.StatusInternalServerError, map[string]string{"error": "try again"}
	}
	return http.StatusCreated, p
}
