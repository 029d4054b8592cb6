package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// payment is a message: a charge of an order, or a refund of a part of it.
type payment struct {
	order, refund string // refund is empty for the charge
	amount        int
}

// key is the charge's, and for a refund derived from it.
func (p payment) key() idem.Key {
	charge := idem.Scope{Source: "shop", Operation: "charge"}.Key(p.order)
	if p.refund == "" {
		return charge
	}
	return charge.Derive("refund", p.refund)
}

func (p payment) ref() string { return p.order + "/" + p.refund }

// A charge and partial refunds of each order, delivered more than once, in any order, by workers at the same time,
// whose calls break off before and after the provider has booked: every sum is right, here and there.
func TestCompensation(t *testing.T) {
	t.Parallel()
	orders := 12
	if long {
		orders = 300
	}
	s := newSite(t)
	s.sql(`CREATE TABLE bookings (order_id text, refund text, amount int)`)
	r := seeded(t)
	bank := newProvider(-1)
	var faults, early, lost atomic.Int64
	errEarly, errBroken := errors.New("the order is not charged yet"), errors.New("broken off")

	call := func(p payment, fault int) idem.Call[receipt] {
		return idem.Call[receipt]{
			Lease: time.Hour, Remembers: 100 * time.Hour,
			Send: func(ctx context.Context, key string) (receipt, error) {
				if p.refund != "" && len(bank.look(p.order+"/")) == 0 {
					early.Add(1)
					return receipt{}, idem.Unsent(errEarly)
				}
				if fault == 1 {
					panic(errBroken)
				}
				got := bank.charge(key, p.ref(), p.amount)
				switch fault {
				case 2:
					panic(errBroken)
				case 3:
					return receipt{}, errBroken
				case 4: // it takes so long that another worker may take over
					if _, err := s.sound.Exec(s.ctx, `
						UPDATE processed_events SET lease_until = clock_timestamp()
						 WHERE key = $1 AND operation = $2 AND lease_until IS NOT NULL`, p.key().ID(), p.key().Scope().Operation); err != nil {
						return receipt{}, err
					}
				}
				return got, nil
			},
			Apply: func(ctx context.Context, tx pgx.Tx, got receipt) error {
				_, err := tx.Exec(ctx, `INSERT INTO bookings (order_id, refund, amount) VALUES ($1, $2, $3)`, p.order, p.refund,
					got.Amount)
				if err == nil && fault == 5 {
					err = errBroken
				}
				return err
			},
		}
	}
	deliver := func(p payment, fault int) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = r.(error)
			}
		}()
		_, _, err = call(p, fault).Run(s.ctx, s.sound, p.key())
		return err
	}

	var messages []payment
	want := map[string]int{}
	for i := range orders {
		order := fmt.Sprint("order ", i)
		parts := []payment{{order, "", 100}}
		for j := range r.IntN(4) {
			parts = append(parts, payment{order, fmt.Sprint("part ", j), -10 * (1 + r.IntN(3))})
		}
		for _, p := range parts {
			want[order] += p.amount
			for range 1 + r.IntN(3) {
				messages = append(messages, p)
			}
		}
	}
	r.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })

	// A queue that delivers again what was not acknowledged.
	queue := make(chan payment, len(messages))
	var left atomic.Int64
	left.Store(int64(len(messages)))
	for _, m := range messages {
		queue <- m
	}
	var wg sync.WaitGroup
	for range 4 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		wg.Go(func() {
			for p := range queue {
				fault := r.IntN(10) // five of them are none
				err := deliver(p, fault)
				again := true
				switch {
				case err == nil:
					again = false
				case errors.Is(err, errBroken):
					faults.Add(1)
				case errors.Is(err, idem.ErrLostLease):
					lost.Add(1)
				case !errors.Is(err, idem.ErrInProgress) && !errors.Is(err, errEarly):
					t.Error(err)
					again = false
				}
				if again {
					queue <- p
				} else if left.Add(-1) == 0 {
					close(queue)
				}
			}
		})
	}
	wg.Wait()

	got, banked := map[string]int{}, map[string]int{}
	rows, err := s.sound.Query(s.ctx, `SELECT order_id, sum(amount)::int FROM bookings GROUP BY order_id`)
	require.NoError(t, err)
	var order string
	var sum int
	_, err = pgx.ForEachRow(rows, []any{&order, &sum}, func() error { got[order] = sum; return nil })
	require.NoError(t, err)
	for _, e := range bank.ledger {
		order, _, _ := strings.Cut(e.Ref, "/")
		banked[order] += e.Amount
	}
	t.Logf("%d orders, %d messages, %d bookings; %d broken off, %d refunds before their charge, %d leases lost",
		orders, len(messages), len(bank.ledger), faults.Load(), early.Load(), lost.Load())
	require.Equal(t, want, got, "our sums")
	require.Equal(t, want, banked, "the provider's sums")
	require.Positive(t, faults.Load(), "or this proves nothing")
	require.Positive(t, early.Load(), "or this proves nothing")
}
