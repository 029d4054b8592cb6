// Command lookupfirst shows the handler of many code bases, made right: it looks whether the event was processed, and
// inserts its row if not. The lookup makes duplicates cheap. What makes them harmless is the unique constraint behind
// the insert: two workers with two copies of one event can both find nothing.
//
//	go run ./examples/lookupfirst
//	go run ./examples/lookupfirst -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// Each event goes to two workers at the same time, and once more later. What to copy is handle.go, with the constraint
// in schema.sql; the test beside it shows what happens without that constraint. Where the effect has no row of its
// own that could be unique, use package idem instead.
//
// The exit code is 0 where each event was applied once, 1 otherwise.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

const (
	events  = 100
	workers = 2 // that get a copy of each event at the same time
	account = "acct_1"
	amount  = 10
)

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

func main() {
	dsn := flag.String("dsn", "", "the `database`, and with search_path=... the schema, that the tables are made in;\n"+
		"without it a private PostgreSQL is started and removed afterwards")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *dsn, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lookupfirst:", err)
		os.Exit(1)
	}
}

// run delivers the events and tells what became of them. A nil error means that each was applied once.
func run(ctx context.Context, dsn string, out io.Writer) (err error) {
	if dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		fmt.Fprintln(out, "starting a private PostgreSQL")
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
	if err := prepare(ctx, pool); err != nil {
		return err
	}

	fmt.Fprintf(out, "%d events, each to %d workers at the same time, and once more later\n", events, workers)
	counts := map[outcome]int{}
	for i := range events {
		if err := deliver(ctx, pool, event(i), workers, counts); err != nil {
			return err
		}
	}
	for i := range events {
		if err := deliver(ctx, pool, event(i), 1, counts); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%6d applied\n", counts[applied])
	fmt.Fprintf(out, "%6d found by the lookup\n", counts[known])
	fmt.Fprintf(out, "%6d refused by %s: the lookup had come too early\n", counts[refused], onePerEvent)
	return prove(ctx, pool, out)
}

// prepare makes the tables, where they are not there yet, and the account.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	_, err := pool.Exec(ctx, `INSERT INTO lookupfirst_accounts (account) VALUES ($1::text) ON CONFLICT (account) DO NOTHING`, account)
	return err
}

func event(i int) payment {
	return payment{EventID: fmt.Sprintf("evt_%03d", i), Account: account, Amount: amount}
}

// deliver gives n copies of an event to as many workers at the same time, and counts what they say.
func deliver(ctx context.Context, db database, p payment, n int, counts map[outcome]int) error {
	var wg sync.WaitGroup
	outcomes, errs := make([]outcome, n), make([]error, n)
	for i := range n {
		wg.Go(func() { outcomes[i], errs[i] = handle(ctx, db, p) })
	}
	wg.Wait()
	for _, o := range outcomes {
		counts[o]++
	}
	return errors.Join(errs...)
}

// prove compares the effect with the events.
func prove(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	var balance int64
	err := pool.QueryRow(ctx, `SELECT balance FROM lookupfirst_accounts WHERE account = $1::text`, account).Scan(&balance)
	if err != nil {
		return err
	}
	if want := int64(events * amount); balance != want {
		return fmt.Errorf("the balance is %d, and %d events of %d make %d", balance, events, amount, want)
	}
	fmt.Fprintf(out, "balance %d = %d events of %d: each was applied once\n", balance, events, amount)
	return nil
}
