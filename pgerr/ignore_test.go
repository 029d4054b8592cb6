package pgerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// ordersPool is a pool on a database with orders, which holds 'old', and a log of what was done.
func ordersPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE TABLE orders (id text CONSTRAINT orders_pkey PRIMARY KEY, ref text CONSTRAINT orders_ref_key UNIQUE)`,
		`CREATE TABLE log (what text)`,
		`INSERT INTO orders VALUES ('old', 'ref')`)
	return pool
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// order inserts an order after a line of the log.
func order(id string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO log VALUES ($1)`, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id)
		return err
	}
}

// fails returns a function that does some work and then returns err.
func fails(err error) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error { return errors.Join(order("half")(ctx, tx), err) }
}

// intact checks that tx can go on, that nothing of the call is in it, and that no savepoint was left behind.
func intact(t *testing.T, tx pgx.Tx) {
	t.Helper()
	require.Equal(t, 0, count(t, tx, `SELECT count(*) FROM log`))
	require.Equal(t, 1, count(t, tx, `SELECT count(*) FROM orders`))
	sp, err := tx.Begin(t.Context())
	require.NoError(t, err)
	_, err = sp.Exec(t.Context(), `RELEASE SAVEPOINT pgerr_ignore_duplicate`)
	require.Equal(t, "3B001", pgerr.Code(err), "the savepoint is still there: %v", err)
	require.NoError(t, sp.Rollback(t.Context()))
}

func TestIgnoreDuplicate(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for _, mode := range execModes {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			cfg := pool.Config().ConnConfig.Copy()
			cfg.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			require.NoError(t, err)
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			execAll(t, tx, `INSERT INTO log VALUES ('before')`)

			for _, id := range []string{"old", "new", "old", "new"} {
				duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "public.orders_pkey", order(id))
				require.NoError(t, err, id)
				seen := id == "old" || count(t, tx, `SELECT count(*) FROM log WHERE what = 'seen'`) == 1
				require.Equal(t, seen, duplicate, id)
				if id == "new" && !duplicate {
					execAll(t, tx, `INSERT INTO log VALUES ('seen')`)
				}
			}
			execAll(t, tx, `INSERT INTO log VALUES ('after')`)
			require.NoError(t, tx.Commit(t.Context()))

			require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM log`), "before, new, seen, after")
			require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM log WHERE what = 'new'`))
			require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM orders`))
			require.NoError(t, conn.Close(t.Context()))
			execAll(t, pool, `DELETE FROM log`, `DELETE FROM orders WHERE id = 'new'`)
		}
	}
}

// Every other error comes back as it is, and nothing of fn's work stays.
func TestIgnoreDuplicateOtherErrors(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	execAll(t, pool,
		`CREATE SCHEMA audit`,
		`CREATE TABLE audit.orders (id text CONSTRAINT orders_pkey PRIMARY KEY)`,
		`INSERT INTO audit.orders VALUES ('audited')`,
		`CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit.orders VALUES (new.id); RETURN new; END $$`,
		`CREATE TRIGGER audit BEFORE INSERT ON orders FOR EACH ROW WHEN (new.id = 'audited') EXECUTE FUNCTION audit()`)

	tx := begin(t, pool)
	for name, fn := range map[string]func(context.Context, pgx.Tx) error{
		"no rows":           fails(pgx.ErrNoRows),
		"own error":         fails(errSentinel),
		"own and duplicate": fails(errors.Join(plainError("23505"), errSentinel)),
		"another constraint": func(ctx context.Context, tx pgx.Tx) error {
			return run(ctx, tx, `INSERT INTO orders VALUES ('x', 'ref')`)
		},
		"an audit table": order("audited"),
		"syntax":         func(ctx context.Context, tx pgx.Tx) error { return run(ctx, tx, `INSERT`) },
		"raised by hand": func(ctx context.Context, tx pgx.Tx) error {
			return run(ctx, tx, `DO $$ BEGIN RAISE unique_violation USING CONSTRAINT = 'orders_pkey'; END $$`)
		},
		"duplicate, and the connection": func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(order("old")(ctx, tx), context.Canceled)
		},
	} {
		for _, constraint := range []string{"orders_pkey", "public.orders_pkey"} {
			var fnErr error
			duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, constraint, func(ctx context.Context, tx pgx.Tx) error {
				fnErr = fn(ctx, tx)
				return fnErr
			})
			require.False(t, duplicate, name)
			require.Error(t, err, name)
			require.Equal(t, fnErr, err, name)
			intact(t, tx)
		}
	}

	// The same error is a duplicate of the constraint that it names.
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "audit.orders_pkey", order("audited"))
	require.NoError(t, err)
	require.True(t, duplicate)
	intact(t, tx)
	require.NoError(t, tx.Commit(t.Context()))
}

func run(ctx context.Context, tx pgx.Tx, sql string) error {
	_, err := tx.Exec(ctx, sql)
	return err
}

// While another transaction holds the row: the call waits, and its outcome decides.
func TestIgnoreDuplicateConcurrent(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for _, commits := range []bool{true, false} {
		id := fmt.Sprint(commits)
		first, second := begin(t, pool), begin(t, pool)
		duplicate, err := pgerr.IgnoreDuplicate(t.Context(), first, "orders_pkey", order(id))
		require.NoError(t, err)
		require.False(t, duplicate)

		type result struct {
			duplicate bool
			err       error
		}
		done := make(chan result, 1)
		pid := second.Conn().PgConn().PID()
		go func() {
			d, err := pgerr.IgnoreDuplicate(t.Context(), second, "orders_pkey", order(id))
			done <- result{d, err}
		}()
		require.Eventually(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'`, pid) == 1
		}, 10*time.Second, 5*time.Millisecond)
		if commits {
			require.NoError(t, first.Commit(t.Context()))
		} else {
			require.NoError(t, first.Rollback(t.Context()))
		}
		require.Equal(t, result{duplicate: commits}, <-done)
		require.NoError(t, second.Commit(t.Context()))
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM log WHERE what = $1`, id))
	}
}

// Calls inside of calls, and inside of pgx's own nested transactions.
func TestIgnoreDuplicateNested(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	tx := begin(t, pool)
	insert := func(id string, then func(ctx context.Context, tx pgx.Tx) error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			if err := order(id)(ctx, tx); err != nil {
				return err
			}
			return then(ctx, tx)
		}
	}
	ignored := func(want bool, fn func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			duplicate, err := pgerr.IgnoreDuplicate(ctx, tx, "orders_pkey", fn)
			require.Equal(t, want, duplicate)
			return err
		}
	}
	nested := func(fn func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return fn(ctx, tx) })
		}
	}

	// The inner duplicate takes nothing of the outer call with it, and the outer one takes all of the inner.
	require.NoError(t, ignored(false, insert("a", ignored(true, order("old"))))(t.Context(), tx))
	require.NoError(t, ignored(true, insert("b", insert("c", order("old"))))(t.Context(), tx))
	require.NoError(t, ignored(true, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(ignored(false, order("d"))(ctx, tx), order("old")(ctx, tx))
	})(t.Context(), tx))
	require.NoError(t, nested(ignored(false, nested(insert("e", nested(ignored(true, order("old")))))))(t.Context(), tx))
	require.NoError(t, ignored(true, nested(insert("f", order("old"))))(t.Context(), tx))
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM log WHERE what IN ('a', 'e')`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM log`))
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM orders`))
}

