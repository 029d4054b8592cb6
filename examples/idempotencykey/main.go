// Command idempotencykey is an API that makes a payment once for a header Idempotency-Key, behind chi, gin or echo.
//
//	go run ./examples/idempotencykey -router chi
//	go run ./examples/idempotencykey -router gin -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// Then, more than once:
//
//	curl -i -u alice: -H 'Idempotency-Key: "k1"' -d '{"cents": 500}' http://localhost:8080/payments
//
// What to copy is pay.go, and the file of your router.
package main

import (
	"context"
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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
)

//go:embed schema.sql
var schema string

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	listen := flag.String("listen", "localhost:8080", "the `address` to listen on")
	router := flag.String("router", "chi", "chi, gin or echo")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *dsn, *listen, *router, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "idempotencykey:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, dsn, listen, router string, out io.Writer) (err error) {
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
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := setUp(ctx, pool); err != nil {
		return err
	}
	handler, err := newAPI(pool, router)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(ctx) // requests that are under way end first
	})
	fmt.Fprintf(out, "listening on http://%s/payments\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// setUp makes the tables.
func setUp(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	return dedup.Migrate(ctx, pool)
}

// newAPI makes the API behind one of the routers.
func newAPI(pool *pgxpool.Pool, router string) (http.Handler, error) {
	once, err := newOnce(pool)
	if err != nil {
		return nil, err
	}
	switch router {
	case "chi":
		return withChi(once), nil
	case "gin":
		return withGin(once), nil
	case "echo":
		return withEcho(once), nil
	}
	return nil, fmt.Errorf("-router %s: chi, gin or echo", router)
}
