package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/upsert"
)

// endpoint returns the handler of the events of subscriptions.
func endpoint(db idem.DB, secrets ...string) webhook.Handler {
	stripe := webhook.Stripe{Secrets: secrets}
	return webhook.Handler{
		Provider: stripe,
		Endpoint: "subscriptions",
		Sink: webhook.Effect{
			DB:   db,
			Once: idem.Once{Table: stripe.Sender().Table(dedup.Table{}), MaxWait: 5 * time.Second},
			Fn:   apply,
		},
	}
}

// Subscription is what the application keeps of a subscription.
type Subscription struct {
	ID        string    `db:"id"`
	Customer  string    `db:"customer"`
	Status    string    `db:"status"`
	UpdatedAt time.Time `db:"updated_at"`
	Rank      int       `db:"rank"`
}

// newest keeps the newest event of each subscription.
var newest = upsert.Into[Subscription]("stripewebhook_subscriptions").
	OnConflict("id").
	Set("customer", "status").
	Version("updated_at", "rank").
	MustBuild()

// ranks settle two events of one second, which Stripe's clock cannot tell apart. Nothing comes after canceled.
var ranks = map[string]int{"incomplete": 0, "active": 1, "past_due": 2, "canceled": 3}

var errStatus = errors.New("a status that this version does not know")

// welcomed is the key of a mail: one for each subscription, however many events say that it is active.
var welcomed = idem.Scope{Source: "app", Operation: "welcome-mail"}

// apply is the effect of one event. The Handler commits it with the event's key.
func apply(ctx context.Context, tx pgx.Tx, e webhook.Event) error {
	var body struct {
		Data struct {
			Object struct {
				Object   string `json:"object"`
				ID       string `json:"id"`
				Customer string `json:"customer"`
				Status   string `json:"status"`
			} `json:"object"`
		} `json:"data"`
	}
	if err := json.Unmarshal(e.Body, &body); err != nil {
		return err
	}
	o := body.Data.Object
	if o.Object != "subscription" {
		return nil // not ours: acknowledge
	}
	rank, known := ranks[o.Status]
	if !known {
		return errStatus // Stripe repeats for days: time for a version that knows it
	}
	_, err := newest.Exec(ctx, tx, Subscription{o.ID, o.Customer, o.Status, e.Time, rank})
	if err != nil || o.Status != "active" {
		return err
	}
	// Not sent from here, where a roll back could not call it back. The relay sends what was committed.
	_, err = idem.Do(ctx, tx, welcomed.Key(o.ID), func(ctx context.Context, tx pgx.Tx) error {
		payload, err := json.Marshal(mail{To: o.Customer, Subject: "Welcome"})
		if err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{Topic: "mails", Key: o.ID, Payload: payload})
	})
	return err
}

type mail struct{ To, Subject string }
