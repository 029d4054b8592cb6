package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/pgtest"
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
