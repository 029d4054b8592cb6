package idemtest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// recorder is a TB that keeps what a failing test would print.
type recorder struct {
	t *testing.T

	mu     sync.Mutex
	failed string
	logs   []string
}

func (r *recorder) Helper()          {}
func (r *recorder) Name() string     { return r.t.Name() }
func (r *recorder) Cleanup(f func()) { r.t.Cleanup(f) }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs f with a recorder, and returns its message, or "".
func failure(t *testing.T, f func(idemtest.TB)) string {
	t.Helper()
	r := &recorder{t: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	for _, text := range r.logs {
		t.Log(text)
	}
	return r.failed
}

// payment is what the handlers of these tests are delivered.
type payment struct {
	ID      string
	Account string
	Amount  int
	Version int
}

var payments = []payment{{"evt_1", "alice", 100, 1}, {"evt_2", "bob", 250, 1}}

var credits = idem.Scope{Source: "payments", Operation: "credit"}

// schema has what the handlers write: a ledger without a unique constraint, accounts, and markers of the hand-made
// kind.
const schema = `
CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY, event text NOT NULL, amount int NOT NULL, at timestamptz NOT NULL DEFAULT now());
CREATE TABLE accounts (account text PRIMARY KEY, balance int NOT NULL DEFAULT 0, version int NOT NULL DEFAULT 0);
CREATE TABLE seen (event text PRIMARY KEY);
INSERT INTO accounts (account) VALUES ('alice'), ('bob')`

func setup(ctx context.Context, pool *pgxpool.Pool) error {
	if err := dedup.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, schema)
	return err
}

// kit describes a handler of payments. A child process brings no database of its own.
func kit(t testing.TB, handler func(db *idemtest.DB) func(context.Context, payment) error) idemtest.Kit[payment] {
	k := idemtest.Kit[payment]{Setup: setup, Handler: handler, Deliveries: payments}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	return k
}

// credit is the effect.
func credit(ctx context.Context, tx pgx.Tx, p payment) error {
	if _, err := tx.Exec(ctx, `INSERT INTO ledger (event, amount) VALUES ($1, $2)`, p.ID, p.Amount); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE account = $1`, p.Account, p.Amount)
	return err
}

// soundOn is a handler as it should be.
func soundOn(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		_, err := idem.Run(ctx, pool, credits.Key(p.ID),
			func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) })
		return err
	}
}

func sound(db *idemtest.DB) func(context.Context, payment) error { return soundOn(db.Pool()) }

func TestSound(t *testing.T) {
	t.Parallel()
	kit(t, sound).All(t)
}
