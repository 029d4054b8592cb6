package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem"
)

// orders are the keys of sagas; the key of each step, and of each compensation, is derived from its order's.
var orders = idem.Scope{Source: "saga-example", Operation: "order"}

const (
	lease     = time.Second    // longer than a service takes; after a crash, a step is blocked for as long
	remembers = 23 * time.Hour // the services keep keys for a day
)

type order struct {
	ID, Product   string
	Amount        int64
	Card, Address string
}

// saga makes an order across three services: the stock in our database, payment and shipping behind HTTP.
//
// There is no log of its progress but the keys. Every step is idempotent, and gives the same answer again, a refusal
// too; so whoever finds an order pending, after a crash, say, runs its saga from the beginning, and comes to where it
// was.
type saga struct {
	pool              *pgxpool.Pool
	payment, shipping string // URLs
}

// step is a step and what undoes it.
type step struct {
	do, undo func(context.Context, order) error
}

func (s saga) steps() []step {
	return []step{
		{s.takeStock, s.putBack},
		{s.pay, s.refund},
		{s.ship, nil}, // the last one: when it is done, all is
	}
}

// run makes all steps, or undoes those before one that is refused, the last first. After any other error it is run
// again.
func (s saga) run(ctx context.Context, o order) error {
	steps := s.steps()
	for i, st := range steps {
		err := st.do(ctx, o)
		var refused *idem.FinalError
		if errors.As(err, &refused) {
			for i--; i >= 0; i-- {
				if err := steps[i].undo(ctx, o); err != nil {
					return fmt.Errorf("order %s, undo step %d: %w", o.ID, i, err)
				}
			}
			return s.end(ctx, o, "undone")
		}
		if err != nil {
			return fmt.Errorf("order %s, step %d: %w", o.ID, i, err)
		}
	}
	return s.end(ctx, o, "done")
}

// end can be repeated as it is.
func (s saga) end(ctx context.Context, o order, state string) error {
	_, err := s.pool.Exec(ctx, `UPDATE saga_orders SET state = $2::text WHERE id = $1::text`, o.ID, state)
	return err
}

func (s saga) takeStock(ctx context.Context, o order) error {
	return s.moveStock(ctx, o, "take stock", -1)
}

func (s saga) putBack(ctx context.Context, o order) error { return s.moveStock(ctx, o, "put back", 1) }

// moveStock is an effect in our own database: the key is in the same transaction.
func (s saga) moveStock(ctx context.Context, o order, operation string, pieces int64) error {
	key := orders.Key(o.ID).Derive(operation)
	_, err := idem.Run(ctx, s.pool, key, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE saga_stock SET pieces = pieces + $2::bigint WHERE product = $1::text`, o.Product,
			pieces)
		if err == nil && tag.RowsAffected() == 0 {
			err = errors.New("there is no such product")
		}
		return err
	})
	return err
}

func (s saga) pay(ctx context.Context, o order) error {
	return s.call(ctx, o, "pay", s.payment, request{o.ID, o.Amount, o.Card})
}

func (s saga) refund(ctx context.Context, o order) error {
	return s.call(ctx, o, "refund", s.payment, request{o.ID, -o.Amount, o.Card})
}

func (s saga) ship(ctx context.Context, o order) error {
	return s.call(ctx, o, "ship", s.shipping, request{o.ID, 1, o.Address})
}

// request is what a service is asked for.
type request struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
	To     string `json:"to"` // a card, an address
}

// call is an effect at somebody else's: the key is passed on.
func (s saga) call(ctx context.Context, o order, operation, url string, r request) error {
	_, _, err := idem.Call[json.RawMessage]{
		Lease:     lease,
		Remembers: remembers,
		Send:      func(ctx context.Context, key string) (json.RawMessage, error) { return send(ctx, url, key, r) },
	}.Run(ctx, s.pool, orders.Key(o.ID).Derive(operation))
	return err
}

// send asks a service. Only its clear refusal is final: after anything else it may have done what it was asked for.
func send(ctx context.Context, url, key string, r request) (answer json.RawMessage, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, idem.Unsent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, idem.Unsent(err)
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return answer, json.NewDecoder(resp.Body).Decode(&answer)
	case http.StatusUnprocessableEntity:
		return nil, idem.Final(errors.New("refused"))
	}
	return nil, errors.New("the service answered " + resp.Status)
}
