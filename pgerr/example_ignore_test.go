package pgerr_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// Two deliveries of one event in one transaction, which goes on after the duplicate.
func ExampleIgnoreDuplicate() {
	withExamplePool(func(ctx context.Context, pool *pgxpool.Pool) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			for range 2 {
				duplicate, err := pgerr.IgnoreDuplicate(ctx, tx, "payments_event_id_key",
					func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `INSERT INTO payments (event_id, amount) VALUES ($1, $2)`, "evt_1", 100)
						return err
					})
				if err != nil {
					return err
				}
				fmt.Println("duplicate:", duplicate)
			}
			var sum int
			err := tx.QueryRow(ctx, `SELECT sum(amount)::int FROM payments`).Scan(&sum)
			fmt.Println("booked:", sum)
			return err
		})
	})
	// Output:
	// duplicate: false
	// duplicate: true
	// booked: 100
}

// Three events in one round trip. The third never ran, because the second was there.
func ExampleSendBatch() {
	withExamplePool(func(ctx context.Context, pool *pgxpool.Pool) error {
		if _, err := pool.Exec(ctx, `INSERT INTO payments (event_id, amount) VALUES ('evt_2', 100)`); err != nil {
			return err
		}
		b := &pgx.Batch{}
		for _, id := range []string{"evt_1", "evt_2", "evt_3"} {
			b.Queue(`INSERT INTO payments (event_id, amount) VALUES ($1, 100)`, id)
		}
		results := pgerr.SendBatch(ctx, pool, b)
		for range 3 {
			_, err := results.Exec()
			fmt.Println(pgerr.Duplicate(err, "payments_event_id_key"), err == pgerr.ErrNotRun)
		}
		fmt.Println("kept:", results.Close() == nil)
		return nil
	})
	// Output:
	// false false
	// true false
	// false true
	// kept: false
}

// withExamplePool runs f on a database with an empty table of payments. Only needed for the examples.
func withExamplePool(f func(ctx context.Context, pool *pgxpool.Pool) error) {
	dsn, drop, err := pgtest.ExampleDSN()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer drop()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, `CREATE TABLE payments (event_id text NOT NULL CONSTRAINT payments_event_id_key UNIQUE, amount bigint NOT NULL)`)
	if err == nil {
		err = f(ctx, pool)
	}
	if err != nil {
		fmt.Println(err)
	}
}
