package idemsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

func nothing(context.Context, idemsql.Tx) error { return nil }

// never is an fn that must not be called.
func (s *site) never() func(context.Context, idemsql.Tx) error {
	return func(context.Context, idemsql.Tx) error {
		s.Error("fn was called")
		return nil
	}
}

func (s *site) begin() *sql.Tx {
	s.Helper()
	tx, err := s.sound.BeginTx(s.ctx, nil)
	require.NoError(s, err)
	s.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// Run inside of a transaction must not compile, and fn must have no way to end its transaction.
func TestTypes(t *testing.T) {
	t.Parallel()
	db, conn := reflect.TypeFor[idemsql.DB](), reflect.TypeFor[idemsql.Conn]()
	require.False(t, reflect.TypeFor[*sql.Tx]().Implements(db))
	require.False(t, reflect.TypeFor[idemsql.Tx]().Implements(db))
	for _, typ := range []reflect.Type{reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn]()} {
		require.True(t, typ.Implements(db), "%v", typ)
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*sql.Tx](), reflect.TypeFor[*sql.Conn](),
		reflect.TypeFor[idemsql.Tx](),
	} {
		require.True(t, typ.Implements(conn), "%v", typ)
	}
	sites(t, func(s *site) {
		check := func(_ context.Context, tx idemsql.Tx) error {
			typ := reflect.TypeOf(tx)
			for _, name := range []string{"Commit", "Rollback"} {
				_, ok := typ.MethodByName(name)
				require.False(s, ok, name)
			}
			return nil
		}
		_, err := idemsql.Run(s.ctx, s.sound, stripe.Key("1"), check)
		require.NoError(s, err)
		_, err = idemsql.Do(s.ctx, s.begin(), stripe.Key("2"), check)
		require.NoError(s, err)
	}, "pq")
}

// least is a transaction with the two methods that Do asks for.
type least struct{ q idemsql.Conn }

func (l least) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return l.q.ExecContext(ctx, query, args...)
}

func (l least) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return l.q.QueryContext(ctx, query, args...)
}

// What is in no transaction is refused before anything is written, whatever its type says.
func TestNoTransaction(t *testing.T) {
	sites(t, func(s *site) {
		conn, err := s.sound.Conn(s.ctx)
		require.NoError(s, err)
		defer conn.Close()
		key := stripe.Key("evt_1")
		s.deliver(stripe.Key("evt_2"), idem.Executed)
		for _, q := range []idemsql.Conn{s.sound, least{s.sound}, conn} {
			out, err := idemsql.Do(s.ctx, q, key, s.never())
			require.Zero(s, out)
			require.True(s, pgerr.Is(err, "25P01"), "%v", err)
			require.ErrorContains(s, err, "Run")
			require.False(s, idem.Retryable(err))
			var own *idem.Error
			require.ErrorAs(s, err, &own)
			require.Equal(s, idem.StageClaim, own.Stage)
			require.Equal(s, stripe, own.Scope)
			require.Zero(s, s.keys(key))
			require.True(s, pgerr.Is(idemsql.Once{}.Forget(s.ctx, q, stripe.Key("evt_2")), "25P01"))
			require.Equal(s, 1, s.keys(stripe.Key("evt_2")))
		}

		_, err = conn.ExecContext(s.ctx, `BEGIN`)
		require.NoError(s, err)
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := idemsql.Do(s.ctx, conn, key, s.effect(key, new(atomic.Int32)))
			require.NoError(s, err)
			require.Equal(s, want, out)
		}
		_, err = conn.ExecContext(s.ctx, `COMMIT`)
		require.NoError(s, err)
		s.deliver(key, idem.Duplicate)
	})
}

