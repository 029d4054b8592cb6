package pgerr_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// A panic and runtime.Goexit, with a context that is done, too. The caller of both commits all the same.
func TestIgnoreDuplicateLeaves(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for name, leave := range map[string]func(){
		"panic":  func() { panic("fn's own") },
		"Goexit": runtime.Goexit,
	} {
		for _, cancels := range []bool{false, true} {
			tx := begin(t, pool)
			execAll(t, tx, `CREATE TEMP TABLE mine (id int) ON COMMIT DROP`)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan any)
			go func() {
				defer func() { ended <- recover() }()
				_, _ = pgerr.IgnoreDuplicate(ctx, tx, "orders_pkey", func(ctx context.Context, tx pgx.Tx) error {
					if err := order("half")(ctx, tx); err != nil {
						return err
					}
					if cancels {
						cancel()
					}
					leave()
					return nil
				})
			}()
			if got := <-ended; name == "panic" {
				require.Equal(t, "fn's own", got)
			}
			cancel()
			intact(t, tx)
			require.Equal(t, 0, count(t, tx, `SELECT count(*) FROM mine`), "the caller's own work")
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM orders`))
		}
	}
}

// The context ends in fn: what fn did does not stay for the caller's COMMIT.
func TestIgnoreDuplicateContext(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for name, result := range map[string]error{"error": errSentinel, "nil": nil} {
		tx := begin(t, pool)
		ctx, cancel := context.WithCancel(t.Context())
		duplicate, err := pgerr.IgnoreDuplicate(ctx, tx, "orders_pkey", func(ctx context.Context, tx pgx.Tx) error {
			err := order("half")(ctx, tx)
			cancel()
			return errors.Join(err, result)
		})
		require.False(t, duplicate, name)
		require.Error(t, err, name)
		if result == nil {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.ErrorIs(t, err, result)
		}
		intact(t, tx)
		require.NoError(t, tx.Commit(t.Context()))
	}

	// Before the call nothing happens at all.
	tx := begin(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := pgerr.IgnoreDuplicate(ctx, tx, "orders_pkey", never(t))
	require.ErrorIs(t, err, context.Canceled)
	intact(t, tx)
}

func never(t *testing.T) func(context.Context, pgx.Tx) error {
	return func(context.Context, pgx.Tx) error {
		t.Error("fn was called")
		return nil
	}
}

// fn returns nil and must not have: an error, and tx can go on.
func TestIgnoreDuplicateMisuse(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	tx := begin(t, pool)
	for name, test := range map[string]struct {
		fn   func(ctx context.Context, tx pgx.Tx) error
		code string
	}{
		"swallowed a duplicate": {
			func(ctx context.Context, tx pgx.Tx) error { _ = order("old")(ctx, tx); return nil },
			"25P02",
		},
		"swallowed another error": {func(ctx context.Context, tx pgx.Tx) error {
			_ = order("half")(ctx, tx)
			_ = run(ctx, tx, `SELECT 1/0`)
			return nil
		}, "25P02"},
		"commits": {func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, order("half")(ctx, tx))
			require.Error(t, tx.Commit(ctx))
			return nil
		}, ""},
		"rolls back": {func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, order("half")(ctx, tx))
			require.Error(t, tx.Rollback(ctx))
			return nil
		}, ""},
	} {
		duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", test.fn)
		require.False(t, duplicate, name)
		require.Error(t, err, name)
		require.Equal(t, test.code, pgerr.Code(err), "%s: %v", name, err)
		require.False(t, pgerr.Duplicate(err, "orders_pkey"), name)
		intact(t, tx)
	}

	// A deferred Rollback by habit does no harm where fn fails anyway.
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", func(ctx context.Context, tx pgx.Tx) error {
		defer func() { _ = tx.Rollback(ctx) }()
		return order("old")(ctx, tx)
	})
	require.NoError(t, err)
	require.True(t, duplicate)
	intact(t, tx)

	for _, bad := range []string{"", ".", "a.b.c", `"a`, "a\x00b", "\xff"} {
		_, err := pgerr.IgnoreDuplicate(t.Context(), tx, bad, never(t))
		require.Error(t, err, bad)
		intact(t, tx)
	}
	require.NoError(t, tx.Commit(t.Context()))
	_, err = pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", never(t))
	require.ErrorIs(t, err, pgx.ErrTxClosed)

	tx = begin(t, pool)
	require.Error(t, run(t.Context(), tx, `SELECT 1/0`))
	_, err = pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", never(t))
	require.Equal(t, "25P02", pgerr.Code(err))
}

