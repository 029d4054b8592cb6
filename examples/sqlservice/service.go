package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strconv"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// service takes the webhooks of a payment provider. Without once, and with credit called in a transaction of its own,
// it is what there was before: each delivery of an event would move money.
type service struct {
	db   *sql.DB
	once idemsql.Once
}

// credits says where the ids of the events come from, and what is done once for each.
var credits = idem.Scope{Source: "payments", Operation: "credit-account"}

type payment struct {
	ID      string `json:"id"` // of the event, the same on every delivery
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

var errNoAccount = errors.New("the account does not exist")

// credit is the effect. It knows nothing of deliveries. Its transaction is a *sql.Tx or what Run gives out.
func credit(ctx context.Context, tx idemsql.Conn, p payment) error {
	res, err := tx.ExecContext(ctx, `UPDATE sqlservice_accounts SET balance = balance + $2 WHERE id = $1`, p.Account,
		p.Amount)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errNoAccount // key and effect are rolled back together
}

// receive answers a delivery. What is answered with 200 must not come again; everything else may.
func (s *service) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	// The provider's signature is checked here: an event that somebody else sent first would be the one that counts.
	var p payment
	if err := json.Unmarshal(body, &p); err != nil || p.Amount <= 0 {
		http.Error(w, "the body is not a payment", http.StatusBadRequest)
		return
	}
	key := credits.Key(p.ID).WithPayload(body)
	out, err := s.once.Run(r.Context(), s.db, key, func(ctx context.Context, tx idemsql.Tx) error {
		return credit(ctx, tx, p)
	})
	if err != nil {
		s.refuse(w, err)
		return
	}
	_, _ = io.WriteString(w, out.String()+"\n")
}

// refuse says what the sender can do about it. The table of errors in the documentation of package idem has them all.
func (s *service) refuse(w http.ResponseWriter, err error) {
	var bad *idem.KeyError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &bad):
		status = http.StatusBadRequest
	case errors.Is(err, errNoAccount), errors.Is(err, idem.ErrPayloadMismatch):
		status = http.StatusUnprocessableEntity
	case idem.Retryable(err):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", strconv.Itoa(5))
	}
	log.Print("webhook: ", err) // it holds no key and no payload
	http.Error(w, http.StatusText(status), status)
}
