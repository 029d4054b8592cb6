package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/upsert"
)

// Subscription is what the application keeps of a subscription.
type Subscription struct {
	ID        string    `db:"id"`
	Status    string    `db:"status"`
	Plan      *string   `db:"plan"`
	CreatedAt time.Time `db:"created_at"`
	UpdatedAt time.Time `db:"updated_at"`
	Rank      int       `db:"rank"`
}

// newest keeps the newest event of each subscription. A payload without a plan leaves the plan as it is.
var newest = upsert.Into[Subscription]("stripeorder_subscriptions").
	OnConflict("id").
	Set("status").
	SetIfNotNull("plan").
	SetOnInsert("created_at").
	Version("updated_at", "rank").
	MustBuild()

// ranks settle two events of one second, which the sender's clock cannot tell apart: the later stage of life is the
// newer one. Nothing comes after canceled.
var ranks = map[string]int{"incomplete": 0, "active": 1, "past_due": 2, "canceled": 3}

// Event is a webhook's event, as far as it is needed.
type Event struct {
	ID           string
	Created      int64 // Unix seconds
	Subscription string
	Status       string
	Plan         string // "" where the payload has none
}

func (e Event) row() Subscription {
	at := time.Unix(e.Created, 0)
	s := Subscription{ID: e.Subscription, Status: e.Status, CreatedAt: at, UpdatedAt: at, Rank: ranks[e.Status]}
	if e.Plan != "" {
		s.Plan = &e.Plan
	}
	return s
}

// apply stores one event, in a transaction in which a handler would do its other work too.
func apply(ctx context.Context, pool *pgxpool.Pool, e Event) (upsert.Outcome, error) {
	var outcome upsert.Outcome
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		res, err := newest.Exec(ctx, tx, e.row())
		outcome = res.Outcome
		return err
	})
	return outcome, err
}
