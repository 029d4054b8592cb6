package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errHalf = errors.New("not every order is all done or all undone")

// ended is an order whose saga is over.
type ended struct {
	ID, State string
	Amount    int64
}

// prove looks into the books of all three services. A nil error means that every order is all done or all undone.
func prove(ctx context.Context, pool *pgxpool.Pool, payment, shipping *service, product string, out io.Writer) error {
	rows, err := pool.Query(ctx, `SELECT id, state, amount FROM saga_orders WHERE product = $1::text ORDER BY id`, product)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ended])
	if err != nil {
		return err
	}
	var pieces int64
	if err := pool.QueryRow(ctx, `SELECT pieces FROM saga_stock WHERE product = $1::text`,
		product).Scan(&pieces); err != nil {
		return err
	}
	var done, undone, refunded, half int64
	for _, o := range all {
		entries, paid := payment.of(o.ID)
		_, shipped := shipping.of(o.ID)
		switch {
		case o.State == "done" && entries == 1 && paid == o.Amount && shipped == 1:
			done++
		case o.State == "undone" && paid == 0 && shipped == 0 && (entries == 0 || entries == 2):
			undone++
			if entries == 2 {
				refunded++
			}
		default:
			half++
			fmt.Fprintf(out, "order %s is %s: %d of %d paid in %d payments, %d shipped\n", o.ID, o.State, paid, o.Amount,
				entries, shipped)
		}
	}
	missing := int64(len(all)) - pieces
	fmt.Fprintf(out, "%6d done: paid once, shipped once\n", done)
	fmt.Fprintf(out, "%6d undone: nothing shipped; of them %d paid and refunded, the others never paid\n", undone,
		refunded)
	fmt.Fprintf(out, "%6d half done\n", half)
	fmt.Fprintf(out, "%6d pieces have left the stock\n", missing)
	if half > 0 || missing != done {
		return errHalf
	}
	_, err = fmt.Fprintf(out, "\nproof: %d orders, each all done or all undone, and one piece for each that is done\n",
		len(all))
	return err
}
