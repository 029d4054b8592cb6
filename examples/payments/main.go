// Command payments is an API for charges and refunds, with a provider that it calls and a database of its own, and is
// killed at random while clients use it. The clients try again until they have an answer. At the end the ledger in the
// database is compared with the provider's own: they are equal, whatever was cut off where.
//
//	go run ./examples/payments
//	go run ./examples/payments -orders 500 -kills 50
//	go run ./examples/payments -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// What to copy is api.go. The provider here honours idempotency keys, loses every tenth reply, and declines some
// cards. The exit code is 0 where the ledgers are equal, 1 otherwise.
package main

import (
	"context"
	"crypto/rand"
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

type config struct {
	dsn             string
	orders, kills   int
	serve, provider string // the API's part of the program
}

func main() {
	var c config
	flag.StringVar(&c.dsn, "dsn", "",
		"the `database`, and with search_path=... the schema, that the tables are made in;\n"+
			"without it a private PostgreSQL is started and removed afterwards")
	flag.IntVar(&c.orders, "orders", 60, "how many `orders` are paid")
	flag.IntVar(&c.kills, "kills", 10, "how `often` the API is killed, at the most")
	flag.StringVar(&c.serve, "serve", "", "serve the API alone, on this `address`; needs -provider and -dsn")
	flag.StringVar(&c.provider, "provider", "", "the `URL` of the provider, with -serve")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	run := run
	if c.serve != "" {
		run = serve
	}
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

// serve is the process that is killed. It ends by itself when its standard input does, which is when its parent has
// died.
func serve(ctx context.Context, c config, _ io.Writer) error {
	pool, err := pgxpool.New(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	server := &http.Server{Addr: c.serve, Handler: api{pool, c.provider}.handler(), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// run starts everything, lets clients pay, and compares the ledgers. A nil error means that they are equal.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		fmt.Fprintln(out, "starting a private PostgreSQL")
		var stop func() error
		if c.dsn, stop, err = private.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	pool, err := pgxpool.New(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := dedup.Migrate(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("make the tables of the example: %w", err)
	}

	bank := &provider{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: bank, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	c.provider = "http://" + listener.Addr().String()
	if c.serve, err = freeAddress(); err != nil {
		return err
	}

	fmt.Fprintf(out, "%d orders; the API is killed up to %d times\n", c.orders, c.kills)
	api := supervise(ctx, c)
	name := rand.Text()[:6] // so that another run on the same database has other orders
	begun := time.Now()
	declined, clientErr := pay(ctx, "http://"+c.serve, name, c.orders)
	kills, apiErr := api.stop()
	if err := errors.Join(clientErr, apiErr); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d kills, %d replies lost, %d cards declined, %v\n\n",
		kills, bank.lost.Load(), declined, time.Since(begun).Round(time.Millisecond))
	return compare(ctx, pool, bank, name, out)
}

// freeAddress returns an address that nobody listens on. Every start of the API takes the same one.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
