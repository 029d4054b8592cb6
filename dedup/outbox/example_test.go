package outbox_test

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// examplePool returns a pool on a new database with the tables of the examples; only needed here.
func examplePool(ctx context.Context) (*pgxpool.Pool, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err == nil {
		err = outbox.Migrate(ctx, pool)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL)`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); drop() }
}

// place stores an order and the event that tells of it: both, or neither. The row of the order is locked before the
// event is appended, and so the events of one order are in the order of its changes.
func place(ctx context.Context, pool *pgxpool.Pool, order, status string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id, status) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET status = $2`,
			order, status)
		if err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{
			Topic: "orders", Key: order, Payload: []byte(status),
			Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		})
	})
}

// publish stands for a broker. A real one returns when the broker has confirmed, and sends e.ID along: the
// consumer's key.
func publish(_ context.Context, events []outbox.Event) error {
	for _, e := range events {
		fmt.Println(e.Topic, e.Key, string(e.Payload))
	}
	return nil
}

func Example() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	for _, status := range []string{"placed", "paid", "sent"} {
		if err := place(ctx, pool, "order-1", status); err != nil {
			fmt.Println(err)
		}
	}
	// A service has Run in place of Drain: it publishes until ctx ends.
	stats, err := outbox.Relay{Publisher: outbox.PublisherFunc(publish)}.Drain(ctx, pool)
	fmt.Println(stats.Published, err)
	// Output:
	// orders order-1 placed
	// orders order-1 paid
	// orders order-1 sent
	// 3 <nil>
}

// An event that the broker does not take: the other order goes on, and somebody decides what becomes of it.
func ExampleTable_Retry() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	for _, order := range []string{"order-1", "order-2"} {
		if err := place(ctx, pool, order, "placed"); err != nil {
			fmt.Println(err)
		}
	}
	tooLarge := true
	relay := outbox.Relay{
		MaxAttempts: 1,
		Publisher: outbox.PublisherFunc(func(ctx context.Context, events []outbox.Event) error {
			errs := make(outbox.EventErrors, len(events))
			for i, e := range events {
				if e.Key == "order-1" && tooLarge {
					errs[i] = fmt.Errorf("%s: larger than the broker takes", e.Key)
					continue
				}
				errs[i] = publish(ctx, events[i:i+1])
			}
			return errs.Err()
		}),
	}
	stats, err := relay.Drain(ctx, pool)
	fmt.Println(stats.Published, stats.Parked, err)

	parked, _ := outbox.Table{}.Parked(ctx, pool, 10)
	fmt.Println(len(parked), parked[0].LastError)
	tooLarge = false // the broker's limit was raised
	n, _ := outbox.Table{}.Retry(ctx, pool, parked[0].ID)
	fmt.Println(n)
	_, _ = relay.Drain(ctx, pool)
	// Unordered output:
	// orders order-2 placed
	// 1 1 outbox: publish: 1 of 1 events were not published; the first: order-1: larger than the broker takes
	// 1 order-1: larger than the broker takes
	// 1
	// orders order-1 placed
}
