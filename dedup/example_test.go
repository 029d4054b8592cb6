package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// exampleDatabase returns a pool on a new and empty database; only needed here.
func exampleDatabase(ctx context.Context) (*pgxpool.Pool, func()) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return pool, func() { pool.Close(); drop() }
}

// A service migrates when it is deployed, as the role that owns the table. It may do so again and again.
func ExampleMigrate() {
	ctx := context.Background()
	pool, done := exampleDatabase(ctx)
	defer done()

	events := dedup.Table{Name: "stripe_events", Retention: 60 * 24 * time.Hour}
	fmt.Println(dedup.Migrate(ctx, pool, events))
	fmt.Println(dedup.Migrate(ctx, pool, events))
	// Output:
	// <nil>
	// <nil>
}

// A service verifies when it starts, as the role that it runs as, and does not start when the table proves nothing.
func ExampleVerify() {
	ctx := context.Background()
	pool, done := exampleDatabase(ctx)
	defer done()

	if err := dedup.Migrate(ctx, pool); err != nil {
		fmt.Println(err)
	}
	fmt.Println(dedup.Verify(ctx, pool))

	// Somebody takes the constraint away.
	_, _ = pool.Exec(ctx, `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
	var unsound *dedup.VerifyError
	if errors.As(dedup.Verify(ctx, pool), &unsound) {
		for _, p := range unsound.Problems {
			fmt.Println(p.Kind)
		}
	}
	// Output:
	// <nil>
	// constraint missing
}

// Every process of a service runs a Cleaner; of several that meet one works.
func ExampleCleaner() {
	ctx, stop := context.WithCancel(context.Background())
	pool, done := exampleDatabase(ctx)
	defer done()
	if err := dedup.Migrate(ctx, pool); err != nil {
		fmt.Println(err)
	}
	// A key that was claimed 40 days ago: the retention is 35.
	_, _ = pool.Exec(ctx, `INSERT INTO processed_events (source, operation, key, processed_at)
		VALUES ('stripe', 'activate', 'evt_1', now() - interval '40 days')`)

	cleaner := dedup.Cleaner{
		Interval: 10 * time.Millisecond, // usually an hour
		Done: func(_ context.Context, s dedup.Stats, err error) {
			fmt.Println(s.Deleted, err)
			stop() // for the example
		},
	}
	err := cleaner.Run(ctx, pool)
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// 1 <nil>
	// true
}