// A transaction with two methods will do; what it lacks is said where it is asked for.
func TestLeastTransaction(t *testing.T) {
	sites(t, func(s *site) {
		key := stripe.Key("evt_1")
		tx := s.begin()
		out, err := idemsql.Do(s.ctx, least{tx}, key, func(ctx context.Context, own idemsql.Tx) error {
			var n int
			require.ErrorContains(s, own.QueryRowContext(ctx, `SELECT 1`).Scan(&n), "no such method")
			_, err := own.PrepareContext(ctx, `SELECT 1`)
			require.ErrorContains(s, err, "no such method")
			out, err := idemsql.Do(ctx, own, stripe.Key("inner"), nothing)
			require.NoError(s, err)
			require.Equal(s, idem.Executed, out)
			return s.effect(key, new(atomic.Int32))(ctx, own)
		})
		require.NoError(s, err)
		require.Equal(s, idem.Executed, out)
		require.NoError(s, tx.Commit())
		s.deliver(key, idem.Duplicate)

		// The methods of a *sql.Tx are all there.
		_, err = idemsql.Run(s.ctx, s.sound, stripe.Key("evt_2"), func(ctx context.Context, tx idemsql.Tx) error {
			var n int
			require.NoError(s, tx.QueryRowContext(ctx, `SELECT 1`).Scan(&n))
			st, err := tx.PrepareContext(ctx, `SELECT 1`)
			require.NoError(s, err)
			return st.QueryRowContext(ctx).Scan(&n)
		})
		require.NoError(s, err)
	}, typical...)
}

// A connection that is in a transaction is refused: a BEGIN there is only a warning, and the COMMIT would be the
// caller's.
func TestConnectionInTransaction(t *testing.T) {
	sites(t, func(s *site) {
		for _, begin := range []func(*sql.Conn) (end func()){
			func(c *sql.Conn) func() {
				_, err := c.ExecContext(s.ctx, `BEGIN`)
				require.NoError(s, err)
				return func() { _, _ = c.ExecContext(s.ctx, `ROLLBACK`) } // lib/pq has given the connection up
			},
			func(c *sql.Conn) func() {
				tx, err := c.BeginTx(s.ctx, nil)
				require.NoError(s, err)
				return func() { _ = tx.Rollback() }
			},
		} {
			for name, use := range map[string]func(*sql.Conn) error{
				"Run": func(c *sql.Conn) error {
					out, err := idemsql.Run(s.ctx, c, stripe.Key("1"), s.never())
					require.Zero(s, out)
					return err
				},
				"Reserve": func(c *sql.Conn) error {
					_, out, err := idemsql.Once{}.Reserve(s.ctx, c, stripe.Key("1"), time.Hour)
					require.Zero(s, out)
					return err
				},
				"Call": func(c *sql.Conn) error {
					call := s.till(stripe.Key("1"))
					_, out, err := call.Run(s.ctx, c, stripe.Key("1"))
					require.Zero(s, out)
					require.Zero(s, call.sent.Load())
					return err
				},
				"Migrate": func(c *sql.Conn) error { return idemsql.Migrate(s.ctx, c) },
			} {
				conn, err := s.sound.Conn(s.ctx)
				require.NoError(s, err)
				end := begin(conn)
				_, err = conn.ExecContext(s.ctx, `INSERT INTO effects (what) VALUES ('outer')`)
				require.NoError(s, err)
				require.ErrorContains(s, use(conn), "transaction", name)
				end()
				require.Zero(s, s.count(`SELECT count(*) FROM effects`), name)
				require.Zero(s, s.keys(stripe.Key("1")), name)
				_ = conn.Close()
			}
		}
		conn, err := s.sound.Conn(s.ctx)
		require.NoError(s, err)
		defer conn.Close()
		require.NoError(s, idemsql.Migrate(s.ctx, conn))
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := idemsql.Run(s.ctx, conn, stripe.Key("1"), nothing)
			require.NoError(s, err)
			require.Equal(s, want, out)
		}
	})
}

