package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// examplePgx returns a connection to a new database with a table; only needed here.
func examplePgx(ctx context.Context, ddl string) (*pgx.Conn, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err == nil {
		_, err = conn.Exec(ctx, ddl)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return conn, func() { _ = conn.Close(ctx); drop() }
}

// Status is a row of the examples.
type Status struct {
	Subscription string    `db:"stripe_subscription_id"`
	Status       string    `db:"status"`
	UpdatedAt    time.Time `db:"updated_at"`
	Rank         int       `db:"rank"`
}

var status = upsert.Into[Status]("subscription_status").
	OnConflict("stripe_subscription_id").
	Set("status").
	Version("updated_at", "rank").
	MustBuild()

const statusDDL = `CREATE TABLE subscription_status (stripe_subscription_id text PRIMARY KEY, status text, updated_at timestamptz, rank int)`

func ExampleStmt_Exec() {
	ctx := context.Background()
	conn, done := examplePgx(ctx, statusDDL)
	defer done()

	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, event := range []Status{
			{"sub_1", "active", noon, 1},
			{"sub_1", "canceled", noon, 2},                     // in the same second: the rank decides
			{"sub_1", "active", noon, 1},                       // delivered again
			{"sub_1", "incomplete", noon.Add(-time.Minute), 0}, // late
			{"sub_1", "canceled", noon, 2},
		} {
			res, err := status.Exec(ctx, tx, event)
			if err != nil {
				return err
			}
			fmt.Println(event.Status, "is", res.Outcome, "and stored is", res.Stored.Status)
		}
		_, err := status.Exec(ctx, tx, Status{"sub_1", "paused", noon, 2})
		fmt.Println(errors.Is(err, upsert.ErrVersionConflict))
		return nil
	})
	fmt.Println(err)
	// Output:
	// active is inserted and stored is active
	// canceled is updated and stored is canceled
	// active is stale and stored is canceled
	// incomplete is stale and stored is canceled
	// canceled is unchanged and stored is canceled
	// true
	// <nil>
}

func ExampleStmt_ExecMany() {
	ctx := context.Background()
	conn, done := examplePgx(ctx, statusDDL)
	defer done()

	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rows := []Status{
		{"sub_1", "active", noon, 1},
		{"sub_2", "active", noon, 1},
		{"sub_1", "canceled", noon.Add(time.Hour), 2},
	}
	told := make([]upsert.Outcome, len(rows))
	sum, err := status.ExecMany(ctx, conn, slices.Values(rows),
		func(i int, r upsert.Result[Status]) { told[i] = r.Outcome })
	fmt.Printf("%+v %v\n", sum, err)
	fmt.Println(told)
	// Output:
	// {Inserted:2 Updated:0 Stale:1 Unchanged:0 Failed:0} <nil>
	// [stale inserted inserted]
}

func ExampleStmt_SQL() {
	sql, columns := status.SQL()
	fmt.Println(sql)
	fmt.Println(columns)
	// Output:
	// INSERT INTO "subscription_status" AS t ("stripe_subscription_id", "status", "updated_at", "rank")
	// VALUES ($1, $2, $3, $4)
	// ON CONFLICT ("stripe_subscription_id") DO UPDATE
	//    SET "status" = excluded."status",
	//        "updated_at" = excluded."updated_at",
	//        "rank" = excluded."rank"
	//  WHERE ((t."updated_at", t."rank") OPERATOR(pg_catalog.>=) (excluded."updated_at", excluded."rank")) IS NOT TRUE
	// [stripe_subscription_id status updated_at rank]
}

func ExampleBuilder_Build() {
	_, err := upsert.Into[Status]("subscription_status").OnConflict("stripe_subscription_id").Set("status").Build()
	fmt.Println(err)
	// Output:
	// upsert into subscription_status: nothing says which of two events stays; write Version(column) for the newest by the event's own time or number, FirstWins() to keep the stored row, or LastWins() to overwrite it, also with what is older
}

func ExampleVerify() {
	ctx := context.Background()
	conn, done := examplePgx(ctx, `CREATE TABLE subscription_status (stripe_subscription_id text NOT NULL, status text, updated_at timestamptz, rank int)`)
	defer done()
	fmt.Println(upsert.Verify(ctx, conn, status))
	// Output:
	// upsert: verify: 1 problem(s)
	// subscription_status: index missing: there is no unique index on exactly ("stripe_subscription_id"), so that every statement fails (42P10)
	// 	fix it with: CREATE UNIQUE INDEX CONCURRENTLY ON "subscription_status" ("stripe_subscription_id")
}
