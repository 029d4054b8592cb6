package inboxsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// forEach runs test with each driver, on a database of its own with the tables.
func forEach(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open(driver, pgtest.DSN(t))
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			for range 2 {
				require.NoError(t, inboxsql.Migrate(t.Context(), db))
			}
			execSQL(t, db, `CREATE TABLE effects (id text)`)
			test(t, db)
		})
	}
}

func execSQL(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

func count(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

func insert(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES ($1)`, m.ID)
	return err
}

// The life of messages, over each driver: stored, rolled back, a duplicate; handled, failed, dead, replayed, discarded,
// purged.
func TestDrivers(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *sql.DB) {
		ctx := t.Context()
		var table inbox.Table
		require.NoError(t, inboxsql.Verify(ctx, db))
		require.Error(t, inboxsql.Verify(ctx, db, inbox.Table{Name: "nothing"}))
		put := func(conn inboxsql.Conn, m inbox.Message, want inbox.Outcome) {
			t.Helper()
			out, err := inboxsql.Store(ctx, conn, table, m)
			require.NoError(t, err)
			require.Equal(t, want, out)
		}
		first := inbox.Message{
			Source: "s", Operation: "o", ID: `"é{k}\`, Key: "k", Body: []byte{0, 1, 255},
			Headers: map[string]string{"a": "b", "nul": "\x00", "raw": "\xff"},
		}
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		put(tx, first, inbox.Stored)
		put(tx, first, inbox.Duplicate)
		require.NoError(t, tx.Rollback())
		_, err = inboxsql.Store(ctx, tx, table, first)
		require.Error(t, err)
		put(db, first, inbox.Stored)
		put(db, first, inbox.Duplicate)
		put(db, inbox.Message{Source: "s", Operation: "o", ID: "bad", Key: "k"}, inbox.Stored)
		put(db, inbox.Message{Source: "s", Operation: "o", ID: "behind", Key: "k"}, inbox.Stored)
		put(db, inbox.Message{Source: "s", Operation: "o", ID: "free"}, inbox.Stored)
		_, err = inboxsql.Store(ctx, db, table, inbox.Message{Source: "s", ID: "1"})
		require.ErrorIs(t, err, inbox.ErrInvalid)

		bad := true
		var got []inbox.Message
		h := func(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
			if err := insert(ctx, tx, m); err != nil {
				return err
			}
			if m.ID == "bad" && bad {
				return errors.New("bad")
			}
			got = append(got, m)
			return nil
		}
		w := inbox.Worker{MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
		s, err := inboxsql.Drain(ctx, db, w, h)
		require.ErrorContains(t, err, "bad")
		require.Equal(t, inbox.Stats{Handled: 2, Failed: 2, Dead: 1}, s)
		require.WithinDuration(t, time.Now(), got[0].ReceivedAt, time.Hour)
		got[0].ReceivedAt, got[0].Attempt, got[0].State = time.Time{}, 0, 0
		require.Equal(t, first, got[0])
		require.Equal(t, 2, count(t, db, `SELECT count(*) FROM effects`))

		d, err := inboxsql.Depth(ctx, db, table)
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1, 1}, []int64{d.Waiting, d.Behind, d.Dead})
		dead, err := inboxsql.List(ctx, db, table, inbox.Filter{}, 5)
		require.NoError(t, err)
		require.Equal(t, "bad", dead[0].LastError)
		n, err := inboxsql.Replay(ctx, db, table, inbox.Filter{IDs: []string{"bad"}})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		_, _ = inboxsql.Drain(ctx, db, w, h)
		n, err = inboxsql.Discard(ctx, db, table, inbox.Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)

		run, stop := context.WithCancel(ctx)
		w.Done = func(_ context.Context, m inbox.Message, err error) {
			if m.ID != "behind" || err != nil {
				t.Error(fmt.Errorf("%s: %w", m.ID, err))
			}
			stop()
		}
		require.ErrorIs(t, inboxsql.Run(run, db, w, h), context.Canceled)
		d, err = inboxsql.Depth(ctx, db, table)
		require.NoError(t, err)
		require.Zero(t, d)
		p, err := inboxsql.Purge(ctx, db, inbox.Table{Keep: 1})
		require.NoError(t, err)
		require.Equal(t, inbox.Purged{Keys: 4}, p)
		require.Error(t, inboxsql.Run(ctx, db, inbox.Worker{}, nil))
		_, err = inboxsql.Drain(ctx, db, inbox.Worker{Workers: -1}, h)
		require.Error(t, err)
	})
}

