package pgerr_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	pgconn4 "github.com/jackc/pgconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// The table in the documentation of Retryable, for each driver.
func TestRetryableCodes(t *testing.T) {
	t.Parallel()
	codes := map[bool][]string{
		true: {
			"40001", "40P01", "55P03", "08000", "08001", "08003", "08004", "08006", "08P01",
			"57P01", "57P02", "57P03", "57P05", "25006", "26000", "53000", "53100", "53200", "53300",
		},
		false: {
			"08007", "40003", "40000", "40002", "57014", "57P04", "25P03", "25P04", "25P02", "53400", "23505", "23503", "23502",
			"23514", "23P01",
			"42601", "42501", "42P01", "28000", "28P01", "3D000", "22021", "54000", "0A000", "55000", "XX000", "58030", "P0001",
			"4", "40", "x",
		},
	}
	for want, list := range codes {
		for _, code := range list {
			for name, err := range map[string]error{
				"pgx":    &pgconn.PgError{Code: code, Severity: "ERROR", SeverityUnlocalized: "ERROR"},
				"pgx v4": &pgconn4.PgError{Code: code, Severity: "ERROR"},
				"lib/pq": &pq.Error{Code: pqerror.Code(code), Severity: "ERROR"},
				"other":  plainError(code),
			} {
				for wrapping, wrap := range wrappings {
					if name == "other" && wrapping == "own As" {
						continue // As is asked for the drivers' types
					}
					require.Equal(t, want, pgerr.Retryable(wrap(err)), "%s %s %s", name, code, wrapping)
				}
			}
		}
	}
}

// commitError is what an error of a package that knows more about its COMMIT looks like.
type commitError struct {
	error
	unknown bool
}

func (e commitError) CommitUnknown() bool { return e.unknown }
func (e commitError) Unwrap() error       { return e.error }

// hopefulError is what an error of a package that knows more about the server's looks like.
type hopefulError struct {
	error
	again bool
}

func (e hopefulError) Retryable() bool { return e.again }
func (e hopefulError) Unwrap() error   { return e.error }

func TestRetryableValues(t *testing.T) {
	t.Parallel()
	serialization := &pgconn.PgError{Code: "40001"}
	_, noFile := os.Open("/none/such")
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, dialCanceled := (&net.Dialer{}).DialContext(done, "tcp", "127.0.0.1:1")

	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"any", errors.New("x"), false},
		{"bad connection", driver.ErrBadConn, true},
		{"closed connection", pgconn.ErrConnClosed, true},
		{"hung up", io.ErrUnexpectedEOF, true},
		{"network", dial, true},
		{"name server", &net.DNSError{Err: "server misbehaving", IsTemporary: true}, true},
		{"hung up while connecting", io.EOF, true},
		{"missing file", noFile, false},
		{"canceled", context.Canceled, false},
		{"deadline", context.DeadlineExceeded, false},
		{"network, canceled", &net.OpError{Op: "dial", Err: context.Canceled}, false},
		{"dial, canceled", dialCanceled, false},
		{"nothing sent", &stageError{"select", safe{}}, true},
		{"network and canceled", errors.Join(dial, context.Canceled), false},
		{"serialization and deadline", fmt.Errorf("%w: %w", context.DeadlineExceeded, serialization), false},
		{"closed transaction", pgx.ErrTxClosed, false},
		{"commit of a failed transaction", pgx.ErrTxCommitRollback, false},
		{"database/sql: closed transaction", sql.ErrTxDone, false},
		{"no rows", pgx.ErrNoRows, false},
		{"statement of a batch that was skipped", pgerr.ErrNotRun, false},
		{"serialization, then a lost rollback", errors.Join(serialization, pgconn.ErrConnClosed), true},
		{"two that pass", errors.Join(serialization, &pgconn.PgError{Code: "40P01"}), true},
		{"one that passes, one that does not", errors.Join(serialization, &pgconn.PgError{Code: "23514"}), false},
		{"one that does not, one that passes", errors.Join(&pgconn.PgError{Code: "23514"}, serialization), false},
		{
			"one that does not, and a lost connection", errors.Join(&pgconn.PgError{Code: "23514"}, pgconn.ErrConnClosed),
			false,
		},
		{"pooler without a server", &pgconn.PgError{Code: "XX000", SeverityUnlocalized: "FATAL", Severity: "FATAL"}, true},
		{"pooler without a server", &pgconn.PgError{Code: "58000", SeverityUnlocalized: "FATAL", Severity: "FATAL"}, true},
		{"pooler without a server, lib/pq", &pq.Error{Code: "XX000", Severity: "FATAL"}, true},
		{"pooler without a server, pgx v4", &pgconn4.PgError{Code: "58000", Severity: "FATAL"}, true},
		{"corrupted", &pgconn.PgError{Code: "XX001", SeverityUnlocalized: "FATAL", Severity: "FATAL"}, false},
		{"unknown commit", commitError{pgconn.ErrConnClosed, true}, false},
		{"unknown commit, deep", fmt.Errorf("run: %w", errors.Join(commitError{serialization, true})), false},
		{"known commit", commitError{serialization, false}, true},
		{"a clash that may pass", fmt.Errorf("%w", hopefulError{&pgconn.PgError{Code: "23505"}, true}), true},
		{"a clash that stays", hopefulError{&pgconn.PgError{Code: "23505"}, false}, false},
		{
			"a clash that may pass, and one that stays",
			errors.Join(hopefulError{&pgconn.PgError{Code: "23505"}, true}, &pgconn.PgError{Code: "23505"}), false,
		},
		{
			"a clash that may pass, and a context",
			errors.Join(hopefulError{&pgconn.PgError{Code: "23505"}, true}, context.Canceled), false,
		},
		{"hope without an answer of the server", hopefulError{errors.New("x"), true}, false},
	} {
		require.Equal(t, test.want, pgerr.Retryable(test.err), test.name)
	}
}

