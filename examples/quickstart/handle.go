package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/upsert"
)

const record = `INSERT INTO quickstart_ledger (provider, event_id) VALUES ($1::text, $2::text)`

// handle makes the effect of a delivery's event, unless another delivery of that event has made it already. Whatever
// goes wrong, key and effect are there together or not at all, and the delivery may simply come again.
func handle(ctx context.Context, db idem.DB, d delivery) (result, error) {
	sub, err := subscriptionIn(d)
	if err != nil {
		return result{}, err
	}
	var stale bool
	outcome, err := idem.Run(ctx, db, d.key(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, record, d.Provider, d.ID); err != nil {
			return err
		}
		if sub == nil {
			return nil
		}
		res, err := newest.Exec(ctx, tx, *sub)
		stale = res.Outcome == upsert.Stale // set, not counted: after a lost connection this function runs again
		return err
	})
	return result{outcome, stale && outcome == idem.Executed}, err
}

// key names the effect: the same id of another provider, or with another operation, is another key.
//
// Why not WithPayload: it suits senders that promise the same bytes on every attempt. GitHub and Apple promise the same
// id, and the body of a Stripe event counts the endpoints that have yet to take it (pending_webhooks).
func (d delivery) key() idem.Key {
	return idem.Scope{Source: d.Provider, Operation: "quickstart-record"}.Key(d.ID)
}

// newest keeps the newest state of each subscription, in whatever order the events arrive.
var newest = upsert.Into[subscription]("quickstart_subscriptions").
	OnConflict("stripe_subscription_id").
	Set("status").
	Version("occurred_at", "rank").
	MustBuild()

type subscription struct {
	ID         string    `db:"stripe_subscription_id"`
	Status     string    `db:"status"`
	OccurredAt time.Time `db:"occurred_at"`
	Rank       int       `db:"rank"`
}

// rank orders the states that a subscription had within one second. Stripe counts created in seconds, and its event ids
// are random, so only the application can tell: what is final comes last, and what can follow from the rest before it.
// Where no such order exists, ask Stripe for the subscription instead of trusting the event.
var rank = map[string]int{
	"incomplete": 1, "trialing": 2, "active": 3, "past_due": 4, "unpaid": 5, "paused": 6,
	"incomplete_expired": 7, "canceled": 8,
}

// subscriptionIn returns the subscription that a Stripe event is about, or nil where the event is about something else.
func subscriptionIn(d delivery) (*subscription, error) {
	if d.Provider != "stripe" {
		return nil, nil
	}
	var event struct {
		Created int64 `json:"created"`
		Data    struct {
			Object struct {
				ID     string `json:"id"`
				Object string `json:"object"`
				Status string `json:"status"`
			} `json:"object"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(d.Body), &event); err != nil {
		return nil, errors.New("the body is not a Stripe event")
	}
	o := event.Data.Object
	switch {
	case o.Object != "subscription":
		return nil, nil
	case o.ID == "" || event.Created <= 0:
		return nil, errors.New("the body has no subscription id, or no time")
	case rank[o.Status] == 0:
		return nil, errors.New("the subscription's status is not one that this program knows")
	}
	return &subscription{o.ID, o.Status, time.Unix(event.Created, 0), rank[o.Status]}, nil
}
