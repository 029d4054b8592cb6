package idem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
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
		_, err = pool.Exec(ctx, `CREATE TABLE subscriptions (id text PRIMARY KEY, activations int NOT NULL DEFAULT 0);
			INSERT INTO subscriptions (id) VALUES ('sub_1');
			CREATE TABLE charges (id text PRIMARY KEY, amount int NOT NULL)`)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); drop() }
}

var activations = idem.Scope{Source: "stripe", Operation: "activate-subscription"}

// handle is called for every delivery of an event, in a transaction that the caller owns.
func handle(ctx context.Context, tx pgx.Tx, eventID, subscription string) error {
	out, err := idem.Do(ctx, tx, activations.Key(eventID), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = $1`, subscription)
		return err
	})
	if err != nil {
		return err // roll back, and do not acknowledge: the event must come again
	}
	fmt.Println(eventID, out) // executed or duplicate: commit, then acknowledge
	return nil
}

func ExampleDo() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	for range 3 { // the provider delivers the event three times
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return handle(ctx, tx, "evt_1", "sub_1") })
		if err != nil {
			fmt.Println(err)
		}
	}
	var n int
	_ = pool.QueryRow(ctx, `SELECT activations FROM subscriptions WHERE id = 'sub_1'`).Scan(&n)
	fmt.Println("activations:", n)
	// Output:
	// evt_1 executed
	// evt_1 duplicate
	// evt_1 duplicate
	// activations: 1
}

func ExampleRun() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	activate := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = 'sub_1'`)
		return err
	}
	for range 2 {
		out, err := idem.Run(ctx, pool, activations.Key("evt_1"), activate)
		fmt.Println(out, err)
	}
	// Output:
	// executed <nil>
	// duplicate <nil>
}

// A key that comes again with another body is an error, not a duplicate.
func ExampleKey_WithPayload() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	for _, body := range []string{`{"amount":10}`, `{"amount":10}`, `{"amount":99}`} {
		key := activations.Key("evt_1").WithPayload([]byte(body))
		out, err := idem.Run(ctx, pool, key, func(context.Context, pgx.Tx) error { return nil })
		fmt.Println(out, errors.Is(err, idem.ErrPayloadMismatch))
	}
	// Output:
	// executed false
	// duplicate false
	// none true
}

// The parts of an id stay apart: a tenant cannot reach another one's keys by clever naming.
func ExampleScope_Key() {
	fmt.Println(activations.Key("tenant-1", "evt_1").ID())
	fmt.Println(activations.Key("tenant-1/evt_1").ID())
	fmt.Println(activations.Key("").Validate())
	// Output:
	// tenant-1/evt_1
	// tenant-1%2Fevt_1
	// idem: the key has an empty part
}

// A late retry whose row has been purged meanwhile is refused, not run again.
func ExampleKey_OccurredAt() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	signed := time.Now().Add(-60 * 24 * time.Hour) // as the sender states it, the same on every retry
	_, err := idem.Run(ctx, pool, activations.Key("evt_1").OccurredAt(signed),
		func(context.Context, pgx.Tx) error { return nil })
	fmt.Println(errors.Is(err, idem.ErrExpired), idem.Retryable(err))
	// Output: true false
}

// With MaxWait, a concurrent duplicate is told so instead of waiting for the first to end.
func ExampleOnce() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	once := idem.Once{MaxWait: 50 * time.Millisecond}
	_, _ = once.Run(ctx, pool, activations.Key("evt_1"), func(context.Context, pgx.Tx) error {
		// Another delivery comes meanwhile. It has a context of its own, and not the one that fn gets.
		_, err := once.Run(ctx, pool, activations.Key("evt_1"), func(context.Context, pgx.Tx) error { return nil })
		fmt.Println(errors.Is(err, idem.ErrInProgress), idem.Retryable(err))
		return nil
	})
	// Output: true true
}

// counters is an observer that counts. In a service they would be those of a metrics library, by scope and outcome.
type counters struct {
	mu sync.Mutex
	n  map[dedup.Outcome]int
}

func (c *counters) Observe(_ context.Context, e dedup.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[e.Outcome]++
}

func ExampleOnce_observer() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()

	seen := &counters{n: map[dedup.Outcome]int{}}
	once := idem.Once{Observer: seen}
	for range 3 { // delivered three times
		_, err := once.Run(ctx, pool, activations.Key("evt_1"), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE subscriptions SET activations = activations + 1 WHERE id = 'sub_1'`)
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(seen.n[dedup.Executed], seen.n[dedup.Duplicate])
	// Output: 1 2
}

// Effects that need no answer before they are committed travel with the claim and with COMMIT.
func ExampleOnce_Apply() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()

	for range 2 { // delivered twice
		effects := &pgx.Batch{}
		effects.Queue(`UPDATE subscriptions SET activations = activations + 1 WHERE id = $1`, "sub_1")
		effects.Queue(`NOTIFY activated`)
		out, err := idem.Once{}.Apply(ctx, pool, activations.Key("evt_1"), effects)
		if err != nil {
			fmt.Println(err) // do not acknowledge: the event must come again
			return
		}
		fmt.Println(out)
	}
	// Output:
	// executed
	// duplicate
}

// A consumer that gets messages in batches claims them together, and writes the effects of the new ones.
func ExampleOnce_DoMany() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()

	deliver := func(events ...string) {
		keys := make([]idem.Key, len(events))
		for i, event := range events {
			keys[i] = activations.Key(event)
		}
		var results []idem.Result
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			results, err = idem.Once{}.DoMany(ctx, tx, keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
				_, err := tx.Exec(ctx, `UPDATE subscriptions SET activations = activations + $1 WHERE id = 'sub_1'`, len(fresh))
				return err
			})
			return err
		})
		for i, r := range results {
			fmt.Println(events[i], r.Outcome, r.Err)
		}
		if err != nil {
			fmt.Println(err) // of the whole batch: it must come again
		}
	}
	deliver("evt_1", "evt_2")
	deliver("evt_2", "evt_3", "evt_3")
	// Output:
	// evt_1 executed <nil>
	// evt_2 executed <nil>
	// evt_2 duplicate <nil>
	// evt_3 executed <nil>
	// evt_3 duplicate <nil>
}
