package idem_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// Run inside of a transaction must not compile: what is a DB and what is not.
func TestTransactionIsNoDB(t *testing.T) {
	db := reflect.TypeFor[idem.DB]()
	for _, tx := range []reflect.Type{reflect.TypeFor[pgx.Tx](), reflect.TypeFor[*pgxpool.Tx]()} {
		require.False(t, tx.Implements(db), "%v", tx)
	}
	for _, d := range []reflect.Type{
		reflect.TypeFor[*pgxpool.Pool](), reflect.TypeFor[*pgxpool.Conn](),
		reflect.TypeFor[*pgx.Conn](),
	} {
		require.True(t, d.Implements(db), "%v", d)
	}
}

// A connection that is in a transaction is refused: a BEGIN there is only a warning, and the ROLLBACK after a duplicate
// would end the caller's transaction.
func TestRunRefusesConnectionInTransaction(t *testing.T) {
	t.Parallel()
	pool := migrated(t, pgtest.Pool(t))
	_, err := idem.Run(t.Context(), pool, stripe.Key("1"), nothing)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO effects (what) VALUES ('own')`)
		require.NoError(t, err)
		for _, id := range []string{"1", "2"} {
			out, err := idem.Run(t.Context(), tx.Conn(), stripe.Key(id), nothing)
			require.Zero(t, out)
			require.ErrorContains(t, err, "use Do there")
		}
		return nil
	}))
	require.Equal(t, 1, rows(t, pool, "effects"))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, db := range []idem.DB{conn, conn.Conn()} {
		out, err := idem.Run(t.Context(), db, stripe.Key("1"), nothing)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
	}
}

func rows(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

// fn fails and the caller commits all the same, in each way that pgx offers.
func TestCommitAfterFailure(t *testing.T) {
	errFn := errors.New("fn")
	half := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ('half')`)
		require.NoError(t, err)
		return errFn
	}
	write := func(t *testing.T, tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `INSERT INTO effects (what) VALUES ('own')`)
		require.NoError(t, err)
	}

	t.Run("in the transaction itself", func(t *testing.T) {
		t.Parallel()
		pool := migrated(t, pgtest.Pool(t))
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		write(t, tx)
		_, err = idem.Do(t.Context(), tx, stripe.Key("1"), half)
		require.Same(t, errFn, err)
		require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxCommitRollback)
		require.Zero(t, rows(t, pool, "effects"))
		require.Zero(t, rows(t, pool, "processed_events"))
	})

	t.Run("BeginFunc that swallows", func(t *testing.T) {
		t.Parallel()
		pool := migrated(t, pgtest.Pool(t))
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, _ = idem.Do(t.Context(), tx, stripe.Key("1"), half)
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
		require.Zero(t, rows(t, pool, "processed_events"))
	})

	for _, depth := range []int{1, 2} {
		t.Run("nested", func(t *testing.T) {
			t.Parallel()
			pool := migrated(t, pgtest.Pool(t))
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				write(t, tx)
				nested := func(tx pgx.Tx) error {
					return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
						_, err := idem.Do(t.Context(), tx, stripe.Key("1"), half)
						return err
					})
				}
				if depth == 2 {
					inner := nested
					nested = func(tx pgx.Tx) error { return pgx.BeginFunc(t.Context(), tx, inner) }
				}
				require.Same(t, errFn, nested(tx))
				write(t, tx)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 2, rows(t, pool, "effects"))
			require.Zero(t, rows(t, pool, "processed_events"))
		})
	}
}

// What fn can do to a pgx transaction only.
func TestMisuseOfPgx(t *testing.T) {
	for name, sin := range map[string]func(ctx context.Context, outer, tx pgx.Tx) error{
		"leaves rows open": func(ctx context.Context, _, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
			return err
		},
		"commits the outer transaction": func(ctx context.Context, outer, _ pgx.Tx) error { return outer.Commit(ctx) },
		"rolls back the outer transaction": func(ctx context.Context, outer, _ pgx.Tx) error {
			return outer.Rollback(ctx)
		},
		"closes the connection": func(ctx context.Context, _, tx pgx.Tx) error { return tx.Conn().Close(ctx) },
		"commits by Conn": func(ctx context.Context, _, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, `COMMIT`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t, pgtest.Pool(t))
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			out, err := idem.Do(t.Context(), tx, stripe.Key("1"), func(ctx context.Context, own pgx.Tx) error {
				_, err := own.Exec(ctx, `INSERT INTO effects (what) VALUES ('a')`)
				require.NoError(t, err)
				return sin(ctx, tx, own)
			})
			require.Zero(t, out)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageFn, own.Stage)
			_ = tx.Rollback(t.Context())
			require.Equal(t, rows(t, pool, "effects"), rows(t, pool, "processed_events"),
				"key and effect stand or fall together")
			closes(t, pool)
		})
	}
}

// closes closes the pool, which waits for ever for a connection that was not given back.
func closes(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	done := make(chan struct{})
	go func() { pool.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("pool.Close does not return")
	}
}

// A pool of one connection is enough: Run never takes a second while it holds one.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.MaxConns = 1
	pool := migrated(t, pgtest.PoolConfig(t, cfg))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
		out, err := idem.Run(ctx, pool, stripe.Key("1"), nothing)
		require.NoError(t, err)
		require.Equal(t, want, out)
		_, err = idem.Once{}.Lookup(ctx, pool, stripe.Key("1"))
		require.NoError(t, err)
	}
	_, err := idem.Run(ctx, pool, stripe.Key("2"), func(context.Context, pgx.Tx) error { return pgx.ErrNoRows })
	require.Same(t, pgx.ErrNoRows, err)
	require.Zero(t, pool.Stat().AcquiredConns())
	closes(t, pool)
}

func TestNoConnection(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	pool := migrated(t, pgtest.PoolConfig(t, cfg))
	pool.Close()
	out, err := idem.Once{Tries: 2}.Run(t.Context(), pool, stripe.Key("1"), nothing)
	require.Zero(t, out)
	require.Error(t, err)
	require.False(t, pgerr.CommitUnknown(err))

	// A closed transaction of the caller's.
	pool = migrated(t, pgtest.Pool(t))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	_, err = idem.Do(t.Context(), tx, stripe.Key("1"), nothing)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	pool := migrated(t, pgtest.Pool(t))
	key := stripe.Key("very-secret-id").WithPayload([]byte("very-secret-body"))
	_, err := idem.Run(t.Context(), pool, key, nothing)
	require.NoError(t, err)
	_, err = idem.Run(t.Context(), pool, key.WithPayload([]byte("other")), nothing)
	require.EqualError(t, err, "idem: claim (stripe, activate): the key was used before with another payload")
	require.NotContains(t, err.Error(), "secret")

	// The server's own words about a row hold the key: they are not passed on.
	_, err = pool.Exec(t.Context(), `ALTER TABLE processed_events ADD CHECK (key NOT LIKE 'very%') NOT VALID`)
	require.NoError(t, err)
	_, err = idem.Run(t.Context(), pool, stripe.Key("very-secret-2"), nothing)
	require.True(t, pgerr.Is(err, "23514"))
	var own *idem.Error
	require.ErrorAs(t, err, &own)
	for e := err; e != nil; e = errors.Unwrap(e) {
		require.NotContains(t, e.Error(), "secret")
	}
	require.NotContains(t, reflectString(err), "very-secret-2")
}

func reflectString(err error) string {
	type detailed interface{ SQLState() string }
	var d detailed
	if errors.As(err, &d) {
		return reflect.Indirect(reflect.ValueOf(d)).FieldByName("Detail").String()
	}
	return ""
}