// Deadlocks, serialization failures, lock timeouts and the like, from the server and through each driver.
func TestRetryableFromServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool, `CREATE TABLE t (id int PRIMARY KEY, n int)`, `INSERT INTO t VALUES (1, 0), (2, 0)`)
	dsn := pool.Config().ConnString()

	for name, open := range drivers {
		exec, rival := open(t, dsn), open(t, dsn)
		ok := func(do session, sql string) {
			t.Helper()
			require.NoError(t, do(t.Context(), sql), name)
		}
		// fails runs sql, checks the code, and rolls both transactions back.
		fails := func(sql, code string, want bool) {
			t.Helper()
			err := exec(t.Context(), sql)
			require.Equal(t, code, pgerr.Code(err), "%s: %v", name, err)
			require.Equal(t, want, pgerr.Retryable(fmt.Errorf("handle: %w", err)), "%s: %v", name, err)
			ok(exec, `ROLLBACK`)
			ok(rival, `ROLLBACK`)
		}

		ok(exec, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM t`)
		ok(rival, `UPDATE t SET n = n + 1`)
		fails(`UPDATE t SET n = n + 1`, "40001", true)

		ok(exec, `BEGIN; SET LOCAL deadlock_timeout = '10s'; UPDATE t SET n = 1 WHERE id = 1`)
		ok(rival, `BEGIN; SET LOCAL deadlock_timeout = '20ms'; UPDATE t SET n = 1 WHERE id = 2`)
		waiting := make(chan error, 1)
		go func() { waiting <- rival(t.Context(), `UPDATE t SET n = 1 WHERE id = 1`) }()
		errMine := exec(t.Context(), `UPDATE t SET n = 1 WHERE id = 2`)
		err := errors.Join(errMine, <-waiting) // one of them is the victim
		require.True(t, pgerr.Is(err, pgerr.DeadlockDetected), "%s: %v", name, err)
		require.True(t, pgerr.Retryable(err), name)
		ok(exec, `ROLLBACK`)
		ok(rival, `ROLLBACK`)

		ok(rival, `BEGIN; UPDATE t SET n = 1 WHERE id = 1`)
		ok(exec, `BEGIN; SET LOCAL lock_timeout = '10ms'`)
		fails(`UPDATE t SET n = 1 WHERE id = 1`, "55P03", true)

		ok(exec, `BEGIN; SET LOCAL statement_timeout = '10ms'`)
		fails(`SELECT pg_sleep(10)`, "57014", false)

		ok(exec, `BEGIN READ ONLY`)
		fails(`UPDATE t SET n = 1`, "25006", true)

		ok(exec, `BEGIN`)
		require.Error(t, exec(t.Context(), `SELECT 1/0`))
		fails(`SELECT 1`, "25P02", false)
	}
}

// A session that the server ends, at each moment at which a program can notice.
func TestRetryableLostSession(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	dsn := pool.Config().ConnString()
	const end = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = 'victim'`
	gone := func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim'`) == 0
	}

	for name, open := range drivers {
		idle := open(t, dsn)
		require.NoError(t, idle(t.Context(), `SET application_name = 'victim'; BEGIN`))
		execAll(t, pool, end)
		require.Eventually(t, gone, 10*time.Second, 5*time.Millisecond)
		err := idle(t.Context(), `SELECT 1`)
		require.True(t, pgerr.Retryable(fmt.Errorf("handle: %w", err)), "%s, first statement after it: %v", name, err)
		if name != "pgx/stdlib" && name != "lib/pq" { // a *sql.Conn is closed for good by then
			err = idle(t.Context(), `SELECT 1`)
			require.True(t, pgerr.Retryable(err), "%s, second statement after it: %v", name, err)
		}

		busy := open(t, dsn)
		require.NoError(t, busy(t.Context(), `SET application_name = 'victim'; BEGIN`))
		result := make(chan error, 1)
		go func() { result <- busy(t.Context(), `SELECT pg_sleep(60)`) }()
		require.Eventually(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim' AND wait_event = 'PgSleep'`) == 1
		}, 10*time.Second, 5*time.Millisecond)
		execAll(t, pool, end)
		err = <-result
		require.True(t, pgerr.Retryable(err), "%s, in the middle of a statement: %v", name, err)
		require.Eventually(t, gone, 10*time.Second, 5*time.Millisecond)

		slow := open(t, dsn)
		require.NoError(t, slow(t.Context(),
			`SET application_name = 'victim'; SET idle_in_transaction_session_timeout = '5ms'; BEGIN`))
		require.Eventually(t, gone, 10*time.Second, 5*time.Millisecond)
		err = slow(t.Context(), `SELECT 1`)
		// Only a driver that hides the code calls it a lost connection.
		require.Equal(t, pgerr.Code(err) == "", pgerr.Retryable(err), "%s, idle in transaction: %v", name, err)
	}
}

