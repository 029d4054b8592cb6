package pgerr_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	pgconn4 "github.com/jackc/pgconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// session runs SQL without parameters on one connection.
type session func(ctx context.Context, sql string) error

// drivers opens a connection with each driver whose errors are recognised. It is closed at the test's end.
var drivers = map[string]func(t *testing.T, dsn string) session{
	"pgx": func(t *testing.T, dsn string) session {
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return func(ctx context.Context, sql string) error {
			_, err := conn.Exec(ctx, sql)
			return err
		}
	},
	"pgx v4": func(t *testing.T, dsn string) session {
		conn, err := pgconn4.Connect(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return func(ctx context.Context, sql string) error {
			_, err := conn.Exec(ctx, sql).ReadAll()
			return err
		}
	},
	"pgx/stdlib": func(t *testing.T, dsn string) session { return openSQL(t, "pgx", dsn) },
	"lib/pq":     func(t *testing.T, dsn string) session { return openSQL(t, "postgres", dsn) },
}

func openSQL(t *testing.T, driver, dsn string) session {
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	return func(ctx context.Context, sql string) error {
		_, err := conn.ExecContext(ctx, sql)
		return err
	}
}

// execAll runs statements that must succeed.
func execAll(t *testing.T, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, statements ...string,
) {
	t.Helper()
	for _, s := range statements {
		_, err := db.Exec(t.Context(), s)
		require.NoError(t, err, s)
	}
}

// execErr runs a statement that must fail, in a transaction of its own, and returns its error.
func execErr(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.Error(t, err, sql)
	return err
}

// count returns the result of a SELECT count(*).
func count(t *testing.T, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any,
) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql, args...).Scan(&n), sql)
	return n
}

// stageError wraps in the way of a package with an error type of its own.
type stageError struct {
	stage string
	err   error
}

func (e *stageError) Error() string { return e.stage + ": " + e.err.Error() }
func (e *stageError) Unwrap() error { return e.err }

// asError passes its cause on through As alone.
type asError struct{ err error }

func (e asError) Error() string      { return "wrapped" }
func (e asError) As(target any) bool { return errors.As(e.err, target) }

// stateError repeats the code of its cause, as some wrappers do.
type stateError struct{ *stageError }

func (e stateError) SQLState() string {
	var s interface{ SQLState() string }
	if errors.As(e.err, &s) {
		return s.SQLState()
	}
	return ""
}

var errSentinel = errors.New("payments: insert failed")

// wrappings are the ways in which an error reaches the code that asks about it.
var wrappings = map[string]func(error) error{
	"bare":           func(err error) error { return err },
	"fmt":            func(err error) error { return fmt.Errorf("insert: %w", err) },
	"fmt twice":      func(err error) error { return fmt.Errorf("handle: %w", fmt.Errorf("insert: %w", err)) },
	"with sentinel":  func(err error) error { return fmt.Errorf("%w: %w", errSentinel, err) },
	"join":           func(err error) error { return errors.Join(errSentinel, err) },
	"join of itself": func(err error) error { return errors.Join(err, err) },
	"own type":       func(err error) error { return &stageError{"insert", err} },
	"own SQLState":   func(err error) error { return stateError{&stageError{"insert", err}} },
	"own As":         func(err error) error { return asError{err} },
	"deep": func(err error) error {
		return &stageError{"run", errors.Join(nil, fmt.Errorf("%w", stateError{&stageError{"insert", err}}))}
	},
}
