package pgerr_test

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgonce/pgonce/pgerr"
)

func ExampleDuplicate() {
	// What a driver returns; only needed for this example.
	violation := func(code, schema, constraint string) error {
		return fmt.Errorf("insert payment: %w", &pgconn.PgError{Code: code, SchemaName: schema, ConstraintName: constraint})
	}

	const key = "app.payments_event_id_key"
	fmt.Println(pgerr.Duplicate(violation("23505", "app", "payments_event_id_key"), key))
	fmt.Println(pgerr.Duplicate(violation("23505", "app", "payments_invoice_key"), key))
	fmt.Println(pgerr.Duplicate(violation("23505", "audit", "payments_event_id_key"), key))
	fmt.Println(pgerr.Duplicate(violation("23514", "app", "payments_event_id_key"), key))
	// Output:
	// true
	// false
	// false
	// false
}

func ExampleRetryable() {
	for _, err := range []error{
		&pgconn.PgError{Code: pgerr.SerializationFailure},
		pgconn.ErrConnClosed,
		&pgconn.PgError{Code: pgerr.CheckViolation},
		errors.New("no such customer"),
	} {
		fmt.Println(pgerr.Retryable(fmt.Errorf("apply payment: %w", err)))
	}
	// Output:
	// true
	// true
	// false
	// false
}

func ExampleCommitUnknown() {
	commit := func(err error) string {
		switch {
		case err == nil:
			return "committed"
		case pgerr.CommitUnknown(err):
			return "ask the database"
		}
		return "rolled back"
	}
	fmt.Println(commit(nil))
	fmt.Println(commit(&pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR"})) // a deferred constraint
	fmt.Println(commit(pgconn.ErrConnClosed))
	// Output:
	// committed
	// rolled back
	// ask the database
}
