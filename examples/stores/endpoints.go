package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
)

// config is what the three endpoints need.
type config struct {
	AppStore   AppStore
	GooglePlay GooglePlay
	Stripe     webhook.Stripe

	// Play asks the Play Developer API for the state of a purchase. It is a question, so asking twice does no harm.
	Play func(ctx context.Context, token string) (Purchase, error)

	Report func(ctx context.Context, e webhook.Event, out idem.Outcome, err error)
}

// table is the dedup table of all three stores: it keeps keys for as long as the one that repeats the longest.
func (c config) table() dedup.Table {
	t := c.AppStore.Sender().Table(dedup.Table{})
	return c.Stripe.Sender().Table(c.GooglePlay.Sender().Table(t))
}

// endpoints returns the server, over any pool of connections.
func (c config) endpoints(db idem.DB) (http.Handler, error) {
	once := idem.Once{Table: c.table(), MaxWait: 5 * time.Second}
	run := func(ctx context.Context, key idem.Key, kind string, p Purchase) (idem.Outcome, error) {
		return once.Run(ctx, db, key, func(ctx context.Context, tx pgx.Tx) error { return book(ctx, tx, kind, p) })
	}
	mux := http.NewServeMux()
	for path, h := range map[string]webhook.Handler{
		"/app-store": {Provider: c.AppStore, Sink: webhook.SinkFunc(
			func(ctx context.Context, key idem.Key, e webhook.Event) (idem.Outcome, error) {
				p, ok, err := c.AppStore.Purchase(e, time.Now())
				if err != nil || !ok {
					return 0, err
				}
				return run(ctx, key, e.Type, p)
			})},
		"/google-play": {Provider: c.GooglePlay, Sink: webhook.SinkFunc(
			func(ctx context.Context, key idem.Key, e webhook.Event) (idem.Outcome, error) {
				token, err := c.GooglePlay.Token(e)
				if err != nil || token == "" {
					return 0, err
				}
				// Before the transaction, which would be held open by a slow answer.
				p, err := c.Play(ctx, token)
				if err != nil {
					return 0, err
				}
				return run(ctx, key, e.Type, p)
			})},
		"/stripe": {Provider: c.Stripe, Sink: webhook.SinkFunc(
			func(ctx context.Context, key idem.Key, e webhook.Event) (idem.Outcome, error) {
				p, ok, err := stripePurchase(e)
				if err != nil || !ok {
					return 0, err
				}
				return run(ctx, key, e.Type, p)
			})},
	} {
		h.Endpoint, h.Report = "purchases", c.Report
		if err := h.Validate(); err != nil {
			return nil, err
		}
		mux.Handle(path, h)
	}
	return mux, nil
}

// stripeStates are the states of a subscription, in our words.
var stripeStates = map[string]string{
	"incomplete": "pending", "trialing": "active", "active": "active", "past_due": "past_due", "unpaid": "past_due",
	"paused": "past_due", "canceled": "ended", "incomplete_expired": "ended",
}

// Not webhook.ErrMalformed, which is a 4xx: a new version of this program may understand it before Stripe gives up.
var errNotUnderstood = errors.New("stores: a subscription in a form that is not known here")

// stripePurchase returns what an event says of a subscription; ok is false where it says nothing.
func stripePurchase(e webhook.Event) (p Purchase, ok bool, err error) {
	var body struct {
		Data struct {
			Object struct {
				ID     string `json:"id"`
				Object string `json:"object"`
				Status string `json:"status"`
				Items  struct {
					Data []struct {
						Price struct {
							Product string `json:"product"`
						} `json:"price"`
					} `json:"data"`
				} `json:"items"`
			} `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(e.Body, &body) != nil {
		return p, false, webhook.ErrMalformed
	}
	s := body.Data.Object
	if s.Object != "subscription" {
		return p, false, nil
	}
	status, known := stripeStates[s.Status]
	if !known || s.ID == "" || len(s.Items.Data) == 0 {
		return p, false, errNotUnderstood
	}
	return Purchase{
		Store: "stripe", ID: s.ID, Product: s.Items.Data[0].Price.Product, Status: status, UpdatedAt: e.Time,
	}, true, nil
}
