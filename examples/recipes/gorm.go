// Package recipes has GORM and sqlx inside of idemsql.Run, which begins the transaction itself.
package recipes

import (
	"context"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// Payment is what the effect writes.
type Payment struct {
	ID     string `gorm:"primaryKey" db:"id"`
	Amount int    `gorm:"not null" db:"amount"`
}

var payments = idem.Scope{Source: "shop", Operation: "pay"}

// withGORM returns a GORM handle on the transaction that Run has given to fn. Make one for each transaction: it is
// cheap.
//
// Why not db.Transaction: that begins one of its own, beside Run's. And SkipDefaultTransaction: without it GORM wants
// to begin one for each write, which tx refuses.
func withGORM(ctx context.Context, tx idemsql.Tx) (*gorm.DB, error) {
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: tx}), &gorm.Config{
		SkipDefaultTransaction: true,
		DisableAutomaticPing:   true,
	})
	if err != nil {
		return nil, err
	}
	return db.WithContext(ctx), nil
}

// payWithGORM stores a payment once, however often it is delivered.
func payWithGORM(ctx context.Context, db idemsql.DB, p Payment) (idem.Outcome, error) {
	return idemsql.Run(ctx, db, payments.Key(p.ID), func(ctx context.Context, tx idemsql.Tx) error {
		orm, err := withGORM(ctx, tx)
		if err != nil {
			return err
		}
		return orm.Create(&p).Error
	})
}
