// Command saga makes orders across three services (stock, payment, shipping) and is killed at random while it does. A
// step that is refused has those before it undone: the money goes back, and the piece into the stock. At the end
// every order is all done or all undone, in the books of every service.
//
//	go run ./examples/saga
//	go run ./examples/saga -orders 500 -kills 50
//	go run ./examples/saga -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// What to copy is saga.go. The exit code is 0 where every order came to one of the two ends, 1 otherwise.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
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
	dsn               string
	orders, kills     int
	work              bool // be the process that is killed
	payment, shipping string
}

func main() {
	var c config
	flag.StringVar(&c.dsn, "dsn", "",
		"the `database`, and with search_path=... the schema, that the tables are made in;\n"+
			"without it a private PostgreSQL is started and removed afterwards")
	flag.IntVar(&c.orders, "orders", 60, "how many `orders` are made")
	flag.IntVar(&c.kills, "kills", 10, "how `often` the worker is killed, at the most")
	flag.BoolVar(&c.work, "work", false,
		"run the sagas of the orders that are pending, and nothing else; needs the URLs, and -dsn")
	flag.StringVar(&c.payment, "payment", "", "the `URL` of the payment service, with -work")
	flag.StringVar(&c.shipping, "shipping", "", "the `URL` of the shipping service, with -work")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	run := run
	if c.work {
		run = work
	}
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "saga:", err)
		os.Exit(1)
	}
}

// run makes orders, has them worked on, and looks what became of them. A nil error means that all is as it should be.
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
	payment, err := startService()
	if err != nil {
		return err
	}
	defer payment.server.Close()
	shipping, err := startService()
	if err != nil {
		return err
	}
	defer shipping.server.Close()
	c.payment, c.shipping = payment.url, shipping.url

	product := "product-" + rand.Text()[:6] // so that another run on the same database has other orders
	if err := place(ctx, pool, product, c.orders); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d orders; the worker is killed up to %d times\n", c.orders, c.kills)
	begun := time.Now()
	kills, err := untilDone(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d kills, %d replies lost, %v\n\n", kills, payment.lost.Load()+shipping.lost.Load(),
		time.Since(begun).Round(time.Millisecond))
	return prove(ctx, pool, payment, shipping, product, out)
}

// place puts the product into the stock, and makes orders of it: every fifth with a card that is not covered, every
// seventh with an address that nobody can find.
func place(ctx context.Context, pool *pgxpool.Pool, product string, n int) error {
	if _, err := pool.Exec(ctx, `INSERT INTO saga_stock (product, pieces) VALUES ($1::text, $2::bigint)`, product,
		int64(n)); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `
		INSERT INTO saga_orders (id, product, amount, card, address)
		SELECT $1::text || '/' || i, $1::text, 10 + i,
		       CASE WHEN i % 5 = 0 THEN $3::text ELSE 'card' END, CASE WHEN i % 7 = 0 THEN $3::text ELSE 'address' END
		  FROM generate_series(1, $2::bigint) AS i`, product, int64(n), refused)
	return err
}