// What fn can do to the caller's transaction behind Do's back. Each is found, and no commit brings half of it.
func TestMisuse(t *testing.T) {
	errFn := errors.New("fn")
	for _, c := range []struct {
		name string
		want error // nil: an error of Do's own
		fn   func(ctx context.Context, outer *sql.Tx, own idemsql.Tx) error
	}{
		{"commits", nil, func(_ context.Context, outer *sql.Tx, _ idemsql.Tx) error { return outer.Commit() }},
		{"rolls back", nil, func(_ context.Context, outer *sql.Tx, _ idemsql.Tx) error { return outer.Rollback() }},
		{"commits, and fails", errFn, func(_ context.Context, outer *sql.Tx,
			_ idemsql.Tx,
		) error {
			_ = outer.Commit()
			return errFn
		}},
		{"leaves rows open", nil, func(ctx context.Context, _ *sql.Tx, own idemsql.Tx) error {
			_, err := own.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			return err
		}},
		{"leaves rows open, and fails", errFn, func(ctx context.Context, _ *sql.Tx, own idemsql.Tx) error {
			_, err := own.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			return errors.Join(errFn, err)
		}},
		{"leaves rows of the outer one open", nil, func(ctx context.Context, outer *sql.Tx, _ idemsql.Tx) error {
			_, err := outer.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			return err
		}},
		{"leaves rows of the outer one open, and fails", errFn, func(ctx context.Context, outer *sql.Tx, _ idemsql.Tx) error {
			_, err := outer.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			return errors.Join(errFn, err)
		}},
		{"commits and begins anew in SQL", nil, func(ctx context.Context, _ *sql.Tx, own idemsql.Tx) error {
			_, err := own.ExecContext(ctx, `COMMIT AND CHAIN`)
			return err
		}},
		{"rolls back and begins anew in SQL", nil, func(ctx context.Context, _ *sql.Tx, own idemsql.Tx) error {
			_, err := own.ExecContext(ctx, `ROLLBACK AND CHAIN`)
			if err == nil {
				_, err = own.ExecContext(ctx, `INSERT INTO business (id) VALUES ('x')`)
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sites(t, func(s *site) {
				key := stripe.Key("evt_1")
				tx := s.begin()
				out, err := idemsql.Do(s.ctx, tx, key, func(ctx context.Context, own idemsql.Tx) error {
					require.NoError(s, s.effect(key, new(atomic.Int32))(ctx, own))
					return c.fn(ctx, tx, own)
				})
				require.Zero(s, out)
				if c.want != nil {
					require.ErrorIs(s, err, c.want)
				} else {
					var own *idem.Error
					require.ErrorAs(s, err, &own)
					require.Equal(s, idem.StageFn, own.Stage)
				}
				require.Error(s, tx.Commit())
				require.True(s, newDB(s.sound).Idle(s.ctx))
				require.Equal(s, s.effects(key), s.keys(key), "key and effect stand or fall together")
			}, typical...)
		})
	}
}

// The same on a *sql.Conn, which has no Rollback.
func TestMisuseOfConn(t *testing.T) {
	leave := func(s *site, closes bool, query func(*sql.Conn, idemsql.Tx) idemsql.Conn) {
		key := stripe.Key("evt_1")
		conn, err := s.sound.Conn(s.ctx)
		require.NoError(s, err)
		_, err = conn.ExecContext(s.ctx, `BEGIN`)
		require.NoError(s, err)
		var rows *sql.Rows
		_, err = idemsql.Do(s.ctx, conn, key, func(ctx context.Context, own idemsql.Tx) error {
			require.NoError(s, s.effect(key, new(atomic.Int32))(ctx, own))
			rows, err = query(conn, own).QueryContext(ctx, `SELECT generate_series(1, 100000)`)
			return err
		})
		require.ErrorContains(s, err, "rows are still open")
		_ = rows.Close()
		_, err = conn.ExecContext(s.ctx, `COMMIT`) // which says nothing of a transaction that had failed
		require.Equal(s, closes, err != nil, "%v", err)
		_ = conn.Close()
		require.True(s, newDB(s.sound).Idle(s.ctx))
		require.Zero(s, s.keys(key))
		require.Zero(s, s.effects(key))
	}
	t.Run("leaves rows open", func(t *testing.T) {
		sites(t, func(s *site) {
			leave(s, false, func(_ *sql.Conn, own idemsql.Tx) idemsql.Conn { return own })
		})
	})
	// The connection is closed where it cannot be told to fail. (Over stdlib, database/sql itself would wait for the
	// rows.)
	t.Run("leaves rows of the outer one open", func(t *testing.T) {
		sites(t, func(s *site) {
			leave(s, true, func(outer *sql.Conn, _ idemsql.Tx) idemsql.Conn { return outer })
		}, "pq")
	})
}

// forgetful loses the answer of one statement that the server has done.
type forgetful struct {
	*sql.Tx
	lose func(n int32) bool
	n    atomic.Int32
}

var errForgotten = errors.New("the answer was not had")

func (f *forgetful) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := f.Tx.QueryContext(ctx, query, args...)
	if err == nil && f.lose(f.n.Add(1)) {
		for rows.Next() {
		}
		_ = rows.Close()
		return nil, errForgotten
	}
	return rows, err
}