// A batch in fn is one unit, as everything else in fn.
func TestIgnoreDuplicateBatch(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	tx := begin(t, pool)
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		for _, id := range []string{"x", "old", "y"} {
			b.Queue(`INSERT INTO orders (id) VALUES ($1)`, id)
		}
		return tx.SendBatch(ctx, b).Close()
	})
	require.NoError(t, err)
	require.True(t, duplicate)
	intact(t, tx)
}

// A deferred constraint is not checked in fn, unless fn asks for it.
func TestIgnoreDuplicateDeferred(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	execAll(t, pool, `CREATE TABLE late (id text CONSTRAINT late_key UNIQUE DEFERRABLE INITIALLY DEFERRED)`,
		`INSERT INTO late VALUES ('old')`)
	insert := func(ctx context.Context, tx pgx.Tx) error { return run(ctx, tx, `INSERT INTO late VALUES ('old')`) }

	tx := begin(t, pool)
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "late_key", insert)
	require.NoError(t, err)
	require.False(t, duplicate)
	err = tx.Commit(t.Context())
	require.True(t, pgerr.Duplicate(err, "public.late_key"))
	require.False(t, pgerr.CommitUnknown(err))

	tx = begin(t, pool)
	duplicate, err = pgerr.IgnoreDuplicate(t.Context(), tx, "late_key", func(ctx context.Context, tx pgx.Tx) error {
		if err := insert(ctx, tx); err != nil {
			return err
		}
		return run(ctx, tx, `SET CONSTRAINTS late_key IMMEDIATE`)
	})
	require.NoError(t, err)
	require.True(t, duplicate)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM late`))
}
