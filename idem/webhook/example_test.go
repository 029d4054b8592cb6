package webhook_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/internal/pgtest"
)

// examplePool returns a pool on a new database with the table of the examples; only needed here.
func examplePool(ctx context.Context) (*pgxpool.Pool, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err == nil {
		err = dedup.Migrate(ctx, pool)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE paid (invoice text NOT NULL)`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); drop() }
}

// deliver sends an event as Stripe does; only needed here.
func deliver(h http.Handler, id string) int {
	body := fmt.Sprintf(`{"id":%q,"type":"invoice.paid","created":%d,"data":{"object":{"id":"in_1"}}}`,
		id, time.Now().Unix())
	r := httptest.NewRequest(http.MethodPost, "/stripe", strings.NewReader(body))
	r.Header = senders[0].sign(id, "", body, time.Now(), newSecret)
	return answer(h, r).Code
}

// An endpoint for Stripe. The sender repeats an event; its effect is there once.
func Example() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()

	stripe := webhook.Stripe{Secrets: []string{oldSecret, newSecret}} // both, while one is rolled
	table := stripe.Sender().Table(dedup.Table{})                     // keeps keys for as long as Stripe resends
	if err := dedup.Verify(ctx, pool, table); err != nil {
		fmt.Println(err)
		return
	}
	h := webhook.Handler{
		Provider: stripe,
		Endpoint: "book-payment",
		Sink: webhook.Effect{
			DB:   pool,
			Once: idem.Once{Table: table, MaxWait: 5 * time.Second},
			Fn: func(ctx context.Context, tx pgx.Tx, e webhook.Event) error {
				_, err := tx.Exec(ctx, `INSERT INTO paid (invoice) VALUES ($1::json #>> '{data,object,id}')`, string(e.Body))
				return err
			},
		},
		Report: func(_ context.Context, e webhook.Event, out idem.Outcome, err error) {
			fmt.Println(e.Type, out, err)
		},
	}
	if err := h.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(deliver(h, "evt_1"))
	fmt.Println(deliver(h, "evt_1"))
	var n int
	err := pool.QueryRow(ctx, `SELECT count(*) FROM paid`).Scan(&n)
	fmt.Println(n, "paid", err)
	// Output:
	// invoice.paid executed <nil>
	// 200
	// invoice.paid duplicate <nil>
	// 200
	// 1 paid <nil>
}

// The same on database/sql: a Sink of three lines.
func ExampleSinkFunc() {
	pool, done := examplePool(context.Background())
	defer done()
	var db *sql.DB = stdlib.OpenDBFromPool(pool)
	defer db.Close()

	h := webhook.Handler{
		Provider: webhook.Stripe{Secrets: []string{newSecret}},
		Endpoint: "book-payment",
		Sink: webhook.SinkFunc(func(ctx context.Context, key idem.Key, e webhook.Event) (idem.Outcome, error) {
			return idemsql.Run(ctx, db, key, func(ctx context.Context, tx idemsql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO paid (invoice) VALUES ($1)`, e.ID)
				return err
			})
		}),
	}
	fmt.Println(deliver(h, "evt_1"), deliver(h, "evt_1"))
	var n int
	err := db.QueryRow(`SELECT count(*) FROM paid`).Scan(&n)
	fmt.Println(n, "paid", err)
	// Output:
	// 200 200
	// 1 paid <nil>
}
