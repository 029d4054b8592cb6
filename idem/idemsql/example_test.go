package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// exampleDB returns a new database with the tables of the examples; only needed here.
func exampleDB(ctx context.Context) (*sql.DB, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	db, err := sql.Open("pgx", dsn)
	if err == nil {
		err = idemsql.Migrate(ctx, db)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, `CREATE TABLE subscriptions (id text PRIMARY KEY, activations int NOT NULL DEFAULT 0);
			INSERT INTO subscriptions (id) VALUES ('sub_1')`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return db, func() { _ = db.Close(); drop() }
}

var activations = idem.Scope{Source: "stripe", Operation: "activate-subscription"}

// handle is called for every delivery of an event.
func handle(ctx context.Context, db *sql.DB, eventID, subscription string) (idem.Outcome, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	out, err := idemsql.Do(ctx, tx, activations.Key(eventID), func(ctx context.Context, tx idemsql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = $1`, subscription)
		return err
	})
	if err != nil {
		return 0, err // do not acknowledge: the event must come again
	}
	return out, tx.Commit() // acknowledge executed and duplicate, where Commit returns nil
}

func ExampleDo() {
	ctx := context.Background()
	db, done := exampleDB(ctx)
	defer done()
	for range 3 { // the provider delivers the event three times
		out, err := handle(ctx, db, "evt_1", "sub_1")
		fmt.Println(out, err)
	}
	var n int
	_ = db.QueryRowContext(ctx, `SELECT activations FROM subscriptions WHERE id = 'sub_1'`).Scan(&n)
	fmt.Println("activations:", n)
	// Output:
	// executed <nil>
	// duplicate <nil>
	// duplicate <nil>
	// activations: 1
}

func ExampleRun() {
	ctx := context.Background()
	db, done := exampleDB(ctx)
	defer done()
	activate := func(ctx context.Context, tx idemsql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = 'sub_1'`)
		return err
	}
	for range 2 {
		out, err := idemsql.Run(ctx, db, activations.Key("evt_1"), activate)
		fmt.Println(out, err)
	}
	// Output:
	// executed <nil>
	// duplicate <nil>
}

// A charge is made once, however often the order is delivered; the answer is stored, and duplicates get it.
func ExampleCall() {
	ctx := context.Background()
	db, done := exampleDB(ctx)
	defer done()
	charge := idemsql.Call[string]{
		Lease:     time.Minute,
		Remembers: 23 * time.Hour,
		Send: func(ctx context.Context, externalKey string) (string, error) {
			return "ch_1", nil // the provider's answer; externalKey goes into its Idempotency-Key
		},
		Apply: func(ctx context.Context, tx idemsql.Tx, chargeID string) error {
			_, err := tx.ExecContext(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = 'sub_1'`)
			return err
		},
	}
	key := idem.Scope{Source: "shop", Operation: "charge"}.Key("order_1")
	for range 2 {
		fmt.Println(charge.Run(ctx, db, key))
	}
	// Output:
	// ch_1 executed <nil>
	// ch_1 duplicate <nil>
}

func ExampleReturning() {
	ctx := context.Background()
	db, done := exampleDB(ctx)
	defer done()
	var numbered idemsql.Returning[int]
	for range 2 {
		fmt.Println(numbered.Run(ctx, db, activations.Key("evt_1"),
			func(ctx context.Context, tx idemsql.Tx) (n int, err error) {
				err = tx.QueryRowContext(ctx, `
				UPDATE subscriptions SET activations = activations + 1 WHERE id = 'sub_1' RETURNING activations`).Scan(&n)
				return n, err
			}))
	}
	// Output:
	// 1 executed <nil>
	// 1 duplicate <nil>
}

func ExampleVerify() {
	ctx := context.Background()
	db, done := exampleDB(ctx)
	defer done()
	fmt.Println(idemsql.Verify(ctx, db))
	_, _ = db.ExecContext(ctx, `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
	fmt.Println(idemsql.Verify(ctx, db) != nil)
	// Output:
	// <nil>
	// true
}
