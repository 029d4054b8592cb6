package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
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
	"github.com/pgonce/pgonce/internal/rig/pgtest"
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

// acme signs the time and the body, each with the same secret; only needed here.
type acme struct{ secret []byte }

// Sender says what Acme's documentation says: the source of the keys, and for how long they are needed.
func (acme) Sender() webhook.Sender {
	return webhook.Sender{Source: "acme", Resends: 7 * 24 * time.Hour}
}

// Verify looks at the signature first, and into the body afterwards.
func (a acme) Verify(r *http.Request, body []byte, at time.Time) (webhook.Event, error) {
	stamp := r.Header.Get("Acme-Time")
	h := hmac.New(sha256.New, a.secret)
	h.Write([]byte(stamp + "\n"))
	h.Write(body)
	if !hmac.Equal([]byte(hex.EncodeToString(h.Sum(nil))), []byte(r.Header.Get("Acme-Signature"))) {
		return webhook.Event{}, webhook.ErrSignature
	}
	if t, err := time.Parse(time.RFC3339, stamp); err != nil || at.Sub(t).Abs() > 5*time.Minute {
		return webhook.Event{}, webhook.ErrStale
	}
	var e struct{ ID, Kind string }
	if err := json.Unmarshal(body, &e); err != nil {
		return webhook.Event{}, webhook.ErrMalformed
	}
	return webhook.Event{ID: e.ID, Type: e.Kind}, nil
}

// A provider of your own: two methods.
func ExampleProvider() {
	pool, done := examplePool(context.Background())
	defer done()
	secret := []byte("acme's secret")
	h := webhook.Handler{
		Provider: acme{secret},
		Endpoint: "book-payment",
		Sink: webhook.Effect{DB: pool, Fn: func(ctx context.Context, tx pgx.Tx, e webhook.Event) error {
			_, err := tx.Exec(ctx, `INSERT INTO paid (invoice) VALUES ($1)`, e.ID)
			return err
		}},
	}
	const body = `{"id":"1","kind":"paid"}`
	send := func(signWith []byte) int {
		stamp := time.Now().Format(time.RFC3339)
		r := httptest.NewRequest(http.MethodPost, "/acme", strings.NewReader(body))
		r.Header = header("Acme-Time", stamp, "Acme-Signature", hex.EncodeToString(mac(signWith, stamp, "\n", body)))
		return answer(h, r).Code
	}
	fmt.Println(send(secret), send(secret), send([]byte("another")))
	// Output: 200 200 401
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
