// Command sqlservice is a webhook endpoint on database/sql that makes each payment once, however often its event is
// delivered.
//
//	go run ./examples/sqlservice
//	go run ./examples/sqlservice -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// Then, more than once:
//
//	curl -i -d '{"id": "evt_1", "account": "alice", "amount": 500}' http://localhost:8080/webhooks/payments
//
// What to copy is service.go. The driver is pgx; with lib/pq only the import and the name in sql.Open change.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem/idemsql"
)

//go:embed schema.sql
var schema string

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	listen := flag.String("listen", "localhost:8080", "the `address` to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *dsn, *listen, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sqlservice:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, dsn, listen string, out io.Writer) (err error) {
	if dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		var stop func() error
		if dsn, stop, err = private.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	handler, err := newService(ctx, db)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(ctx) // deliveries that are under way end first
	})
	fmt.Fprintf(out, "listening on http://%s/webhooks/payments\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// newService makes the tables and the endpoint.
func newService(ctx context.Context, db *sql.DB) (http.Handler, error) {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	if err := idemsql.Migrate(ctx, db); err != nil {
		return nil, err
	}
	// A delivery whose event is being processed is answered with 503 after a while, and does not hold a connection.
	s := &service{db, idemsql.Once{MaxWait: 2 * time.Second}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /webhooks/payments", s.receive)
	return mux, nil
}
