package pgerr_test

import (
	"errors"
	"testing"

	pgconn4 "github.com/jackc/pgconn"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// The answers are the same for each driver's own error, from a real connection, in each wrapping.
func TestDrivers(t *testing.T) {
	t.Parallel()
	for driver, open := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			exec := open(t, pgtest.DSN(t))
			require.NoError(t, exec(t.Context(), `
				CREATE SCHEMA app;
				CREATE TABLE app.orders (id text CONSTRAINT orders_pkey PRIMARY KEY, n int CONSTRAINT orders_n_check CHECK (n > 0));
				INSERT INTO app.orders VALUES ('a', 1)`))

			duplicate := exec(t.Context(), `INSERT INTO app.orders VALUES ('a', 1)`)
			check := exec(t.Context(), `INSERT INTO app.orders VALUES ('b', 0)`)
			syntax := exec(t.Context(), `SELECT FROM WHERE`)
			require.Error(t, duplicate)
			require.Error(t, check)
			require.Error(t, syntax)

			for wrapping, wrap := range wrappings {
				err := wrap(duplicate)
				require.Equal(t, "23505", pgerr.Code(err), wrapping)
				require.Equal(t, "orders_pkey", pgerr.Constraint(err), wrapping)
				require.True(t, pgerr.Is(err, pgerr.UniqueViolation), wrapping)
				require.False(t, pgerr.Is(err, pgerr.CheckViolation), wrapping)
				require.True(t, pgerr.Duplicate(err, "orders_pkey"), wrapping)
				require.True(t, pgerr.Duplicate(err, "app.orders_pkey"), wrapping)
				require.True(t, pgerr.Duplicate(err, "x", "app.y", `"app"."orders_pkey"`), wrapping)
				require.False(t, pgerr.Duplicate(err, "public.orders_pkey"), wrapping)
				require.False(t, pgerr.Duplicate(err, "orders_n_check"), wrapping)
				require.False(t, pgerr.Retryable(err), wrapping)
				require.False(t, pgerr.CommitUnknown(err), wrapping)

				err = wrap(check)
				require.Equal(t, "23514", pgerr.Code(err), wrapping)
				require.Equal(t, "orders_n_check", pgerr.Constraint(err), wrapping)
				require.False(t, pgerr.Duplicate(err, "orders_n_check"), wrapping)

				err = wrap(syntax)
				require.Equal(t, "42601", pgerr.Code(err), wrapping)
				require.Empty(t, pgerr.Constraint(err), wrapping)
				require.False(t, pgerr.Duplicate(err, ""), wrapping)
			}
		})
	}
}

// plainError is the error of a driver that tells nothing but the code.
type plainError string

func (e plainError) Error() string    { return "failed" }
func (e plainError) SQLState() string { return string(e) }

func TestOtherErrors(t *testing.T) {
	t.Parallel()
	require.Equal(t, "23505", pgerr.Code(plainError("23505")))
	require.True(t, pgerr.Is(plainError("23505"), pgerr.UniqueViolation))
	require.False(t, pgerr.Duplicate(plainError("23505"), ""), "no name, no duplicate")
	require.True(t, pgerr.Retryable(plainError("40001")))

	for _, err := range []error{
		nil, errors.New("x"), plainError(""), &pgconn.PgError{}, (*pgconn.PgError)(nil),
		(*pgconn4.PgError)(nil),
	} {
		require.Empty(t, pgerr.Code(err))
		require.Empty(t, pgerr.Constraint(err))
		require.False(t, pgerr.Is(err, ""), "%#v", err)
		require.False(t, pgerr.Is(err, "23505"))
		require.False(t, pgerr.Duplicate(err, ""))
		require.False(t, pgerr.Duplicate(err, "x"))
		require.False(t, pgerr.Retryable(err))
	}
}

// A wrapper with a code of its own is believed, and its cause as well.
func TestWrapperWithOtherCode(t *testing.T) {
	t.Parallel()
	err := &recoded{"XX999", &pgconn.PgError{Code: "23505", ConstraintName: "k", SchemaName: "s"}}
	require.Equal(t, "XX999", pgerr.Code(err))
	require.True(t, pgerr.Is(err, "23505"))
	require.False(t, pgerr.Duplicate(err, "k"))
}

type recoded struct {
	code string
	err  error
}

func (e *recoded) Error() string    { return "recoded" }
func (e *recoded) SQLState() string { return e.code }
func (e *recoded) Unwrap() error    { return e.err }

// germanErrors are what drivers make of errors when lc_messages is de_DE: the severity is translated, too.
func germanErrors(code string) map[string]error {
	const text = "doppelter Schlüsselwert verletzt Unique-Constraint »k«"
	return map[string]error{
		"pgx": &pgconn.PgError{
			Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: code, Message: text,
			SchemaName: "s", ConstraintName: "k",
		},
		"pgx v4": &pgconn4.PgError{Severity: "FEHLER", Code: code, Message: text, SchemaName: "s", ConstraintName: "k"},
		"lib/pq": &pq.Error{Severity: "FEHLER", Code: pqerror.Code(code), Message: text, Schema: "s", Constraint: "k"},
	}
}

func TestOtherLanguage(t *testing.T) {
	t.Parallel()
	for driver, err := range germanErrors("23505") {
		require.True(t, pgerr.Duplicate(err, "s.k"), driver)
		require.False(t, pgerr.CommitUnknown(err), driver)
		require.False(t, pgerr.Retryable(err), driver)
	}
	for driver, err := range germanErrors("40001") {
		require.False(t, pgerr.Duplicate(err, "s.k"), driver)
		require.False(t, pgerr.CommitUnknown(err), driver)
		require.True(t, pgerr.Retryable(err), driver)
	}
}

// The same with a server that does speak another language. Few test servers have one; where there is none, the test
// says so, and TestOtherLanguage has the errors as such a server sends them.
func TestOtherLanguageOfServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE TABLE orders (id text CONSTRAINT orders_id_key UNIQUE DEFERRABLE INITIALLY DEFERRED)`,
		`INSERT INTO orders VALUES ('a')`)
	dsn := pool.Config().ConnString()

	language := ""
	for _, l := range []string{
		"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "ja_JP.UTF-8", "ja_JP.utf8",
		"ru_RU.UTF-8",
	} {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), `SET lc_messages = '`+l+`'`)
		if err == nil {
			var pgErr *pgconn.PgError
			_, err = conn.Exec(t.Context(), `SELECT 1/0`)
			if errors.As(err, &pgErr) && pgErr.Severity != pgErr.SeverityUnlocalized {
				language = l
			}
		}
		require.NoError(t, conn.Conn().Close(t.Context()))
		conn.Release()
	}
	if language == "" {
		t.Log("this server has messages in English only; TestOtherLanguage stands for it")
	}
	for driver, open := range drivers {
		exec := open(t, dsn)
		if language != "" {
			require.NoError(t, exec(t.Context(), `SET lc_messages = '`+language+`'`))
		}
		require.NoError(t, exec(t.Context(), `BEGIN`))
		require.NoError(t, exec(t.Context(), `INSERT INTO orders VALUES ('a')`), driver)
		err := exec(t.Context(), `COMMIT`)
		t.Logf("%s: %v", driver, err)
		require.True(t, pgerr.Duplicate(err, "public.orders_id_key"), driver)
		require.False(t, pgerr.CommitUnknown(err), driver)
	}
}
