package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// orderMoved is the event's body.
type orderMoved struct {
	Order string `json:"order"`
	Step  int    `json:"step"`
}

// move takes an order to its next step, and tells everybody: the row and the event are committed together, or neither
// is. The row's lock, which comes first, puts the events of one order into one sequence.
//
// It says which step it is going to be. So whoever got no answer to a COMMIT may call it again: nothing happens twice.
func move(ctx context.Context, db interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}, order string, step int,
) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO orders_orders AS o (id, step) VALUES ($1::text, $2::int)
			ON CONFLICT (id) DO UPDATE SET step = excluded.step WHERE o.step = excluded.step - 1`, order, step)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		body, err := json.Marshal(orderMoved{order, step})
		if err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{
			Topic: fmt.Sprintf("orders.%d", partition(order)), Key: order, Payload: body,
			Headers: map[string]string{"Content-Type": "application/json"},
		})
	})
}

// partitions is how many orders can be consumed at a time: each partition has one message under way, and no more.
const partitions = 8

func partition(order string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(order))
	return h.Sum32() % partitions
}