// A claim whose answer is lost on the client's side alone, as when a context ends while it is read: the row is in the
// transaction, and no commit may bring it.
func TestClaimWithoutAnswer(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		for n := int32(1); n <= 3; n++ {
			t.Run(fmt.Sprint(wait, "/", n), func(t *testing.T) {
				t.Parallel()
				sites(t, func(s *site) {
					key := stripe.Key("evt_1")
					tx := &forgetful{Tx: s.begin(), lose: func(i int32) bool { return i == n }}
					out, err := idemsql.Once{MaxWait: wait}.Do(s.ctx, tx, key, s.effect(key, new(atomic.Int32)))
					if err == nil {
						require.Greater(s, n, int32(2), "the fault did not happen")
						return
					}
					require.Zero(s, out)
					require.ErrorIs(s, err, errForgotten)
					require.Error(s, tx.Commit())
					require.Zero(s, s.keys(key))
				}, typical...)
			})
		}
	}
}

// ctx ends in fn: nothing happens to the transaction behind fn's back, and nothing is committed.
func TestContextEndsInFn(t *testing.T) {
	sites(t, func(s *site) {
		ctx, cancel := context.WithCancel(s.ctx)
		key := stripe.Key("evt_1")
		before := s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`)
		require.Zero(s, before)
		out, err := idemsql.Run(ctx, s.sound, key, func(_ context.Context, tx idemsql.Tx) error {
			cancel()
			for range 20 { // database/sql would be quick
				time.Sleep(time.Millisecond)
				if _, err := tx.ExecContext(s.ctx, `SELECT 1`); err != nil {
					s.Error("the transaction is gone: ", err)
				}
			}
			return s.effect(key, new(atomic.Int32))(s.ctx, tx)
		})
		require.Zero(s, out)
		require.ErrorIs(s, err, context.Canceled)
		require.False(s, pgerr.CommitUnknown(err))
		require.Zero(s, s.keys(key))
		s.deliver(key, idem.Executed)
	})
}

// A driver that reports the server's 57014 for a context that has ended does not hide the end.
func TestContextEndsWhileWaiting(t *testing.T) {
	sites(t, func(s *site) {
		key := stripe.Key("evt_1")
		holder := s.begin()
		_, err := idemsql.Do(s.ctx, holder, key, nothing)
		require.NoError(s, err)
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		defer cancel()
		_, err = idemsql.Run(ctx, s.sound, key, s.never())
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.NoError(s, holder.Rollback())
	})
}

// A pool of one connection is enough, and where it is taken Run waits for as long as ctx allows.
func TestOneConnection(t *testing.T) {
	sites(t, func(s *site) {
		db := s.broken(nil)
		db.SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		defer cancel()
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
			out, err := idemsql.Run(ctx, db, stripe.Key("1"), nothing)
			require.NoError(s, err)
			require.Equal(s, want, out)
			_, err = idemsql.Once{}.Lookup(ctx, db, stripe.Key("1"))
			require.NoError(s, err)
		}
		_, err := idemsql.Run(ctx, db, stripe.Key("2"), func(context.Context, idemsql.Tx) error { return sql.ErrNoRows })
		require.Same(s, sql.ErrNoRows, err)

		conn, err := db.Conn(ctx)
		require.NoError(s, err)
		short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
		defer stop()
		_, err = idemsql.Run(short, db, stripe.Key("3"), s.never())
		require.ErrorIs(s, err, context.DeadlineExceeded)
		require.False(s, pgerr.CommitUnknown(err))
		// A *sql.Conn is a DB, too.
		out, err := idemsql.Run(ctx, conn, stripe.Key("3"), nothing)
		require.NoError(s, err)
		require.Equal(s, idem.Executed, out)
		require.NoError(s, conn.Close())
		s.gone(db)

		_, err = idemsql.Once{Tries: 2}.Run(ctx, db, stripe.Key("4"), s.never())
		require.Error(s, err, "a closed database")
		require.False(s, pgerr.CommitUnknown(err))
	}, typical...)
}

// A ROLLBACK that the network swallows holds Run up for a bounded time.
func TestRollbackIsBounded(t *testing.T) {
	t.Parallel()
	sites(t, func(s *site) {
		script := &faultconn.Script{When: faultconn.Containing("rollback"), Mode: faultconn.Stall}
		defer script.Release()
		db := s.broken(script)
		done := make(chan error, 1)
		go func() {
			_, err := idemsql.Run(s.ctx, db, stripe.Key("1"), func(context.Context, idemsql.Tx) error { return sql.ErrNoRows })
			done <- err
		}()
		select {
		case err := <-done:
			require.Same(s, sql.ErrNoRows, err)
		case <-time.After(40 * time.Second):
			s.Fatal("Run does not return")
		}
		require.Equal(s, 1, script.Hits())
		script.Release()
		s.gone(db)
	}, "stdlib/cache statement")
}

// The server's own words about a row hold the key: they are not passed on, whatever the driver.
func TestErrorText(t *testing.T) {
	sites(t, func(s *site) {
		_, err := s.sound.ExecContext(s.ctx, `ALTER TABLE processed_events ADD CONSTRAINT own CHECK (key NOT LIKE 'very%')`)
		require.NoError(s, err)
		_, err = idemsql.Run(s.ctx, s.sound, stripe.Key("very-secret"), nothing)
		require.True(s, pgerr.Is(err, "23514"), "%v", err)
		require.Equal(s, "own", pgerr.Constraint(err))
		for e := err; e != nil; e = errors.Unwrap(e) {
			require.NotContains(s, fmt.Sprintf("%v %+v", e, reflect.Indirect(reflect.ValueOf(e))), "secret")
		}

		s.deliver(stripe.Key("1").WithPayload([]byte("a")), idem.Executed)
		_, err = idemsql.Run(s.ctx, s.sound, stripe.Key("1").WithPayload([]byte("b")), nothing)
		require.EqualError(s, err, "idem: claim (stripe, activate): the key was used before with another payload")
	})
}

func TestMigrateAndVerify(t *testing.T) {
	sites(t, func(s *site) {
		own := dedup.Table{Name: `app."odd.name"`}
		_, err := s.sound.ExecContext(s.ctx, `CREATE SCHEMA app`)
		require.NoError(s, err)
		var missing *dedup.VerifyError
		require.ErrorAs(s, idemsql.Verify(s.ctx, s.sound, dedup.Table{}, own), &missing)
		require.Len(s, missing.Problems, 1)
		require.Equal(s, "table missing", missing.Problems[0].Kind.String())

		errs := make(chan error, 8)
		for range cap(errs) {
			go func() { errs <- idemsql.Migrate(s.ctx, s.sound, dedup.Table{}, own) }()
		}
		for range cap(errs) {
			require.NoError(s, <-errs)
		}
		require.NoError(s, idemsql.Verify(s.ctx, s.sound))
		tx := s.begin()
		require.NoError(s, idemsql.Verify(s.ctx, tx, dedup.Table{}, own))
		_, err = tx.ExecContext(s.ctx, `SET LOCAL synchronous_commit = off`)
		require.NoError(s, err)
		var session *dedup.VerifyError
		require.ErrorAs(s, idemsql.Verify(s.ctx, tx, dedup.Table{}, own), &session)
		require.NoError(s, session.Except(dedup.KindAsynchronousCommit))
		require.NoError(s, tx.Rollback())
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := idemsql.Once{Table: own}.Run(s.ctx, s.sound, stripe.Key("1"), nothing)
			require.NoError(s, err)
			require.Equal(s, want, out)
		}

		_, err = s.sound.ExecContext(s.ctx, `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
		require.NoError(s, err)
		for _, err := range []error{idemsql.Verify(s.ctx, s.sound), idemsql.Migrate(s.ctx, s.sound)} {
			var broken *dedup.VerifyError
			require.ErrorAs(s, err, &broken)
			require.Equal(s, "constraint missing", broken.Problems[0].Kind.String())
		}
		// Of several tables the one that cannot be mended leaves the others unmade.
		require.Error(s, idemsql.Migrate(s.ctx, s.sound, dedup.Table{Name: "another"}, dedup.Table{}))
		require.Equal(s, 1, s.count(`SELECT (to_regclass('another') IS NULL)::int`))
		require.True(s, newDB(s.sound).Idle(s.ctx))

		require.Error(s, idemsql.Migrate(s.ctx, s.sound, dedup.Table{Name: "a.b.c"}))
		require.Error(s, idemsql.Verify(s.ctx, s.sound, dedup.Table{Layout: 99}))
	})
}

