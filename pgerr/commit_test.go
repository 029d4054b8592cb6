package pgerr_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	pgconn4 "github.com/jackc/pgconn"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// transaction is what the drivers' transactions have in common here.
type transaction struct {
	exec   func(sql string) error
	commit func(ctx context.Context) error
	close  func()
}

// beginThrough begins a transaction with each driver, through connections that a script watches.
var beginThrough = map[string]func(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) transaction{
	"pgx": func(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) transaction {
		cfg := pool.Config().ConnConfig.Copy()
		s.Attach(&cfg.Config)
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		return transaction{
			func(sql string) error { _, err := tx.Exec(t.Context(), sql); return err },
			tx.Commit,
			func() { _ = conn.Close(context.Background()) },
		}
	},
	"pgx v4": func(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) transaction {
		cfg, err := pgconn4.ParseConfig(pool.Config().ConnString())
		require.NoError(t, err)
		cfg.DialFunc = s.DialContext
		conn, err := pgconn4.ConnectConfig(t.Context(), cfg)
		require.NoError(t, err)
		exec := func(ctx context.Context, sql string) error { _, err := conn.Exec(ctx, sql).ReadAll(); return err }
		require.NoError(t, exec(t.Context(), `BEGIN`))
		return transaction{
			func(sql string) error { return exec(t.Context(), sql) },
			func(ctx context.Context) error { return exec(ctx, `COMMIT`) },
			func() { _ = conn.Close(context.Background()) },
		}
	},
	"pgx/stdlib": func(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) transaction {
		cfg := pool.Config().ConnConfig.Copy()
		s.Attach(&cfg.Config)
		return beginSQL(t, stdlib.OpenDB(*cfg))
	},
	"lib/pq": func(t *testing.T, pool *pgxpool.Pool, s *faultconn.Script) transaction {
		connector, err := pq.NewConnector(pool.Config().ConnString())
		require.NoError(t, err)
		connector.Dialer(s)
		return beginSQL(t, sql.OpenDB(connector))
	},
}

func beginSQL(t *testing.T, db *sql.DB) transaction {
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	return transaction{
		func(sql string) error { _, err := tx.ExecContext(t.Context(), sql); return err },
		func(context.Context) error { return tx.Commit() },
		func() { _ = tx.Rollback(); _ = db.Close() },
	}
}

// Answers to COMMIT that a test server does not give at will.
func TestCommitCodes(t *testing.T) {
	t.Parallel()
	for code, c := range map[string]struct {
		severity string
		unknown  bool
	}{
		"XX000": {"ERROR", true}, "XX001": {"ERROR", true}, "XX002": {"FATAL", true},
		"25P03": {"FATAL", false}, "25P04": {"FATAL", true}, "57P01": {"FATAL", true}, "23503": {"ERROR", false},
	} {
		for driver, err := range map[string]error{
			"pgx":    &pgconn.PgError{Code: code, Severity: c.severity, SeverityUnlocalized: c.severity},
			"pgx v4": &pgconn4.PgError{Code: code, Severity: c.severity},
			"lib/pq": &pq.Error{Code: pqerror.Code(code), Severity: c.severity},
		} {
			require.Equal(t, c.unknown, pgerr.CommitUnknown(err), "%s %s", driver, code)
		}
	}
}

// The COMMIT, or its reply, is lost. Both look alike to the client, and in one case the row is there.
func TestCommitLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool, `CREATE TABLE t (id text PRIMARY KEY)`)
	for name, begin := range beginThrough {
		for mode, committed := range map[faultconn.Mode]int{
			faultconn.DropReply: 1, faultconn.DropBefore: 0, faultconn.Reset: 0,
		} {
			s := &faultconn.Script{When: faultconn.Commit, Mode: mode}
			tx := begin(t, pool, s)
			id := fmt.Sprintf("%s, %v", name, mode)
			require.NoError(t, tx.exec(`INSERT INTO t VALUES ('`+id+`')`), id)
			err := tx.commit(t.Context())
			require.Equal(t, 1, s.Hits(), "%s\n%v", id, s)
			require.True(t, pgerr.CommitUnknown(err), "%s: %v", id, err)
			require.True(t, pgerr.CommitUnknown(fmt.Errorf("handle: %w", err)), "%s: %v", id, err)
			tx.close()
			require.Equal(t, committed, count(t, pool, `SELECT count(*) FROM t WHERE id = $1`, id), id)
		}
	}
}

