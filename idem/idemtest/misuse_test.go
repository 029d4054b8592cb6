package idemtest_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// handler is what the kit tests; maker makes one on a pool.
type (
	handler = func(context.Context, payment) error
	maker   = func(*pgxpool.Pool) handler
)

func onPool(m maker) func(*idemtest.DB) func(context.Context, payment) error {
	return func(db *idemtest.DB) func(context.Context, payment) error { return m(db.Pool()) }
}

// mailbox is an effect outside of the database.
type mailbox struct {
	mu    sync.Mutex
	mails []string
}

func (m *mailbox) send(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mails = append(m.mails, text)
}

func (m *mailbox) probe(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.mails...), nil
}

func otherConnection(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		_, err := idem.Run(ctx, pool, credits.Key(p.ID), func(ctx context.Context, _ pgx.Tx) error {
			if _, err := pool.Exec(ctx, `INSERT INTO ledger (event, amount) VALUES ($1, $2)`, p.ID, p.Amount); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE account = $1`, p.Account, p.Amount)
			return err
		})
		return err
	}
}

func swallowed(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		_, err := idem.Run(ctx, pool, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
			_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return credit(ctx, tx, p) })
			return nil
		})
		return err
	}
}

func markerFirst(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		tag, err := pool.Exec(ctx, `INSERT INTO seen (event) VALUES ($1) ON CONFLICT DO NOTHING`, p.ID)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return credit(ctx, tx, p) })
	}
}

func workFirst(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		var done bool
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM seen WHERE event = $1)`, p.ID).Scan(&done); err != nil ||
			done {
			return err
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return credit(ctx, tx, p) }); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, `INSERT INTO seen (event) VALUES ($1) ON CONFLICT DO NOTHING`, p.ID)
		return err
	}
}

func checkThenInsert(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var done bool
			if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ledger WHERE event = $1)`, p.ID).Scan(&done); err != nil ||
				done {
				return err
			}
			return credit(ctx, tx, p)
		})
	}
}

// byCode takes 23505 for a duplicate: of which constraint, is says.
func byCode(is func(error) bool) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO seen (event) VALUES ($1)`, p.ID); err != nil {
					return err
				}
				return credit(ctx, tx, p)
			})
			if is(err) {
				return nil
			}
			return err
		}
	}
}

func timeInKey(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		_, err := idem.Run(ctx, pool, credits.Key(p.ID, time.Now().Format(time.RFC3339Nano)),
			func(ctx context.Context, tx pgx.Tx) error {
				return credit(ctx, tx, p)
			})
		return err
	}
}

func noKey(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return credit(ctx, tx, p) })
	}
}

