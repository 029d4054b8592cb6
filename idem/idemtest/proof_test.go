package idemtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// begins calls work in a transaction that it commits, or forgets to.
func begins(commit bool, work func(context.Context, pgx.Tx, payment) error) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			if err := work(ctx, tx, p); err != nil || !commit {
				return err
			}
			return tx.Commit(ctx)
		}
	}
}

func creditOnce(key func(payment) idem.Key) func(context.Context, pgx.Tx, payment) error {
	return func(ctx context.Context, tx pgx.Tx, p payment) error {
		_, err := idem.Do(ctx, tx, key(p), func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) })
		return err
	}
}

func byID(p payment) idem.Key { return credits.Key(p.ID) }

// undoesItsKey rolls back, in fn, to a savepoint from before the claim, and makes the effect after it.
func undoesItsKey(ctx context.Context, tx pgx.Tx, p payment) error {
	if _, err := tx.Exec(ctx, `SAVEPOINT s`); err != nil {
		return err
	}
	_, err := idem.Do(ctx, tx, byID(p), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `ROLLBACK TO s`); err != nil {
			return err
		}
		return credit(ctx, tx, p)
	})
	return err
}

// Of a handler that changes nothing, or takes two events for one, nothing can be shown. The kit says so at once,
// whichever of its parts is asked.
func TestClean(t *testing.T) {
	t.Parallel()
	var elsewhere *pgxpool.Pool
	if !idemtest.Child() {
		elsewhere = pgtest.Pool(t)
		require.NoError(t, setup(t.Context(), elsewhere))
	}
	const both = "delivery 2 of 2, {ID:evt_2 Account:bob Amount:250 Version:1}, was taken for a duplicate of delivery 1: "
	for _, c := range []struct {
		name   string
		broken maker
		change func(*idemtest.Kit[payment])
		want   string
	}{
		{
			name:   "does nothing",
			broken: func(*pgxpool.Pool) handler { return func(context.Context, payment) error { return nil } },
			want:   "sent no statement over the connections that Kit.Handler was given",
		},
		{
			name: "another pool", broken: func(*pgxpool.Pool) handler { return soundOn(elsewhere) },
			want: "sent no statement over the connections that Kit.Handler was given",
		},
		{
			name: "another pool on the copy", broken: func(pool *pgxpool.Pool) handler {
				return func(ctx context.Context, p payment) error {
					cfg := pool.Config().ConnConfig
					own, err := pgxpool.New(ctx, fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s sslmode=disable",
						cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database))
					if err != nil {
						return err
					}
					defer own.Close()
					return soundOn(own)(ctx, p)
				}
			}, want: "sent no statement over the connections that Kit.Handler was given",
		},
		{
			name: "never commits", broken: begins(false, creditOnce(byID)),
			want: "never commits: what it wrote was rolled back",
		},
		{
			name: "commits the first only", broken: func(pool *pgxpool.Pool) handler {
				return func(ctx context.Context, p payment) error {
					return begins(p.ID == payments[0].ID, creditOnce(byID))(pool)(ctx, p)
				}
			}, want: "delivery 2 of 2, {ID:evt_2 Account:bob Amount:250 Version:1}, with nothing in its way: never commits: ",
		},
		{
			name: "only looks", broken: func(pool *pgxpool.Pool) handler {
				return func(ctx context.Context, _ payment) error {
					var n int
					return pool.QueryRow(ctx, `SELECT count(*) FROM ledger`).Scan(&n)
				}
			}, want: "changed no row: ",
		},
		{
			name: "other tables", broken: soundOn, change: func(k *idemtest.Kit[payment]) { k.Tables = []string{"seen"} },
			want: "changed no row of the tables in Kit.Tables: ",
		},
		{
			name: "one key", broken: begins(true, creditOnce(func(payment) idem.Key { return credits.Key("payment") })),
			want: both + `both make the key (payments,credit,payment) of processed_events`,
		},
		{
			name: "one marker", broken: byCodeOf("payment"), want: both + `both write the row {"event":"payment"} of seen`,
		},
		{
			name: "one key, one effect", broken: begins(true, func(ctx context.Context, tx pgx.Tx, p payment) error {
				p.ID, p.Account, p.Amount = "payment", "alice", 1
				return creditOnce(byID)(ctx, tx, p)
			}), want: both + "both make the key ",
		},
	} {
		for name, call := range map[string]func(idemtest.Kit[payment], idemtest.TB){
			"DoubleSubmit": idemtest.Kit[payment].DoubleSubmit, "Crash": idemtest.Kit[payment].Crash,
			"Reorder": idemtest.Kit[payment].Reorder,
		} {
			switch c.name {
			case "does nothing", "another pool", "never commits", "one key": // of each of them
			default:
				if name != "DoubleSubmit" {
					continue // they begin alike
				}
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				k := kit(t, onPool(c.broken))
				if c.change != nil {
					c.change(&k)
				}
				message := failure(t, func(tb idemtest.TB) { call(k, tb) })
				t.Log(message)
				if !idemtest.Child() {
					require.Contains(t, message, c.want)
				}
			})
		}
	}
}

// byCodeOf marks every payment with the same event.
func byCodeOf(event string) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, `INSERT INTO seen (event) VALUES ($1) ON CONFLICT (event) DO NOTHING`, event)
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				return credit(ctx, tx, p)
			})
		}
	}
}

// Deliveries that rightly change nothing: the state is there already, or the event is not for this handler.
func TestCleanOfFew(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]maker{
		"same state": func(pool *pgxpool.Pool) handler {
			return func(ctx context.Context, _ payment) error {
				_, err := pool.Exec(ctx, `INSERT INTO accounts (account) VALUES ('carol') ON CONFLICT (account) DO NOTHING`)
				return err
			}
		},
		"not for it": func(pool *pgxpool.Pool) handler {
			return func(ctx context.Context, p payment) error {
				if p.Account != "alice" {
					return nil
				}
				return soundOn(pool)(ctx, p)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kit(t, onPool(m))
			k.DoubleSubmit(t)
			k.Reorder(t)
		})
	}
}

// The key that was rolled back without its effect is named, by whichever part finds it.
func TestEffectWithoutKey(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(idemtest.Kit[payment], idemtest.TB){
		"DoubleSubmit": idemtest.Kit[payment].DoubleSubmit, "Crash": idemtest.Kit[payment].Crash,
		"Concurrent": idemtest.Kit[payment].Concurrent, "Load": func(k idemtest.Kit[payment], tb idemtest.TB) { k.Load(tb) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			message := failure(t, func(tb idemtest.TB) { call(kit(t, onPool(begins(true, undoesItsKey))), tb) })
			t.Log(message)
			if !idemtest.Child() {
				require.Contains(t, message, "the effect is there and no key is: ")
			}
		})
	}
}

// A table of the user's own that has the name of package dedup's is compared like any other.
func TestHomeMadeTable(t *testing.T) {
	t.Parallel()
	k := kit(t, onPool(func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, `INSERT INTO processed_events (event_id) VALUES ($1) ON CONFLICT (event_id) DO NOTHING`,
					p.ID)
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				return credit(ctx, tx, p)
			})
		}
	}))
	k.Constraints = []string{"processed_events_pkey"}
	k.Setup = func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, schema+`; CREATE TABLE processed_events (event_id text PRIMARY KEY)`)
		return err
	}
	k.DoubleSubmit(t)
	k.Backed(t)
}
