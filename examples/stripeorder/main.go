// Command stripeorder feeds Stripe-like events in a random order, each up to three times, from several workers, and
// ends with every subscription in its newest state.
//
//	go run ./examples/stripeorder
//	go run ./examples/stripeorder -seed 7 -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// What to copy is apply.go. Two events of each subscription share a second, as the sender's clock counts no finer; a
// rank of the states, which only the application knows, settles them.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/upsert"
)

//go:embed schema.sql
var schema string

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

const (
	subscriptions = 50
	workers       = 8
)

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "the `number` that decides the order")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dsn, *seed, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stripeorder:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dsn string, seed uint64, out io.Writer) (err error) {
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
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	if err := upsert.Verify(ctx, pool, newest); err != nil {
		return err
	}

	events := deliveries(rand.New(rand.NewPCG(seed, 0)))
	fmt.Fprintf(out, "%d deliveries of %d subscriptions, in the order of -seed %d\n", len(events), subscriptions, seed)
	counts, err := feed(ctx, pool, events)
	if err != nil {
		return err
	}
	for _, o := range []upsert.Outcome{upsert.Inserted, upsert.Updated, upsert.Stale, upsert.Unchanged} {
		fmt.Fprintf(out, "%-10s %4d\n", o, counts[o])
	}
	return prove(ctx, pool, out)
}

// deliveries makes the events of all subscriptions, each once to three times, and shuffles them.
func deliveries(rng *rand.Rand) []Event {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Unix()
	var all []Event
	for n := range subscriptions {
		id := fmt.Sprintf("sub_%03d", n)
		for i, e := range []Event{
			{Status: "incomplete", Created: start},
			{Status: "active", Created: start, Plan: "pro"}, // in the same second
			{Status: "past_due", Created: start + 30*86400, Plan: "pro"},
			{Status: "active", Created: start + 31*86400, Plan: "pro"},
			{Status: "canceled", Created: start + 31*86400, Plan: "pro"}, // in the same second
		} {
			e.ID, e.Subscription = fmt.Sprintf("evt_%03d_%d", n, i), id
			for range 1 + rng.IntN(3) {
				all = append(all, e)
			}
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// feed applies the events from several workers at once.
func feed(ctx context.Context, pool *pgxpool.Pool, events []Event) (map[upsert.Outcome]int, error) {
	queue := make(chan Event, len(events))
	for _, e := range events {
		queue <- e
	}
	close(queue)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	counts := map[upsert.Outcome]int{}
	for range workers {
		wg.Go(func() {
			for e := range queue {
				outcome, err := apply(ctx, pool, e)
				mu.Lock()
				counts[outcome]++
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("event %s: %w", e.ID, err))
				}
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	return counts, failed
}

// prove counts the subscriptions that ended as they should.
func prove(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	var right, all int
	err := pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE status = 'canceled' AND plan = 'pro'), count(*)
		FROM stripeorder_subscriptions`).Scan(&right, &all)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d subscriptions ended canceled, as their newest event says\n", right, all)
	if right != all || all != subscriptions {
		return fmt.Errorf("%d subscriptions ended wrong, of %d expected", all-right, subscriptions)
	}
	return nil
}
