package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// site is where a call inside of fn stands: the transaction that the caller of Do had (nil with Run), the context and
// the transaction that fn got, and a context that is not fn's.
type site struct {
	k         kit
	callers   Tx
	fn, other context.Context
	tx        Tx
}

const throughAnother = "Do in the fn of another key"

// inner are the calls of a key inside of that key's fn. Each must be refused before any SQL. Those with MaxWait would
// wait for themselves.
var inner = []struct {
	name string
	call func(s site, key idem.Key) error
}{
	{"Do by its ctx and tx", func(s site, key idem.Key) error {
		_, err := s.tx.Do(s.fn, Settings{}, key, effect("inner"))
		return err
	}},
	{"Do by its tx alone", func(s site, key idem.Key) error {
		_, err := s.tx.Do(s.other, Settings{}, key, effect("inner"))
		return err
	}},
	{"Do by a nested tx", func(s site, key idem.Key) error {
		return s.tx.Nested(s.other, func(tx Tx) error {
			return tx.Nested(s.other, func(tx Tx) error {
				_, err := tx.Do(s.other, Settings{}, key, effect("inner"))
				return err
			})
		})
	}},
	{"Do by its ctx alone", func(s site, key idem.Key) error {
		tx := s.callers
		if tx == nil {
			tx = s.k.begin("")
			defer func() { _ = tx.Rollback(s.other) }()
		}
		_, err := tx.Do(s.fn, Settings{MaxWait: 100 * time.Millisecond}, key, effect("inner"))
		return err
	}},
	{throughAnother, func(s site, key idem.Key) error {
		_, err := s.tx.Do(s.fn, Settings{}, scope.Key("between"), func(_ context.Context, tx Tx) error {
			_, err := tx.Do(s.other, Settings{}, key, effect("inner"))
			return err
		})
		return err
	}},
	{"Do with the table's schema", func(s site, key idem.Key) error {
		_, err := s.tx.Do(s.fn, Settings{Table: dedup.Table{Name: "public.processed_events"}}, key, effect("inner"))
		return err
	}},
	{"Do with a payload", func(s site, key idem.Key) error {
		_, err := s.tx.Do(s.fn, Settings{}, key.WithPayload([]byte("x")), effect("inner"))
		return err
	}},
	{"Returning.Do", func(s site, key idem.Key) error {
		_, _, err := s.tx.DoReturning(s.other, Settings{}, key, valued(effect("inner")))
		return err
	}},
	{"Forget", func(s site, key idem.Key) error { return s.tx.Forget(s.other, Settings{}, key) }},
	{"Forget by its ctx alone", func(s site, key idem.Key) error {
		tx := s.k.begin("")
		defer func() { _ = tx.Rollback(s.other) }()
		return tx.Forget(s.fn, Settings{}, key)
	}},
	{"Run", func(s site, key idem.Key) error {
		_, err := s.k.db.Run(s.fn, Settings{MaxWait: 100 * time.Millisecond}, key, effect("inner"))
		return err
	}},
	{"Returning.Run", func(s site, key idem.Key) error {
		_, _, err := s.k.db.RunReturning(s.fn, Settings{MaxWait: 100 * time.Millisecond}, key, valued(effect("inner")))
		return err
	}},
	{"Reserve", func(s site, key idem.Key) error {
		_, _, err := s.k.db.Reserve(s.fn, Settings{MaxWait: 100 * time.Millisecond}, key, time.Minute)
		return err
	}},
	{"Call", func(s site, key idem.Key) error {
		_, _, err := s.k.db.Call(s.fn, Call{
			Settings: Settings{MaxWait: 100 * time.Millisecond}, Lease: time.Minute,
			Send: func(context.Context, string) (Receipt, error) { return Receipt{}, nil },
		}, key)
		return err
	}},
	{"Run in a goroutine of fn's", func(s site, key idem.Key) error {
		return s.k.await(async(func() (idem.Outcome, error) {
			return s.k.db.Run(s.fn, Settings{MaxWait: 100 * time.Millisecond}, key, effect("inner"))
		})).err
	}},
}

// outer are the calls whose fn the others are made in.
var outer = []struct {
	name string
	call func(k kit, key idem.Key, fn func(site) error) error
}{
	{"Do", func(k kit, key idem.Key, fn func(site) error) error {
		tx := k.begin("")
		defer func() { _ = tx.Rollback(k.ctx) }()
		out, err := tx.Do(k.ctx, Settings{}, key,
			func(ctx context.Context, in Tx) error { return fn(site{k, tx, ctx, k.ctx, in}) })
		require.Zero(k, out)
		k.wantFailed(tx)
		return err
	}},
	{"Run", func(k kit, key idem.Key, fn func(site) error) error {
		out, err := k.db.Run(k.ctx, Settings{}, key,
			func(ctx context.Context, in Tx) error { return fn(site{k, nil, ctx, k.ctx, in}) })
		require.Zero(k, out)
		return err
	}},
	{"Returning.Do", func(k kit, key idem.Key, fn func(site) error) error {
		tx := k.begin("")
		defer func() { _ = tx.Rollback(k.ctx) }()
		_, out, err := tx.DoReturning(k.ctx, Settings{}, key, func(ctx context.Context, in Tx) (Receipt, error) {
			return Receipt{}, fn(site{k, tx, ctx, k.ctx, in})
		})
		require.Zero(k, out)
		k.wantFailed(tx)
		return err
	}},
	{"Returning.Run", func(k kit, key idem.Key, fn func(site) error) error {
		_, out, err := k.db.RunReturning(k.ctx, Settings{}, key, func(ctx context.Context, in Tx) (Receipt, error) {
			return Receipt{}, fn(site{k, nil, ctx, k.ctx, in})
		})
		require.Zero(k, out)
		return err
	}},
	{"Call", func(k kit, key idem.Key, fn func(site) error) error {
		_, out, err := k.db.Call(k.ctx, Call{
			Lease: time.Minute, Remembers: time.Hour,
			Send:  func(context.Context, string) (Receipt, error) { return Receipt{}, nil },
			Apply: func(ctx context.Context, in Tx, _ Receipt) error { return fn(site{k, nil, ctx, k.ctx, in}) },
		}, key)
		require.Zero(k, out)
		return err
	}},
}

