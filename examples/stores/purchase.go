package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/upsert"
)

// Purchase is what the application keeps of a purchase, whichever store it was made in.
type Purchase struct {
	Store     string    `db:"store"`
	ID        string    `db:"purchase_id"`
	Product   string    `db:"product"`
	Status    string    `db:"status"`
	UpdatedAt time.Time `db:"updated_at"`
	Rank      int       `db:"rank"`
}

// newest keeps the newest state of each purchase: a late notification changes nothing.
var newest = upsert.Into[Purchase]("stores_purchases").
	OnConflict("store", "purchase_id").
	Set("product", "status").
	Version("updated_at", "rank").
	MustBuild()

// ranks settle two notifications of one moment, which only Stripe's clock of whole seconds makes likely.
var ranks = map[string]int{"pending": 0, "active": 1, "past_due": 2, "ended": 3, "refunded": 4}

// book is the effect of a notification, in the transaction that holds its key. The row of the purchase would be right
// without a key. The history would not: it has a row for each notification.
func book(ctx context.Context, tx pgx.Tx, kind string, p Purchase) error {
	p.Rank = ranks[p.Status]
	if _, err := newest.Exec(ctx, tx, p); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO stores_history (store, purchase_id, kind, status) VALUES ($1, $2, $3, $4)`,
		p.Store, p.ID, kind, p.Status)
	return err
}
