package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/pgerr"
)

// onePerEvent is the constraint that makes a payment happen once. See schema.sql.
const onePerEvent = "lookupfirst_payments_event_id_key"

const (
	lookup = `SELECT EXISTS (SELECT 1 FROM lookupfirst_payments WHERE event_id = $1::text)`
	record = `INSERT INTO lookupfirst_payments (event_id, account, amount) VALUES ($1::text, $2::text, $3::bigint)`
	effect = `UPDATE lookupfirst_accounts SET balance = balance + $2::bigint WHERE account = $1::text`
)

// payment is what an event says.
type payment struct {
	EventID string
	Account string
	Amount  int64
}

// outcome says what became of a delivery. The zero value comes with an error.
type outcome uint8

const (
	applied outcome = iota + 1 // this delivery was the first
	known                      // the lookup found an earlier one
	refused                    // the lookup found nothing, and the constraint did
)

// database is what handle needs of a pgxpool.Pool or a pgx.Conn.
type database interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

var errNoAccount = errors.New("the account of the payment does not exist")

// handle applies a payment, unless another delivery of its event has done so. An error means that nothing was
// applied, or that the answer to COMMIT was lost: in both cases the event may simply come again.
func handle(ctx context.Context, db database, p payment) (outcome, error) {
	// The common path: most duplicates come long after the first delivery, and this spares them a transaction that is
	// rolled back, with the dead row and the burnt sequence value that a failed INSERT leaves. It guarantees nothing:
	// two workers can both look before either has written.
	var exists bool
	if err := db.QueryRow(ctx, lookup, p.EventID).Scan(&exists); err != nil {
		return 0, err
	}
	if exists {
		return known, nil
	}

	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// The row comes before the effect and in the same transaction. A second worker waits here until the first one
		// has committed, and fails, or until it has rolled back, and is then itself the first.
		if _, err := tx.Exec(ctx, record, p.EventID, p.Account, p.Amount); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, effect, p.Account, p.Amount)
		if err == nil && tag.RowsAffected() == 0 {
			err = errNoAccount
		}
		return err
	})
	switch {
	case err == nil:
		return applied, nil
	case pgerr.Duplicate(err, onePerEvent): // this constraint, and no other 23505
		return refused, nil
	}
	return 0, err
}