// The drivers notice a COMMIT that was a roll back; one that does not is met by the check that comes before.
func TestCommitThatRollsBack(t *testing.T) {
	sites(t, func(s *site) {
		tx := s.begin()
		_, err := tx.ExecContext(s.ctx, `SELECT * FROM no_such_table`)
		require.Error(s, err)
		require.Error(s, tx.Commit())

		db := sql.OpenDB(liar{(&flaky{}).over(s.broken(nil)), new(atomic.Int32)})
		defer closes(s, db)
		key := stripe.Key("evt_1")
		_, err = idemsql.Run(s.ctx, db, key, func(ctx context.Context, tx idemsql.Tx) error {
			_, _ = tx.ExecContext(ctx, `SELECT * FROM no_such_table`)
			return nil
		})
		var own *idem.Error
		require.ErrorAs(s, err, &own)
		require.Equal(s, idem.StageFn, own.Stage)
		require.Zero(s, s.keys(key))
	}, typical...)
}

// liar is a driver that reports every COMMIT as done.
type liar struct {
	driver.Connector
	commits *atomic.Int32
}

func (l liar) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := l.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return liarConn{c.(*flakyConn), l}, nil
}

type liarConn struct {
	*flakyConn
	l liar
}

func (c liarConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.flakyConn.BeginTx(ctx, opts)
	return liarTx{tx, c.l}, err
}

type liarTx struct {
	driver.Tx
	l liar
}

func (t liarTx) Commit() error {
	t.l.commits.Add(1)
	_ = t.Tx.Commit()
	return nil
}

// A consumer that shuts down closes its database, and must not send what it was at to the dead letters.
func TestClosedDB(t *testing.T) {
	sites(t, func(s *site) {
		fn := func(context.Context, idemsql.Tx) error { return nil }
		db := s.broken(nil)
		conn, err := db.Conn(s.ctx)
		require.NoError(s, err)
		require.NoError(s, conn.Close())
		_, err = idemsql.Run(s.ctx, conn, stripe.Key("1"), fn)
		require.True(s, idem.Retryable(err), "%v", err)
		require.NoError(s, db.Close())
		_, err = idemsql.Run(s.ctx, db, stripe.Key("1"), fn)
		require.True(s, idem.Retryable(err), "%v", err)
	}, typical...)
}