// A context that is done before COMMIT, or in the middle of it.
func TestCommitContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool, `CREATE TABLE t (id text PRIMARY KEY)`)
	for _, name := range []string{"pgx", "pgx v4"} { // database/sql has no context for Commit
		tx := beginThrough[name](t, pool, &faultconn.Script{})
		done, cancel := context.WithCancel(t.Context())
		cancel()
		err := tx.commit(done)
		require.ErrorIs(t, err, context.Canceled, name)
		require.True(t, pgerr.CommitUnknown(err), "%s: %v", name, err)
		require.False(t, pgerr.Retryable(err), "%s: %v", name, err)
		tx.close()

		ctx, cancel := context.WithCancel(t.Context())
		s := &faultconn.Script{
			From: faultconn.Backend, When: faultconn.CommitReply, Mode: faultconn.Stall,
			Do: func(m faultconn.Message) {
				cancel()
			},
		}
		tx = beginThrough[name](t, pool, s)
		require.NoError(t, tx.exec(`INSERT INTO t VALUES ('`+name+`')`))
		err = tx.commit(ctx)
		require.Equal(t, 1, s.Hits(), "%s\n%v", name, s)
		require.True(t, pgerr.CommitUnknown(err), "%s: %v", name, err)
		s.Release()
		tx.close()
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM t WHERE id = $1`, name), name)
	}
}

// Errors with which the server answers COMMIT: rolled back.
func TestCommitRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE TABLE t (id text CONSTRAINT t_key UNIQUE DEFERRABLE INITIALLY DEFERRED)`, `INSERT INTO t VALUES ('a')`,
		`CREATE TABLE s (id int)`, `INSERT INTO s VALUES (1), (2)`,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = 'ZZ001'; END $$`,
		`CREATE TABLE r (id int)`,
		`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON r DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	for name, begin := range beginThrough {
		refused := func(code string, statements ...string) {
			t.Helper()
			tx := begin(t, pool, &faultconn.Script{})
			for _, s := range statements {
				require.NoError(t, tx.exec(s), name)
			}
			err := tx.commit(t.Context())
			require.Equal(t, code, pgerr.Code(err), "%s: %v", name, err)
			require.False(t, pgerr.CommitUnknown(err), "%s: %v", name, err)
			require.False(t, pgerr.CommitUnknown(&stageError{"commit", err}), "%s: %v", name, err)
			tx.close()
		}
		refused("23505", `INSERT INTO t VALUES ('a')`)
		refused("ZZ001", `INSERT INTO r VALUES (1)`)

		rival := drivers[name](t, pool.Config().ConnString())
		tx := begin(t, pool, &faultconn.Script{})
		const write = `INSERT INTO s SELECT count(*) FROM s`
		require.NoError(t, tx.exec(`SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`))
		require.NoError(t, tx.exec(write))
		require.NoError(t, rival(t.Context(), `BEGIN ISOLATION LEVEL SERIALIZABLE`))
		require.NoError(t, rival(t.Context(), write))
		require.NoError(t, tx.commit(t.Context()))
		err := rival(t.Context(), `COMMIT`)
		require.Equal(t, "40001", pgerr.Code(err), "%s: %v", name, err)
		require.False(t, pgerr.CommitUnknown(err), name)
		require.True(t, pgerr.Retryable(err), name)
		tx.close()
	}
}

// A session that the server ended before COMMIT: pgx sees FATAL, lib/pq hides it.
func TestCommitFatal(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, begin := range beginThrough {
		tx := begin(t, pool, &faultconn.Script{})
		require.NoError(t, tx.exec(`SET application_name = 'victim'`))
		execAll(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND pid <> pg_backend_pid()`)
		require.Eventually(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim'`) == 0
		}, 10*time.Second, 5*time.Millisecond)
		err := tx.commit(t.Context())
		require.True(t, pgerr.CommitUnknown(err), "%s: %v", name, err)
		tx.close()
	}
}