// latest keeps the newest amount of an account; guard is the condition of the update.
func latest(guard string) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			_, err := idem.Run(ctx, pool, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO accounts (account, balance, version) VALUES ($1, $2, $3)
					ON CONFLICT (account) DO UPDATE SET balance = EXCLUDED.balance, version = EXCLUDED.version `+guard, p.Account, p.Amount, p.Version)
				return err
			})
			return err
		}
	}
}

func mailInside(m *mailbox) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			_, err := idem.Run(ctx, pool, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
				m.send("receipt for " + p.ID)
				return credit(ctx, tx, p)
			})
			return err
		}
	}
}

func mailAfter(m *mailbox) maker {
	return func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(ctx)
			out, err := idem.Do(ctx, tx, credits.Key(p.ID),
				func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) })
			if err != nil {
				return err
			}
			if err := tx.Commit(ctx); err != nil {
				return err
			}
			if out == idem.Executed {
				m.send("receipt for " + p.ID)
			}
			return nil
		}
	}
}

func leaks(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := idem.Do(ctx, tx, credits.Key(p.ID),
			func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) }); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

func acksEarly(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := idem.Do(ctx, tx, credits.Key(p.ID),
			func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) }); err != nil {
			return err
		}
		_ = tx.Commit(ctx)
		return nil
	}
}

func keepsState(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		total := 0
		_, err := idem.Run(ctx, pool, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
			total += p.Amount
			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE account = $1`, p.Account, total)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO ledger (event, amount) VALUES ($1, $2)`, p.ID, p.Amount)
			return err
		})
		return err
	}
}

// web answers inside of the transaction, where early, or after it.
func web(early bool) func(*idemtest.DB) func(context.Context, payment) error {
	request := func(p payment) *http.Request {
		return httptest.NewRequest(http.MethodPost, "/"+p.ID+"/"+p.Account, strings.NewReader(strings.Repeat("x", p.Amount)))
	}
	return idemtest.HTTP(request, func(db *idemtest.DB) http.Handler {
		pool := db.Pool()
		mux := http.NewServeMux()
		mux.HandleFunc("POST /{id}/{account}", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			p := payment{ID: r.PathValue("id"), Account: r.PathValue("account"), Amount: len(body)}
			_, err := idem.Run(r.Context(), pool, credits.Key(p.ID), func(ctx context.Context, tx pgx.Tx) error {
				if err := credit(ctx, tx, p); err != nil {
					return err
				}
				if early {
					w.WriteHeader(http.StatusOK)
				}
				return nil
			})
			if err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		return mux
	})
}

// The misuses that the kit names. Each handler passes a test that delivers once, and fails the kit; mended it passes.
func TestMisuse(t *testing.T) {
	t.Parallel()
	mail := &mailbox{}
	late := &mailbox{}
	versions := []payment{{"evt_1", "carol", 10, 1}, {"evt_2", "carol", 30, 2}, {"evt_3", "carol", 20, 3}}
	for _, c := range []struct {
		name   string
		broken maker
		mended maker // nil: TestSound is it
		call   func(idemtest.Kit[payment], idemtest.TB)
		change func(*idemtest.Kit[payment])
		want   string
	}{
		{
			name: "another connection", broken: otherConnection, call: idemtest.Kit[payment].Crash,
			want: "write on another connection than tx: ledger",
		},
		{name: "swallowed error", broken: swallowed, call: idemtest.Kit[payment].Crash, want: "swallowed SQL error"},
		{
			name: "marker first", broken: markerFirst, call: idemtest.Kit[payment].Crash,
			want: "marker committed before the work: what marks the delivery as done (seen)",
		},
		{
			name: "work first", broken: workFirst, call: idemtest.Kit[payment].Crash,
			want: "work committed before its marker: ",
		},
		{
			name: "check then insert", broken: checkThenInsert, call: idemtest.Kit[payment].DoubleSubmit,
			want: "check-then-insert",
		},
		{
			name: "any 23505", broken: byCode(func(err error) bool { return pgerr.Is(err, "23505") }),
			mended: byCode(func(err error) bool { return pgerr.Duplicate(err, "seen_pkey") }),
			call:   idemtest.Kit[payment].Crash, want: "23505 swallowed without a constraint name",
		},
		{
			name: "time in the key", broken: timeInKey, call: idemtest.Kit[payment].DoubleSubmit,
			want: "time or random part in the key",
		},
		{name: "no key", broken: noKey, call: idemtest.Kit[payment].DoubleSubmit, want: "no key: "},
		{
			name: "unguarded upsert", broken: latest(""), mended: latest("WHERE accounts.version < EXCLUDED.version"),
			call: idemtest.Kit[payment].Reorder, change: func(k *idemtest.Kit[payment]) { k.Deliveries = versions },
			want: "unguarded upsert",
		},
		{
			name: "mail inside", broken: mailInside(mail), call: idemtest.Kit[payment].Crash,
			change: func(k *idemtest.Kit[payment]) { k.Probe = mail.probe }, want: "mail sent inside fn",
		},
		{
			name: "mail after", broken: mailAfter(late), call: idemtest.Kit[payment].Crash,
			change: func(k *idemtest.Kit[payment]) { k.Probe = late.probe }, want: "sent after the commit",
		},
		{name: "leaked transaction", broken: leaks, call: idemtest.Kit[payment].Crash, want: "leaked transaction"},
		{
			name: "acknowledged early", broken: acksEarly, call: idemtest.Kit[payment].Crash,
			want: "acknowledged before commit",
		},
		{
			name: "kept state", broken: keepsState, call: idemtest.Kit[payment].Crash,
			want: "fn keeps state from a rolled-back first attempt",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !idemtest.Child() && c.change == nil {
				ordinary(t, c.broken)
			}
			k := kit(t, onPool(c.broken))
			if c.change != nil {
				c.change(&k)
			}
			message := failure(t, func(tb idemtest.TB) { c.call(k, tb) })
			t.Log(message)
			if !idemtest.Child() {
				require.Contains(t, message, c.want)
				require.Contains(t, message, "to replay: IDEMTEST_SEED=")
				require.Contains(t, message, "the database is kept: idemtest_")
			}
			if c.mended != nil {
				k.Handler = onPool(c.mended)
				c.call(k, t)
			}
		})
	}
}

func TestMisuseHTTP(t *testing.T) {
	t.Parallel()
	message := failure(t, func(tb idemtest.TB) { kit(t, web(true)).DoubleSubmit(tb) })
	t.Log(message)
	require.Contains(t, message, "HTTP 2xx before COMMIT")
	kit(t, web(false)).DoubleSubmit(t)
}

// ordinary is the test that one writes: each event is delivered once, and then its effect is there.
func ordinary(t *testing.T, m maker) {
	t.Helper()
	pool := pgtest.Pool(t)
	require.NoError(t, setup(t.Context(), pool))
	handle := m(pool)
	for _, p := range payments {
		require.NoError(t, handle(t.Context(), p))
		var entries, balance int
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM ledger WHERE event = $1), (SELECT balance FROM accounts WHERE account = $2)`, p.ID, p.Account).Scan(&entries, &balance))
		require.Equal(t, 1, entries)
		require.Equal(t, p.Amount, balance)
	}
}
