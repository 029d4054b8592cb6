package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup/inbox"
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
		err = inbox.Migrate(ctx, pool)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE payments (event text, customer text)`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); drop() }
}

// receive is what the endpoint of a webhook does: it stores the raw message, and answers. Stored and duplicate are
// both answered with 200; an error is not, so that the message comes again.
func receive(ctx context.Context, pool *pgxpool.Pool, event, customer string) error {
	out, err := inbox.Store(ctx, pool, inbox.Message{
		Source: "stripe", Operation: "webhook", ID: event, Key: customer, Body: []byte(customer),
		Headers: map[string]string{"Stripe-Signature": "t=1492774577,v1=5257a8"},
	})
	if err == nil {
		fmt.Println(event, out)
	}
	return err
}

// book is the handler: what it writes in tx stands if and only if the message is marked as handled.
func book(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO payments (event, customer) VALUES ($1, $2)`, m.ID, string(m.Body))
	return err
}

func Example() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	for _, event := range []string{"evt_1", "evt_2", "evt_1"} { // evt_1 is delivered twice
		if err := receive(ctx, pool, event, "ada"); err != nil {
			fmt.Println(err)
		}
	}
	// A service has Run in place of Drain: it handles until ctx ends.
	stats, err := inbox.Worker{}.Drain(ctx, pool, book)
	fmt.Println(stats.Handled, err)
	if err := receive(ctx, pool, "evt_2", "ada"); err != nil { // it comes once more, and is handled already
		fmt.Println(err)
	}
	// Output:
	// evt_1 stored
	// evt_2 stored
	// evt_1 duplicate
	// 2 <nil>
	// evt_2 duplicate
}

// A message that no retry can help: somebody looks at it, and has it handled again when the cause is gone.
func ExampleTable_Replay() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	if err := receive(ctx, pool, "evt_1", "ada"); err != nil {
		fmt.Println(err)
	}
	known := false
	handle := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if !known {
			return fmt.Errorf("the customer is not known: %w", inbox.ErrFinal)
		}
		return book(ctx, tx, m)
	}
	stats, err := inbox.Worker{}.Drain(ctx, pool, handle)
	fmt.Println(stats.Dead, errors.Is(err, inbox.ErrFinal))

	dead, _ := inbox.Table{}.List(ctx, pool, inbox.Filter{}, 10)
	fmt.Println(len(dead), dead[0].ID, dead[0].State, dead[0].LastError)
	known = true // the customer was made
	n, _ := inbox.Table{}.Replay(ctx, pool, inbox.Filter{IDs: []string{"evt_1"}})
	fmt.Println(n)
	stats, err = inbox.Worker{}.Drain(ctx, pool, handle)
	fmt.Println(stats.Handled, err)
	// Output:
	// evt_1 stored
	// 1 true
	// 1 evt_1 dead the customer is not known: no retry can help
	// 1
	// 1 <nil>
}

// A handler that is to run in a process for ever, with four messages at a time.
func ExampleWorker_Run() {
	ctx, cancel := context.WithCancel(context.Background())
	pool, done := examplePool(ctx)
	defer done()
	if err := receive(ctx, pool, "evt_1", "ada"); err != nil {
		fmt.Println(err)
	}
	err := inbox.Worker{Workers: 4, Done: func(_ context.Context, m inbox.Message, err error) {
		fmt.Println(m.ID, err)
		cancel() // only here
	}}.Run(ctx, pool, book)
	fmt.Println(err)
	// Output:
	// evt_1 stored
	// evt_1 <nil>
	// context canceled
}

// The table is small where it is purged now and then, and somebody is told of what waits.
func ExampleTable_Purge() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	table := inbox.Table{} // keeps names for 35 days, and bodies for 7
	purged, err := table.Purge(ctx, pool)
	fmt.Println(purged.Keys, purged.Bodies, err)
	depth, err := table.Depth(ctx, pool)
	fmt.Println(depth.Waiting, depth.Dead, depth.Oldest, err)
	// Output:
	// 0 0 <nil>
	// 0 0 0s <nil>
}
