package idemhttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// exampleDSN returns a new database with the table of the examples; only needed here.
func exampleDSN(ctx context.Context) (string, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err == nil {
		var pool *pgxpool.Pool
		if pool, err = pgxpool.New(ctx, dsn); err == nil {
			defer pool.Close()
			if err = dedup.Migrate(ctx, pool); err == nil {
				_, err = pool.Exec(ctx, `CREATE TABLE payments (id serial, cents int)`)
			}
		}
	}
	check(err)
	return dsn, drop
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// show sends a request twice and prints what comes back; only needed here.
func show(h http.Handler, key, body string) {
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
		r.SetBasicAuth("alice", "")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		text, _, _ := strings.Cut(strings.TrimSpace(w.Body.String()), ",")
		fmt.Println(strings.TrimSpace(fmt.Sprint(w.Code, " ", text, " ", w.Header().Get("Idempotent-Replayed"))))
	}
}

// account says who is calling; yours has authenticated before.
func account(r *http.Request) (string, error) {
	name, _, _ := r.BasicAuth()
	return name, nil
}

func ExampleNew() {
	ctx := context.Background()
	dsn, drop := exampleDSN(ctx)
	defer drop()
	pool, err := pgxpool.New(ctx, dsn)
	check(err)
	defer pool.Close()

	once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{Caller: account})
	check(err)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cents, err := io.ReadAll(r.Body)
		if err != nil || len(cents) == 0 {
			http.Error(w, "no amount", http.StatusUnprocessableEntity) // nothing is written, and a retry gets the same
			return
		}
		tx, _ := idemhttp.Tx(r.Context())
		var id int
		const insert = `INSERT INTO payments (cents) VALUES ($1::text::int) RETURNING id`
		err = tx.QueryRow(r.Context(), insert, string(cents)).Scan(&id)
		if err != nil {
			idemhttp.Fail(r.Context(), err) // a conflict runs the handler again
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated) // the client sees it after COMMIT
		fmt.Fprintf(w, "payment %d", id)
	})))

	show(mux, `"k1"`, "1200")
	show(mux, `"k2"`, "")
	show(mux, `"k1"`, "9999")
	// Output:
	// 201 payment 1
	// 201 payment 1 true
	// 422 no amount
	// 422 no amount true
	// 422 {"type":"https://pkg.go.dev/github.com/pgonce/pgonce/idem/idemhttp#mismatch"
	// 422 {"type":"https://pkg.go.dev/github.com/pgonce/pgonce/idem/idemhttp#mismatch"
}

func ExampleNewSQL() {
	ctx := context.Background()
	dsn, drop := exampleDSN(ctx)
	defer drop()
	db, err := sql.Open("pgx", dsn)
	check(err)
	defer db.Close()

	once, err := idemhttp.NewSQL(db, idemsql.Once{MaxWait: 5 * time.Second}, idemhttp.Config{Caller: account})
	check(err)
	pay := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idemhttp.SQLTx(r.Context())
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO payments (cents) VALUES (1200)`); err != nil {
			idemhttp.Fail(r.Context(), err)
			http.Error(w, "try again", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "paid")
	}))
	show(pay, "k1", "")
	// Output:
	// 200 paid
	// 200 paid true
}

// A charge at a provider: the handler runs in no transaction, and what it writes is written with its response.
func ExampleThen() {
	ctx := context.Background()
	dsn, drop := exampleDSN(ctx)
	defer drop()
	pool, err := pgxpool.New(ctx, dsn)
	check(err)
	defer pool.Close()

	once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{
		Caller: account, Lease: time.Minute, Remembers: 23 * time.Hour,
	})
	check(err)
	charge := func(externalKey string) string { return "charge ch_1" } // the provider, which knows the key
	pay := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, _ := idemhttp.Key(r.Context())
		answer := charge(key.External())
		idemhttp.Then(r.Context(), func(ctx context.Context) error {
			tx, _ := idemhttp.Tx(ctx)
			_, err := tx.Exec(ctx, `INSERT INTO payments (cents) VALUES (1200)`)
			return err
		})
		fmt.Fprint(w, answer)
	}))
	show(pay, "k1", "1200")
	// Output:
	// 200 charge ch_1
	// 200 charge ch_1 true
}