// The caller's context, before and in the middle of a statement.
func TestRetryableContext(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	for name, open := range drivers {
		done, cancel := context.WithCancel(t.Context())
		cancel()
		err := cut(t, name, func() error { return open(t, dsn)(done, `SELECT pg_sleep(1)`) })
		if name == "pgx/stdlib" {
			require.Equal(t, driver.ErrBadConn, err, "it hides that the context was done, as the documentation says")
		} else {
			require.False(t, pgerr.Retryable(err), "%s: %v", name, err)
		}

		err = cut(t, name, func() error {
			exec := open(t, dsn)
			short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return exec(short, `SELECT pg_sleep(1)`)
		})
		require.False(t, pgerr.Retryable(err), "%s: %v", name, err)
	}
}

// cut runs a statement whose context ends before it does, and returns its error. lib/pq asks the server to cancel,
// and is not heard when that comes before the statement: then it waits for the statement, and knows no error. When
// the context ends before it has sent anything, it may say that the connection is bad, which is not what is asked
// here. So it has some tries.
func cut(t *testing.T, name string, exec func() error) (err error) {
	t.Helper()
	for range 20 {
		if err = exec(); name != "lib/pq" || err != nil && !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	require.Error(t, err, name)
	return err
}

// Attempts to connect: nobody listens, nobody answers, the server hangs up, the server refuses.
func TestRetryableConnect(t *testing.T) {
	t.Parallel()
	connect := map[string]func(ctx context.Context, dsn string) error{
		"pgx":    func(ctx context.Context, dsn string) error { _, err := pgx.Connect(ctx, dsn); return err },
		"pgx v4": func(ctx context.Context, dsn string) error { _, err := pgconn4.Connect(ctx, dsn); return err },
		"lib/pq": func(ctx context.Context, dsn string) error {
			db, err := sql.Open("postgres", dsn)
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		},
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	deaf, rude, closed := listen(), listen(), listen()
	require.NoError(t, closed.Close())
	go func() {
		for {
			conn, err := rude.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	address := func(l net.Listener) string {
		return fmt.Sprintf("postgres://u@%s/d?sslmode=disable", l.Addr())
	}
	noDatabase, err := url.Parse(pgtest.DSN(t))
	require.NoError(t, err)
	noDatabase.Path = "/none_such"

	for name, open := range connect {
		err := open(t.Context(), address(closed))
		require.Error(t, err)
		require.True(t, pgerr.Retryable(err), "%s, refused: %v", name, err)

		err = open(t.Context(), address(rude))
		require.Error(t, err)
		require.True(t, pgerr.Retryable(err), "%s, hung up: %v", name, err)

		err = open(t.Context(), noDatabase.String())
		require.Equal(t, "3D000", pgerr.Code(err), "%s: %v", name, err)
		require.False(t, pgerr.Retryable(err), "%s, refused by the server: %v", name, err)

		if name == "lib/pq" {
			continue // it does not heed a context while it waits for the server's first word
		}
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(20*time.Millisecond, cancel)
		err = open(ctx, address(deaf))
		timer.Stop()
		cancel()
		require.Error(t, err)
		require.False(t, pgerr.Retryable(err), "%s, canceled: %v", name, err)
	}

	// connect_timeout of pgx looks like a deadline of the caller's.
	err = connect["pgx"](t.Context(), address(deaf)+"&connect_timeout=1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, pgerr.Retryable(err), "%v", err)
}