// fn ends the transaction behind the call's back, or leaves it in a state in which nothing can be rolled back. Nothing
// half done may be committed, and the pool gets its connection back.
func TestIgnoreDuplicateBeyondRepair(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for name, test := range map[string]struct {
		fn     func(outer pgx.Tx) func(ctx context.Context, tx pgx.Tx) error
		closed bool // the connection
	}{
		"commits the caller's": {func(outer pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, _ pgx.Tx) error { return outer.Commit(ctx) }
		}, false},
		"rolls the caller's back": {func(outer pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(order("old")(ctx, tx), outer.Rollback(ctx))
			}
		}, false},
		"rolls the caller's back, another error": {func(outer pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error { return errors.Join(errSentinel, outer.Rollback(ctx)) }
		}, false},
		"COMMIT": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error { return run(ctx, tx, `COMMIT`) }
		}, true},
		"ROLLBACK": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(order("half")(ctx, tx), run(ctx, tx, `ROLLBACK`))
			}
		}, true},
		"ROLLBACK AND CHAIN": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(run(ctx, tx, `ROLLBACK AND CHAIN`), order("half")(ctx, tx))
			}
		}, true},
		"leaves rows open": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `INSERT INTO log SELECT 'half' FROM generate_series(1, 10) RETURNING what`)
				return err
			}
		}, true},
		"leaves rows open and fails": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `INSERT INTO log SELECT 'half' FROM generate_series(1, 10) RETURNING what`)
				return errors.Join(err, errSentinel)
			}
		}, true},
		"closes the connection": {func(pgx.Tx) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(order("half")(ctx, tx), tx.Conn().Close(ctx))
			}
		}, true},
	} {
		tx := begin(t, pool)
		conn := tx.Conn()
		duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", test.fn(tx))
		require.False(t, duplicate, name)
		require.Error(t, err, name)
		t.Logf("%s: %v", name, err)
		if test.closed {
			require.True(t, conn.IsClosed(), name)
		} else {
			require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxClosed, name)
			require.False(t, conn.IsClosed(), "%s: the connection belongs to the pool again", name)
		}
		require.Error(t, tx.Commit(t.Context()), name)
		require.Equal(t, 0, count(t, pool, `SELECT count(*) FROM log`), name)
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM orders`), name)
	}
	require.Zero(t, pool.Stat().AcquiredConns())
}

// The connection is lost at each statement of the call: an error, never a duplicate, and nothing to commit.
func TestIgnoreDuplicateConnectionLost(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	for _, id := range []string{"old", "new"} {
		for _, text := range []string{
			"SAVEPOINT pgerr", "INSERT INTO log", "INSERT INTO orders", "ROLLBACK TO",
			"pg_inherits", "RELEASE",
		} {
			if id == "new" && (text == "ROLLBACK TO" || text == "pg_inherits") {
				continue // these are for a duplicate
			}
			for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply} {
				s := &faultconn.Script{From: faultconn.Frontend, When: faultconn.Containing(text), Mode: mode}
				cfg := pool.Config().ConnConfig.Copy()
				s.Attach(&cfg.Config)
				conn, err := pgx.ConnectConfig(t.Context(), cfg)
				require.NoError(t, err)
				tx, err := conn.Begin(t.Context())
				require.NoError(t, err)
				duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, "orders_pkey", order(id))
				require.Equal(t, 1, s.Hits(), "%s\n%v", text, s)
				require.False(t, duplicate, text)
				require.Error(t, err, text)
				require.True(t, pgerr.Retryable(err), "%s, %v: %v", text, mode, err)
				require.False(t, pgerr.Duplicate(err, "orders_pkey"), text)
				require.Error(t, tx.Commit(t.Context()), text)
				require.True(t, conn.IsClosed(), text)
				require.Equal(t, 0, count(t, pool, `SELECT count(*) FROM log`), text)
			}
		}
	}
}

// brokenLookup is a transaction in which the catalog cannot be read.
type brokenLookup struct{ pgx.Tx }

func (tx brokenLookup) QueryRow(ctx context.Context, _ string, _ ...any) pgx.Row {
	return tx.Tx.QueryRow(ctx, `SELECT 1/0`)
}

func TestIgnoreDuplicateLookupFails(t *testing.T) {
	t.Parallel()
	pool := ordersPool(t)
	tx := begin(t, pool)
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), brokenLookup{tx}, "orders_pkey", order("old"))
	require.False(t, duplicate)
	require.Equal(t, "22012", pgerr.Code(err))
	require.False(t, pgerr.Is(err, "23505"))
	intact(t, tx)
	require.NoError(t, tx.Commit(t.Context()))
}
