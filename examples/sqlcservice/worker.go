package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

// message is what the queue delivers, at least once.
type message struct {
	ID     string `json:"id"` // set by who sent it, the same on every delivery
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

var transfers = idem.Scope{Source: "transfers-queue", Operation: "transfer"}

var (
	errNoFunds   = errors.New("the account does not exist or does not hold as much")
	errNoAccount = errors.New("the account to pay to does not exist")
)

// worker handles the messages of the queue.
type worker struct {
	db   *sql.DB
	once idemsql.Once
}

// handle makes the transfer of a message, unless another delivery of it has. A nil error means that the message can be
// acknowledged, whatever the outcome; with an error it must come again, or be looked at.
func (w worker) handle(ctx context.Context, m message) (idem.Outcome, error) {
	return w.once.Run(ctx, w.db, transfers.Key(m.ID), func(ctx context.Context, tx idemsql.Tx) error {
		// The transaction is all that sqlc's New asks for. (In one of your own: idemsql.Do, and queries.WithTx.)
		return transfer(ctx, New(tx), m)
	})
}

// transfer is the effect. It knows nothing of deliveries.
func transfer(ctx context.Context, q *Queries, m message) error {
	switch n, err := q.Withdraw(ctx, WithdrawParams{ID: m.From, Amount: m.Amount}); {
	case err != nil:
		return err
	case n == 0:
		return errNoFunds
	}
	switch n, err := q.Deposit(ctx, DepositParams{ID: m.To, Amount: m.Amount}); {
	case err != nil:
		return err
	case n == 0:
		return errNoAccount // the withdrawal is rolled back, and the key with it
	}
	return nil
}
