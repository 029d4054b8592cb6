// Command keymiddlewares serves one payments API behind one of several middlewares for idempotency keys, so that all
// can be put to the same checks. README.md says what came of it.
//
//	go run ./examples/keymiddlewares -middleware fiber
//	go run github.com/pgonce/pgonce/idem/idemhttp/conformance/idemcheck -url http://localhost:8080/payments \
//		-body '{"cents": 500}' -caller 'Authorization: Basic YWxpY2U6' -other 'Authorization: Basic Ym9iOg=='
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

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
	middleware := flag.String("middleware", "pgonce", "pgonce, fiber or moov")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *dsn, *listen, *middleware, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "keymiddlewares:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, dsn, listen, middleware string, out io.Writer) (err error) {
	serve, ok := servers[middleware]
	if !ok {
		return fmt.Errorf("-middleware %s: pgonce, fiber or moov", middleware)
	}
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
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s listens on http://%s/payments\n", middleware, l.Addr())
	return serve(ctx, l, pool)
}

// setUp makes the tables.
func setUp(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	return dedup.Migrate(ctx, pool)
}