// What a handler that fails wrote is not kept, whatever way it fails, with either driver.
func TestFailing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails func(ctx context.Context, tx inboxsql.Tx) error
		class string
		dead  bool
		kept  int
	}{
		"error": {func(context.Context, inboxsql.Tx) error { return errors.New("fails") }, "error", false, 0},
		"final": {func(context.Context, inboxsql.Tx) error { return inbox.ErrFinal }, "error", true, 0},
		"panic": {func(context.Context, inboxsql.Tx) error { panic("secret") }, "panic", false, 0},
		"exit":  {func(context.Context, inboxsql.Tx) error { runtime.Goexit(); return nil }, "error", false, 0},
		"SQL error": {
			func(ctx context.Context, tx inboxsql.Tx) error { return query(ctx, tx, `SELECT 1/0`) }, "22012",
			false, 0,
		},
		"swallowed": {func(ctx context.Context, tx inboxsql.Tx) error {
			_ = query(ctx, tx, `SELECT 1/0`)
			return nil
		}, "misuse", true, 0},
		"rows left open": {func(ctx context.Context, tx inboxsql.Tx) error {
			rows, err := tx.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			if err == nil {
				rows.Next()
			}
			return err
		}, "misuse", true, 0},
		"row left open": {func(ctx context.Context, tx inboxsql.Tx) error {
			_ = tx.QueryRowContext(ctx, `SELECT generate_series(1, 100000)`)
			return nil
		}, "misuse", true, 0},
		"rows of a prepared statement left open": {func(ctx context.Context, tx inboxsql.Tx) error {
			stmt, err := tx.PrepareContext(ctx, `SELECT generate_series(1, 100000)`)
			if err == nil {
				_, err = stmt.QueryContext(ctx)
			}
			return err
		}, "misuse", true, 0},
		"COMMIT": {
			func(ctx context.Context, tx inboxsql.Tx) error { return query(ctx, tx, `COMMIT`) }, "misuse",
			true, 1,
		},
		"ROLLBACK": {
			func(ctx context.Context, tx inboxsql.Tx) error { return query(ctx, tx, `ROLLBACK`) },
			"misuse", true, 0,
		},
		"ROLLBACK AND CHAIN": {func(ctx context.Context,
			tx inboxsql.Tx,
		) error {
			return query(ctx, tx, `ROLLBACK AND CHAIN`)
		}, "misuse", true, 0},
		"killed": {func(ctx context.Context, tx inboxsql.Tx) error {
			_ = query(ctx, tx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return nil
		}, "error", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEach(t, func(t *testing.T, db *sql.DB) {
				for _, id := range []string{"bad", "good"} {
					_, err := inboxsql.Store(t.Context(), db, inbox.Table{}, inbox.Message{Source: "s", Operation: "o", ID: id})
					require.NoError(t, err)
				}
				s, err := inboxsql.Drain(t.Context(), db, inbox.Worker{MinRetry: time.Hour},
					func(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
						if err := insert(ctx, tx, m); err != nil || m.ID == "good" {
							return err
						}
						return tc.fails(ctx, tx)
					})
				require.Error(t, err)
				require.Equal(t, inbox.Stats{Handled: 1, Failed: 1, Dead: map[bool]int64{true: 1}[tc.dead]}, s)
				require.Equal(t, tc.kept, count(t, db, `SELECT count(*) FROM effects WHERE id = 'bad'`))
				require.Equal(t, 1, count(t, db, `SELECT count(*) FROM effects WHERE id = 'good'`))
				state := inbox.Waiting
				if tc.dead {
					state = inbox.Dead
				}
				left, err := inboxsql.List(t.Context(), db, inbox.Table{}, inbox.Filter{State: state}, 5)
				require.NoError(t, err)
				require.Len(t, left, 1)
				require.Equal(t, tc.class, left[0].ErrorClass, left[0].LastError)
				require.Equal(t, 1, left[0].Attempt)
			})
		})
	}
}

