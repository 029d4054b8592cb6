package upsert_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
	"github.com/pgonce/pgonce/upsert"
)

// meet makes call write an event's row while a rival commits the same event, behind the look for a conflict and before
// the entry in another unique index: what two deliveries at once do by chance. An index that waits makes it certain.
func meet(t *testing.T, pool *pgxpool.Pool, call func() error) error {
	t.Helper()
	ctx := context.Background()
	exec(t, pool, "TRUNCATE orders")
	gate, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer gate.Release()
	exec(t, gate, "SELECT pg_advisory_lock(1)")
	done := make(chan error, 1)
	go func() { done <- call() }()
	for end := time.Now().Add(30 * time.Second); !get[bool](t, pool,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"); {
		require.True(t, time.Now().Before(end), "the call never came to the index that waits")
	}
	rival, err := pool.Begin(ctx)
	require.NoError(t, err)
	exec(t, rival, "SET LOCAL test.quick = 'on'")
	exec(t, rival, "INSERT INTO orders VALUES ('1', 'new', '2026-03-01 12:00Z', 1)")
	require.NoError(t, rival.Commit(ctx))
	exec(t, gate, "SELECT pg_advisory_unlock(1)")
	return <-done
}

const slowIndex = `
	CREATE FUNCTION slow(s text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$BEGIN
	  IF current_setting('test.quick', true) IS DISTINCT FROM 'on' THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
	  RETURN s;
	END$$;
	CREATE TABLE orders (id text NOT NULL, status text, at timestamptz, rank int);
	CREATE UNIQUE INDEX other ON orders (slow(status));
	ALTER TABLE orders ADD PRIMARY KEY (id)`

// The same event twice at once, on a table with another unique constraint: outside of a transaction it is tried again
// inside, and in one the error says that the transaction may be run again.
func TestSameEventTwiceMeetsAnotherConstraint(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, slowIndex, pgx.QueryExecModeSimpleProtocol)
	event := order{"1", "new", noon, 1}
	one := func(db upsert.DB) (upsert.Outcome, error) {
		res, err := orders.Exec(ctx, db, event)
		return res.Outcome, err
	}
	many := func(db upsert.DB) (o upsert.Outcome, err error) {
		_, err = orders.ExecMany(ctx, db, slices.Values([]order{event}),
			func(_ int, r upsert.Result[order]) { o = r.Outcome })
		return o, err
	}
	counted := func(db upsert.DB) (upsert.Outcome, error) {
		sum, err := orders.ExecMany(ctx, db, slices.Values([]order{event}), nil)
		return map[bool]upsert.Outcome{true: upsert.Unchanged}[sum == upsert.Summary{Unchanged: 1}], err
	}
	calls := map[string]func(upsert.DB) (upsert.Outcome, error){"one": one, "many": many, "counted": counted}
	for name, call := range calls {
		for _, d := range drivers(t, cfg) {
			var outcome upsert.Outcome
			err := meet(t, pool, func() (err error) { outcome, err = call(d.db); return err })
			require.NoError(t, err, "%s, %s", name, d.name)
			require.Equal(t, upsert.Unchanged, outcome, "%s, %s", name, d.name)
		}
		inTransaction := map[string]func(run func(upsert.DB) error) error{
			"pgx": func(run func(upsert.DB) error) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return run(tx) })
			},
		}
		for _, driver := range []string{"pgx", "postgres"} {
			db, err := sql.Open(driver, cfg.ConnString())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			inTransaction["database/sql with "+driver] = func(run func(upsert.DB) error) error {
				tx, err := db.BeginTx(ctx, nil)
				require.NoError(t, err)
				if err := run(upsert.SQL(tx)); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				return tx.Commit()
			}
		}
		for driver, transaction := range inTransaction {
			var outcome upsert.Outcome
			run := func(db upsert.DB) (err error) { outcome, err = call(db); return err }
			err := meet(t, pool, func() error { return transaction(run) })
			require.ErrorIs(t, err, upsert.ErrOtherConstraint, "%s, %s", name, driver)
			require.Equal(t, "23505", pgerr.Code(err), "%s, %s", name, driver)
			require.Equal(t, "other", pgerr.Constraint(err))
			require.True(t, pgerr.Retryable(err), "%s, %s", name, driver)
			require.NoError(t, transaction(run))
			require.Equal(t, upsert.Unchanged, outcome)
		}
	}
}

// A clash that stays is told, and what it costs is bounded.
func TestClashWithAnotherConstraintStays(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns+", CONSTRAINT one_per_status UNIQUE (status)")
		exec(t, pool, "CREATE SEQUENCE asked")
		exec(t, pool, "ALTER TABLE orders ADD n bigint DEFAULT nextval('asked'), ADD EXCLUDE (rank WITH =) WHERE (rank > 5)")
		_, err := run(orders, order{"1", "taken", noon, 6})
		require.NoError(t, err)
		for _, clash := range []order{{"2", "taken", noon, 1}, {"2", "free", noon, 6}} {
			before := get[int](t, pool, "SELECT last_value FROM asked")
			_, err = run(orders, clash)
			require.ErrorIs(t, err, upsert.ErrOtherConstraint)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr)
			require.Empty(t, pgErr.Detail)
			// Alone: once, and twice again. As a batch of one, it was counted before, in a transaction that fails at once.
			require.LessOrEqual(t, get[int](t, pool, "SELECT last_value FROM asked")-before, 4)
		}
	})
}

// By chance, from many workers: the event is applied once, and no call fails.
func TestSameEventFromManyWorkers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE orders (id text, status text UNIQUE, at timestamptz, rank int)")
	exec(t, pool, "ALTER TABLE orders ADD PRIMARY KEY (id)")
	errs := make(chan error, 10_000)
	for round := range 150 {
		var wg sync.WaitGroup
		var events []order
		for i := range 5 {
			id := fmt.Sprintf("%d-%d", round, i)
			events = append(events, order{id, id, noon, 1})
		}
		for w := range 4 {
			wg.Go(func() {
				if w%2 == 0 {
					_, err := orders.ExecMany(ctx, pool, slices.Values(events), nil)
					errs <- err
					return
				}
				for _, e := range events {
					_, err := orders.Exec(ctx, pool, e)
					errs <- err
				}
			})
		}
		wg.Wait()
	}
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}
