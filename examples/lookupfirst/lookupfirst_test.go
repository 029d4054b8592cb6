package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func prepared(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	require.NoError(t, prepare(t.Context(), pool))
	return pool
}

// number returns the result of a query for one number.
func number(t *testing.T, pool *pgxpool.Pool, sql string) (n int64) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

const (
	balance  = `SELECT balance FROM lookupfirst_accounts`
	payments = `SELECT count(*) FROM lookupfirst_payments`
)

// lookTogether is a database whose lookups answer only when as many callers as there are workers have looked. So each
// of them has looked before any has written.
type lookTogether struct {
	*pgxpool.Pool
	all *sync.WaitGroup
}

func (db lookTogether) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return rowTogether{db.Pool.QueryRow(ctx, sql, args...), db.all}
}

type rowTogether struct {
	pgx.Row
	all *sync.WaitGroup
}

func (r rowTogether) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	r.all.Done()
	r.all.Wait()
	return err
}

// deliverTogether is deliver for two workers that both look first.
func deliverTogether(t *testing.T, pool *pgxpool.Pool, p payment) map[outcome]int {
	t.Helper()
	db := lookTogether{pool, &sync.WaitGroup{}}
	db.all.Add(workers)
	counts := map[outcome]int{}
	require.NoError(t, deliver(t.Context(), db, p, workers, counts))
	return counts
}

// Two workers have a copy each, and neither finds the other's row: the constraint decides.
func TestTwoWorkersTwoCopies(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	for i := range 20 {
		require.Equal(t, map[outcome]int{applied: 1, refused: 1}, deliverTogether(t, pool, event(i)))
		require.EqualValues(t, (i+1)*amount, number(t, pool, balance))
		require.EqualValues(t, i+1, number(t, pool, payments))

		counts := map[outcome]int{}
		require.NoError(t, deliver(t.Context(), pool, event(i), 2, counts))
		require.Equal(t, map[outcome]int{known: 2}, counts, "later copies are the lookup's")
	}
}

// The same handler without the constraint: the lookup alone lets both through.
func TestLookupAloneIsNotEnough(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	_, err := pool.Exec(t.Context(), `ALTER TABLE lookupfirst_payments DROP CONSTRAINT `+onePerEvent)
	require.NoError(t, err)
	require.Equal(t, map[outcome]int{applied: 2}, deliverTogether(t, pool, event(0)))
	require.EqualValues(t, 2*amount, number(t, pool, balance), "applied twice")
	require.EqualValues(t, 2, number(t, pool, payments))
}

// The first worker fails after its insert: the second, which waits for it, applies the event.
func TestFirstWorkerRollsBack(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	first, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = first.Rollback(context.Background()) }()
	p := event(0)
	_, err = first.Exec(t.Context(), record, p.EventID, p.Account, p.Amount)
	require.NoError(t, err)

	type result struct {
		outcome outcome
		err     error
	}
	second := make(chan result, 1)
	go func() {
		o, err := handle(t.Context(), pool, p)
		second <- result{o, err}
	}()
	require.Eventually(t, func() bool {
		return number(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, first.Rollback(t.Context()))
	require.Equal(t, result{outcome: applied}, <-second)
	require.EqualValues(t, amount, number(t, pool, balance))
}

// What is not that constraint is an error, and nothing is applied.
func TestOtherErrors(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE other (account text CONSTRAINT other_key UNIQUE);
		INSERT INTO other VALUES ('`+account+`');
		CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO other VALUES (new.account); RETURN new; END $$`)
	require.NoError(t, err)

	_, err = handle(t.Context(), pool, payment{EventID: "evt", Account: account, Amount: -1})
	require.Equal(t, "23514", pgerr.Code(err))
	_, err = handle(t.Context(), pool, payment{EventID: "evt", Account: "none", Amount: 1})
	require.Equal(t, "23503", pgerr.Code(err))
	_, err = pool.Exec(t.Context(),
		`CREATE TRIGGER other BEFORE UPDATE ON lookupfirst_accounts FOR EACH ROW EXECUTE FUNCTION other()`)
	require.NoError(t, err)
	_, err = handle(t.Context(), pool, event(0))
	require.Equal(t, "23505", pgerr.Code(err), "of a table that a trigger writes to")
	require.EqualValues(t, 0, number(t, pool, balance))
	require.EqualValues(t, 0, number(t, pool, payments))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = handle(ctx, pool, event(0))
	require.ErrorIs(t, err, context.Canceled)
}

// The program, twice on one database: the second run applies nothing.
func TestRun(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	var first, second strings.Builder
	require.NoError(t, run(t.Context(), dsn, &first))
	require.Contains(t, first.String(), "   100 applied\n")
	require.Contains(t, first.String(), "balance 1000 = 100 events of 10: each was applied once\n")
	require.NoError(t, run(t.Context(), dsn, &second))
	require.Contains(t, second.String(), "     0 applied\n   300 found by the lookup\n     0 refused")

	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `UPDATE lookupfirst_accounts SET balance = balance + 10`)
	require.NoError(t, err)
	require.Error(t, run(t.Context(), dsn, &second), "an effect too many is noticed")
}