func query(ctx context.Context, tx inboxsql.Tx, q string) error {
	_, err := tx.ExecContext(ctx, q)
	return err
}

// A worker does not work in a transaction of somebody else's; Store does.
func TestInTransaction(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *sql.DB) {
		ctx := t.Context()
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		_, err = conn.ExecContext(ctx, `BEGIN`)
		require.NoError(t, err)
		out, err := inboxsql.Store(ctx, conn, inbox.Table{}, inbox.Message{Source: "s", Operation: "o", ID: "1"})
		require.NoError(t, err)
		require.Equal(t, inbox.Stored, out)
		_, err = inboxsql.Drain(ctx, conn, inbox.Worker{}, insert)
		require.Error(t, err)
		_ = conn.Close() // lib/pq has closed it, for a BEGIN in a transaction is too much for it
		require.Zero(t, count(t, db, `SELECT count(*) FROM effects`))
	})
}

// A transaction that was ended in SQL text stores nothing, where the driver knows of it.
func TestStoreAfterTheEnd(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", pgtest.DSN(t))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, inboxsql.Migrate(t.Context(), db))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `ROLLBACK`)
	require.NoError(t, err)
	_, err = inboxsql.Store(t.Context(), tx, inbox.Table{}, inbox.Message{Source: "s", Operation: "o", ID: "1"})
	require.ErrorIs(t, err, pg.ErrTxEnded)
	_ = tx.Rollback()
	require.Zero(t, count(t, db, `SELECT count(*) FROM inbox`))
}

// Whatever the defaults of the database's sessions, every call works.
func TestDefaults(t *testing.T) {
	for _, setting := range []string{
		"default_transaction_read_only = on",
		"default_transaction_isolation = serializable",
	} {
		t.Run(setting, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *sql.DB) {
				ctx := t.Context()
				var name string
				require.NoError(t, db.QueryRowContext(ctx, `SELECT quote_ident(current_database())`).Scan(&name))
				execSQL(t, db, `ALTER DATABASE `+name+` SET `+setting)
				db.SetMaxIdleConns(0) // new sessions from here on
				db.SetMaxIdleConns(4)
				_, value, _ := strings.Cut(setting, " = ")
				require.Equal(t, 1, count(t, db,
					`SELECT count(*) FROM pg_settings WHERE name LIKE 'default_transaction%' AND setting = $1`, value))

				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						for n := range 10 {
							m := inbox.Message{Source: "s", Operation: "o", ID: fmt.Sprint(n), Key: "k"}
							_, err := inboxsql.Store(ctx, db, inbox.Table{}, m)
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				for range 2 {
					all.Go(func() {
						if _, err := inboxsql.Drain(ctx, db, inbox.Worker{}, insert); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				require.Eventually(t, func() bool { // two that met at the key have left it alone for a moment
					_, err := inboxsql.Drain(ctx, db, inbox.Worker{}, insert)
					return err == nil && count(t, db, `SELECT count(*) FROM inbox WHERE state = 1`) == 0
				}, 20*time.Second, 50*time.Millisecond)
				require.Equal(t, 10, count(t, db, `SELECT count(*) FROM effects`))
				n, err := inboxsql.Replay(ctx, db, inbox.Table{}, inbox.Filter{State: inbox.Handled})
				require.NoError(t, err)
				require.EqualValues(t, 10, n)
				_, err = inboxsql.Drain(ctx, db, inbox.Worker{},
					func(context.Context, inboxsql.Tx, inbox.Message) error { return nil })
				require.NoError(t, err)
				p, err := inboxsql.Purge(ctx, db, inbox.Table{Keep: time.Microsecond})
				require.NoError(t, err)
				require.EqualValues(t, 10, p.Keys)
			})
		})
	}
}