// valued makes of an fn one that returns a value.
func valued(fn func(context.Context, Tx) error) func(context.Context, Tx) (Receipt, error) {
	return func(ctx context.Context, tx Tx) (Receipt, error) { return Receipt{}, fn(ctx, tx) }
}

// nesting holds what a key's own fn may do with that key: nothing that writes.
func nesting(t *testing.T, door Door) {
	for _, o := range outer {
		t.Run(o.name, func(t *testing.T) {
			k := open(t, door)
			for n, i := range inner {
				for _, swallowed := range []bool{false, true} {
					what := fmt.Sprintf("%s, swallowed: %v", i.name, swallowed)
					key := scope.Key("evt", fmt.Sprint(n, swallowed))
					var met error
					err := o.call(k, key, func(s site) error {
						require.NoError(t, effect("outer")(s.fn, s.tx))
						met = i.call(s, key)
						if i.name != throughAnother { // whose own fn has failed, and the transaction with it
							_, err := s.tx.Int(s.fn, `SELECT 1`)
							require.NoError(t, err, "%s: the refused call sent something", what)
						}
						if swallowed {
							return nil
						}
						return met
					})
					for _, err := range []error{met, err} {
						require.ErrorIs(t, err, idem.ErrNested, what)
						var own *idem.Error
						require.ErrorAs(t, err, &own, what)
						require.False(t, idem.Retryable(err), what)
						require.NotContains(t, err.Error(), "evt", what)
					}
					if !swallowed {
						require.Same(t, met, err, what)
					}
					k.wantEffects("outer", 0)
					k.wantEffects("inner", 0)
					if o.name != "Call" {
						k.wantKeys(0)
					}
				}
			}
		})
	}

	// A reservation that is over, in the fn of the claim that came after it: none of its moves can be right there.
	t.Run("Moves", func(t *testing.T) {
		k := open(t, door)
		r, _, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("evt_1"), time.Minute)
		require.NoError(t, err)
		require.NoError(t, k.db.Move(k.ctx, r, Move{Name: "void"}))
		for name, move := range map[string]func(ctx context.Context, tx Tx) error{
			"confirm": func(_ context.Context, tx Tx) error { return tx.Confirm(k.ctx, r, nil) },
			"fail":    func(ctx context.Context, _ Tx) error { return k.db.Move(ctx, r, Move{Name: "fail"}) },
			"extend": func(ctx context.Context, _ Tx) error {
				return k.db.Move(ctx, r, Move{Name: "extend", Lease: time.Minute})
			},
			"release": func(ctx context.Context, _ Tx) error { return k.db.Move(ctx, r, Move{Name: "release"}) },
			"void":    func(ctx context.Context, _ Tx) error { return k.db.Move(ctx, r, Move{Name: "void"}) },
		} {
			_, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				require.ErrorIs(t, move(ctx, tx), idem.ErrNested, name)
				return nil
			})
			require.ErrorIs(t, err, idem.ErrNested, name)
			k.wantKeys(0)
		}
	})

	// What is not the key that runs, or does not write it, or comes after fn has returned, is as it was.
	t.Run("Allowed", func(t *testing.T) {
		k := open(t, door)
		key := scope.Key("evt_1")
		var left site
		tx := k.begin("")
		out, err := tx.Do(k.ctx, Settings{}, key, func(ctx context.Context, in Tx) error {
			left = site{tx: in, fn: ctx}
			_, err := in.Lookup(ctx, Settings{}, key)
			require.NoError(t, err)
			for _, other := range []idem.Key{key.Derive("refund"), scope.Key("evt_2"), {}} {
				if other == (idem.Key{}) {
					other = idem.Scope{Source: "adyen", Operation: scope.Operation}.Key("evt_1")
				}
				out, err := in.Do(ctx, Settings{}, other, effect("other"))
				require.NoError(t, err)
				require.Equal(t, idem.Executed, out)
			}
			out, err := k.db.Run(ctx, Settings{}, scope.Key("evt_3"), effect("other"))
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			return effect("outer")(ctx, in)
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)

		// The context and the transaction of an fn that has returned.
		for _, tx := range []Tx{tx, left.tx} {
			for _, ctx := range []context.Context{k.ctx, left.fn} {
				out, err = tx.Do(ctx, Settings{}, key, k.never())
				require.NoError(t, err)
				require.Equal(t, idem.Duplicate, out)
			}
		}
		require.NoError(t, tx.Commit(k.ctx))
		k.wantEffects("outer", 1)
		k.wantEffects("other", 4)
		k.wantKeys(5)
		out, err = k.db.Run(left.fn, Settings{}, key, k.never())
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
	})

	// Goroutines with the context of the caller, and not of fn, are other deliveries: they wait.
	t.Run("Siblings", func(t *testing.T) {
		k := open(t, door)
		key := scope.Key("evt_1")
		var sibling <-chan answer
		out, err := k.db.Run(k.ctx, Settings{}, key, func(ctx context.Context, tx Tx) error {
			sibling = async(func() (idem.Outcome, error) { return k.db.Run(k.ctx, Settings{}, key, k.never()) })
			k.untilBlocked(1)
			return effect("a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.Equal(t, answer{idem.Duplicate, nil}, k.await(sibling))
		k.wantEffects("a", 1)
	})
}
