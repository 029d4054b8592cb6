package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem"
)

// charges are the keys of charges. A refund's is derived from its charge's, so that an order has one charge, and each
// of its refunds is made once, too.
var charges = idem.Scope{Source: "payments-example", Operation: "charge"}

const (
	lease     = time.Second    // longer than the provider takes; after a crash, a payment is blocked for as long
	remembers = 23 * time.Hour // the provider keeps keys for a day
	maxBody   = 1 << 10        // bytes
)

const book = `
INSERT INTO payments_ledger (order_id, refund_id, receipt, amount)
VALUES ($1::text, $2::text, $3::text, $4::bigint)`

// payment is what a client asks for, and what the provider is asked for.
type payment struct {
	Order  string `json:"order"`
	Refund string `json:"refund"` // empty for the charge
	Amount int64  `json:"amount"`
}

// receipt is the provider's answer, and ours.
type receipt struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

// api serves POST /orders/{order}/charge and POST /orders/{order}/refunds/{refund}. Both may be repeated, at the same
// time too: every answer of 200 or 402 to one payment is the same.
type api struct {
	pool     *pgxpool.Pool
	provider string // its URL
}

func (a api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{order}/charge", a.pay)
	mux.HandleFunc("POST /orders/{order}/refunds/{refund}", a.pay)
	return mux
}

func (a api) pay(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Amount int64 `json:"amount"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || json.Unmarshal(body, &asked) != nil || asked.Amount <= 0 {
		http.Error(w, "an amount is wanted", http.StatusBadRequest)
		return
	}
	p := payment{r.PathValue("order"), r.PathValue("refund"), asked.Amount}
	key := charges.Key(p.Order)
	if p.Refund != "" {
		key = key.Derive("refund", p.Refund)
		p.Amount = -p.Amount
	}
	// The same payment with another amount is a mistake of the client's, and not a repetition.
	v, _, err := a.call(p).Run(r.Context(), a.pool, key.WithPayload(body))
	answer(w, v, err)
}

// call makes the payment at the provider, and books it.
func (a api) call(p payment) idem.Call[receipt] {
	return idem.Call[receipt]{
		Lease:     lease,
		Remembers: remembers,
		Send:      func(ctx context.Context, key string) (receipt, error) { return a.send(ctx, key, p) },
		Apply: func(ctx context.Context, tx pgx.Tx, r receipt) error {
			_, err := tx.Exec(ctx, book, p.Order, p.Refund, r.ID, r.Amount)
			return err
		},
	}
}

// send asks the provider. Only its clear refusal is final: after anything else, a time-out, a broken connection, an
// answer of 5xx, it may have booked.
func (a api) send(ctx context.Context, key string, p payment) (r receipt, err error) {
	body, err := json.Marshal(p)
	if err != nil {
		return r, idem.Unsent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.provider, bytes.NewReader(body))
	if err != nil {
		return r, idem.Unsent(err)
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return r, json.NewDecoder(resp.Body).Decode(&r)
	case http.StatusPaymentRequired:
		return r, idem.Final(errors.New("declined"))
	}
	return r, errors.New("the provider answered " + resp.Status)
}

// answer tells the client. All that is not an end is for the client to try again, with the same request.
func answer(w http.ResponseWriter, r receipt, err error) {
	var final *idem.FinalError
	var bad *idem.KeyError
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r) // a client that does not read it asks again
	case errors.As(err, &final):
		http.Error(w, string(final.Value), http.StatusPaymentRequired)
	case errors.As(err, &bad):
		http.Error(w, "no order or refund can have this name", http.StatusBadRequest)
	case errors.Is(err, idem.ErrPayloadMismatch):
		http.Error(w, "this payment was made with another amount", http.StatusUnprocessableEntity)
	case errors.Is(err, idem.ErrUnknown):
		// Interrupted, and the provider has forgotten: somebody must look, see Once.Pending.
		http.Error(w, "we do not know, and are finding out", http.StatusInternalServerError)
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}