// What the drivers say without asking the server.
func TestCommitOfEndedTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1/0`)
	require.Error(t, err)
	err = tx.Commit(t.Context())
	require.Equal(t, pgx.ErrTxCommitRollback, err)
	require.False(t, pgerr.CommitUnknown(err))
	err = tx.Commit(t.Context())
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.False(t, pgerr.CommitUnknown(err))

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	stx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, stx.Rollback())
	err = stx.Commit()
	require.Equal(t, sql.ErrTxDone, err)
	require.False(t, pgerr.CommitUnknown(err))
}

func TestCommitUnknownValues(t *testing.T) {
	t.Parallel()
	v5 := func(code, severity string) error {
		return &pgconn.PgError{Code: code, Severity: "FEHLER", SeverityUnlocalized: severity}
	}
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"any", errors.New("x"), true},
		{"ERROR", v5("P0001", "ERROR"), false},
		{"internal error", v5("XX000", "ERROR"), true},
		{"FATAL", v5("XX000", "FATAL"), true},
		{"PANIC", v5("XX000", "PANIC"), true},
		{"FATAL of a usual code", v5("40001", "FATAL"), true},
		{"statement_completion_unknown", v5("40003", "ERROR"), true},
		{"transaction_resolution_unknown", v5("08007", "ERROR"), true},
		{"connection_failure", v5("08006", "ERROR"), true},
		{"query_canceled", v5("57014", "ERROR"), false},
		{"admin_shutdown", v5("57P01", "FATAL"), true},
		{"own code of a trigger", v5("ZZ001", "ERROR"), false},
		{"v4, English", &pgconn4.PgError{Code: "ZZ001", Severity: "ERROR"}, false},
		{"v4, FATAL of a usual code", &pgconn4.PgError{Code: "40001", Severity: "FATAL"}, true},
		{"v4, PANIC of a usual code", &pgconn4.PgError{Code: "40001", Severity: "PANIC"}, true},
		{"v4, German", &pgconn4.PgError{Code: "ZZ001", Severity: "FEHLER"}, true},
		{"v4, 57P01", &pgconn4.PgError{Code: "57P01", Severity: "FATAL"}, true},
		{"v4, connection", &pgconn4.PgError{Code: "08006", Severity: "ERROR"}, true},
		{"v4, 40003", &pgconn4.PgError{Code: "40003", Severity: "ERROR"}, true},
		{"lib/pq, English", &pq.Error{Code: "23505", Severity: "ERROR"}, false},
		{"lib/pq, German", &pq.Error{Code: "23505", Severity: "FEHLER"}, false},
		{"lib/pq, German, other class", &pq.Error{Code: "53100", Severity: "FEHLER"}, true},
		{"code alone, 40001", plainError("40001"), false},
		{"code alone, P0001", plainError("P0001"), false},
		{"code alone, 22003", plainError("22003"), false},
		{"code alone, 40003", plainError("40003"), true},
		{"code alone, 57P01", plainError("57P01"), true},
		{"network", &net.OpError{Op: "read", Err: errors.New("reset")}, true},
		{"hung up", io.ErrUnexpectedEOF, true},
		{"closed", pgconn.ErrConnClosed, true},
		{"bad connection", driver.ErrBadConn, true},
		{"canceled", context.Canceled, true},
		{"deadline", context.DeadlineExceeded, true},
		{"safe to retry", safe{}, true},
		{"rolled back", pgx.ErrTxCommitRollback, false},
		{"rolled back, by a driver that is not imported", pq.ErrInFailedTransaction, true},
		{"rolled back, and lost after it", errors.Join(pgx.ErrTxCommitRollback, pgconn.ErrConnClosed), true},
		{"refused, and lost", errors.Join(v5("23505", "ERROR"), io.ErrUnexpectedEOF), true},
		{"refused, and a deadline", errors.Join(v5("23505", "ERROR"), context.DeadlineExceeded), true},
		{"refused, and FATAL", errors.Join(v5("23505", "ERROR"), v5("57P01", "FATAL")), true},
		{"refused twice", errors.Join(v5("23505", "ERROR"), v5("23503", "ERROR")), false},
		{"closed transaction", fmt.Errorf("%w: %w", errSentinel, pgx.ErrTxClosed), false},
		{"database/sql", &stageError{"commit", sql.ErrTxDone}, false},
		{"decided: no", commitError{pgconn.ErrConnClosed, false}, false},
		{"decided: yes", commitError{v5("23505", "ERROR"), true}, true},
		{"decided, deep", errors.Join(errSentinel, &stageError{"run", commitError{context.Canceled, false}}), false},
		{"decided twice", errors.Join(commitError{errSentinel, false}, commitError{errSentinel, true}), true},
	} {
		require.Equal(t, test.want, pgerr.CommitUnknown(test.err), test.name)
	}
}

// safe is what pgx 5.9 to 5.12 returned for a COMMIT whose reply was lost.
type safe struct{}

func (safe) Error() string     { return "conn closed" }
func (safe) SafeToRetry() bool { return true }
