package main

import (
	"context"
	"errors"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// Order is a line of what was sold. It and Stock are the models that were there before.
type Order struct {
	ID   uint   `gorm:"primaryKey"`
	Item string `gorm:"not null"`
}

// Stock is what is left of an item. It is counted down, an effect that has no row of its own which could be unique.
type Stock struct {
	Item string `gorm:"primaryKey"`
	Left int    `gorm:"not null"`
}

// message is what the queue delivers, at least once.
type message struct {
	ID   string `json:"id"` // set by who sent it, the same on every delivery
	Item string `json:"item"`
}

var orders = idem.Scope{Source: "orders-queue", Operation: "place-order"}

var errSoldOut = errors.New("sold out")

// consumer handles the messages of the queue.
type consumer struct {
	db   *gorm.DB
	once idemsql.Once
}

// handle places the order of a message, unless another delivery of it has. A nil error means that the message can be
// acknowledged, whatever the outcome; with an error it must come again, or be looked at.
func (c *consumer) handle(ctx context.Context, m message) (out idem.Outcome, err error) {
	err = c.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		// The key goes into the transaction that GORM has begun. place uses it by GORM's own object.
		out, err = c.once.Do(ctx, tx.Statement.ConnPool, orders.Key(m.ID), func(context.Context, idemsql.Tx) error {
			return place(tx, m)
		})
		return err
	})
	if err != nil {
		return 0, err // also where everything went well but COMMIT
	}
	return out, nil
}

// place is the effect. It knows nothing of deliveries.
func place(tx *gorm.DB, m message) error {
	var s Stock
	if err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).First(&s, "item = ?", m.Item).Error; err != nil {
		return err
	}
	if s.Left == 0 {
		return errSoldOut
	}
	s.Left--
	if err := tx.Save(&s).Error; err != nil {
		return err
	}
	return tx.Create(&Order{Item: m.Item}).Error
}
