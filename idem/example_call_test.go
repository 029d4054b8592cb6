package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem"
)

// charge is what the provider answers.
type charge struct {
	ID     string
	Amount int
}

var charges = idem.Scope{Source: "shop", Operation: "charge"}

// Only needed for the examples: a provider that charges, and does not always say so.
type flakyProvider struct {
	charged map[string]charge
	silent  bool
}

func (p *flakyProvider) charge(_ context.Context, idempotencyKey string, amount int) (charge, error) {
	c, ok := p.charged[idempotencyKey]
	if !ok {
		c = charge{fmt.Sprintf("ch_%d", len(p.charged)+1), amount}
		p.charged[idempotencyKey] = c
	}
	if p.silent {
		return charge{}, errors.New("no answer in time")
	}
	return c, nil
}

// chargeCall is the call, made for an amount.
func chargeCall(p *flakyProvider, amount int) idem.Call[charge] {
	return idem.Call[charge]{
		Lease:     30 * time.Second,
		Remembers: 23 * time.Hour, // the provider forgets keys after a day
		Send: func(ctx context.Context, externalKey string) (charge, error) {
			if amount > 1000 {
				return charge{}, idem.Final(errors.New("the card's limit is 1000"))
			}
			return p.charge(ctx, externalKey, amount)
		},
		Apply: func(ctx context.Context, tx pgx.Tx, c charge) error {
			_, err := tx.Exec(ctx, `INSERT INTO charges (id, amount) VALUES ($1, $2)`, c.ID, c.Amount)
			return err
		},
	}
}

func ExampleCall() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	provider := &flakyProvider{charged: map[string]charge{}, silent: true}

	_, _, err := chargeCall(provider, 50).Run(ctx, pool, charges.Key("order-1"))
	fmt.Println(err) // charged or not? the order comes again
	provider.silent = false
	for range 2 {
		c, out, err := chargeCall(provider, 50).Run(ctx, pool, charges.Key("order-1"))
		fmt.Println(c.ID, out, err)
	}
	fmt.Println(len(provider.charged), "charge")

	for range 2 {
		_, _, err = chargeCall(provider, 5000).Run(ctx, pool, charges.Key("order-2"))
		var final *idem.FinalError
		fmt.Println(errors.As(err, &final), string(final.Value))
	}
	// Output:
	// no answer in time
	// ch_1 executed <nil>
	// ch_1 duplicate <nil>
	// 1 charge
	// true the card's limit is 1000
	// true the card's limit is 1000
}

// reconcile settles the calls that nobody knows the end of, by what the provider's books say.
func reconcile(ctx context.Context, pool *pgxpool.Pool, look func(externalKey string) (charge, bool)) error {
	open, err := idem.Once{}.Pending(ctx, pool, charges, 100)
	if err != nil {
		return err
	}
	for _, k := range open {
		r, out, err := idem.Once{}.Reserve(ctx, pool, k.Key, time.Minute)
		if errors.Is(err, idem.ErrInProgress) || out == idem.Duplicate {
			continue // somebody is at it, or was
		}
		if err != nil {
			return err
		}
		c, found := look(k.Key.External()) // only now: no attempt can come in between
		if !found {
			if err := r.Void(ctx, pool); err != nil {
				return err
			}
			fmt.Println(k.Key.ID(), "was not charged")
			continue
		}
		value, err := json.Marshal(c)
		if err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO charges (id, amount) VALUES ($1, $2)`, c.ID, c.Amount); err != nil {
				return err
			}
			return r.Confirm(ctx, tx, value)
		})
		if err != nil {
			return err
		}
		fmt.Println(k.Key.ID(), "was charged:", c.ID)
	}
	return nil
}

func ExampleOnce_Pending() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	provider := &flakyProvider{charged: map[string]charge{}, silent: true}

	call := chargeCall(provider, 50)
	call.Remembers = 0 // suppose that the provider knew no idempotency keys
	_, _, err := call.Run(ctx, pool, charges.Key("order-1"))
	fmt.Println(err)
	_, _, err = call.Run(ctx, pool, charges.Key("order-1"))
	fmt.Println(errors.Is(err, idem.ErrUnknown)) // for somebody to look

	err = reconcile(ctx, pool, func(externalKey string) (charge, bool) {
		c, ok := provider.charged[externalKey]
		return c, ok
	})
	fmt.Println(err)
	c, out, err := call.Run(ctx, pool, charges.Key("order-1"))
	fmt.Println(c.ID, out, err)
	// Output:
	// no answer in time
	// true
	// order-1 was charged: ch_1
	// <nil>
	// ch_1 duplicate <nil>
}

// Reserve and its Reservation are for what Call does not fit: here the answer comes later, and from elsewhere.
func ExampleOnce_Reserve() {
	ctx := context.Background()
	pool, done := examplePool(ctx)
	defer done()
	key := charges.Key("order-7")

	held, out, err := idem.Once{}.Reserve(ctx, pool, key, time.Minute)
	fmt.Println(out, held.Attempt, err)
	_, _, err = idem.Once{}.Reserve(ctx, pool, key, time.Minute) // delivered again meanwhile
	fmt.Println(errors.Is(err, idem.ErrInProgress))

	// The provider is called with key.External(). Its answer, and what it leads to, are committed together.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO charges (id, amount) VALUES ('ch_7', 50)`); err != nil {
			return err
		}
		return held.Confirm(ctx, tx, []byte("ch_7"))
	})
	fmt.Println(err)

	again, out, err := idem.Once{}.Reserve(ctx, pool, key, time.Minute)
	fmt.Println(out, string(again.Value), err)
	// Output:
	// executed 1 <nil>
	// true
	// <nil>
	// duplicate ch_7 <nil>
}
