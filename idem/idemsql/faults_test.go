package idemsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/faultconn"
	"github.com/pgonce/pgonce/internal/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

var stripe = idem.Scope{Source: "stripe", Operation: "activate"}

// site is a database that is reached soundly, and over connections that a script breaks.
type site struct {
	*testing.T
	ctx    context.Context
	sound  *sql.DB
	broken func(*faultconn.Script) *sql.DB
}

// sites runs a test over each of the drivers named, or over all: in a run that is not full, over the typical ones.
func sites(t *testing.T, test func(s *site), names ...string) {
	for _, d := range pgtest.Matrix(drivers, opener.String, typical...) {
		want := len(names) == 0
		for _, name := range names {
			want = want || name == d.name
		}
		if !want {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			t.Cleanup(cancel)
			dsn := pgtest.DSN(t)
			s := &site{T: t, ctx: ctx, sound: migrated(t, d.open(t, dsn, nil))}
			s.broken = func(script *faultconn.Script) *sql.DB {
				db := d.open(t, dsn, script)
				db.SetMaxOpenConns(2)
				return db
			}
			test(s)
		})
	}
}

// long asks for the long form of the fault tests: every driver, and every way.
var long = os.Getenv("PGONCE_LONG") != ""

// typical are the drivers in the modes that most use.
var typical = []string{"stdlib/cache statement", "pq"}

// effect leaves a row for the key, and counts its calls.
func (s *site) effect(key idem.Key, calls *atomic.Int32) func(context.Context, idemsql.Tx) error {
	return func(ctx context.Context, tx idemsql.Tx) error {
		calls.Add(1)
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (what) VALUES ($1)`, key.ID())
		return err
	}
}

func (s *site) count(query string, args ...any) (n int) {
	s.Helper()
	require.NoError(s, s.sound.QueryRowContext(s.ctx, query, args...).Scan(&n))
	return n
}

func (s *site) effects(key idem.Key) int {
	s.Helper()
	return s.count(`SELECT count(*) FROM effects WHERE what = $1`, key.ID())
}

func (s *site) keys(key idem.Key) int {
	s.Helper()
	return s.count(`SELECT count(*) FROM processed_events WHERE key = $1`, key.ID())
}

// deliver runs the key soundly, wants one of the outcomes, and one effect afterwards.
func (s *site) deliver(key idem.Key, want ...idem.Outcome) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	out, err := idemsql.Run(ctx, s.sound, key, s.effect(key, new(atomic.Int32)))
	require.NoError(s, err, "the same key again")
	require.Contains(s, want, out)
	require.Equal(s, 1, s.effects(key))
}

// gone closes a broken database, which must return, and waits until the server has no transaction of it open.
func (s *site) gone(db *sql.DB) {
	s.Helper()
	require.Eventually(s, func() bool { return db.Stats().InUse == 0 }, 20*time.Second, time.Millisecond,
		"a connection is lost to the pool")
	closes(s, db)
	require.True(s, newDB(s.sound).Idle(s.ctx), "a transaction is still open")
}

// eventually waits until cond holds.
func (s *site) eventually(what string, cond func() bool) {
	s.Helper()
	require.Eventually(s, cond, 20*time.Second, time.Millisecond, what)
}

// A COMMIT that was lost, or whose reply was, is settled by claiming again.
func TestLostCommit(t *testing.T) {
	sites(t, func(s *site) {
		for fault, runs := range map[faultconn.Mode]int32{faultconn.DropReply: 1, faultconn.DropBefore: 2, faultconn.Reset: 2} {
			script := &faultconn.Script{When: faultconn.Commit, Mode: fault}
			db := s.broken(script)
			var calls atomic.Int32
			key := stripe.Key(fault.String())
			out, err := idemsql.Run(s.ctx, db, key, s.effect(key, &calls))
			require.NoError(s, err, "%v: %v", fault, script)
			require.Equal(s, idem.Executed, out, "%v", fault)
			require.Equal(s, 1, script.Hits(), "%v", fault)
			require.Equal(s, 1, s.effects(key), "%v", fault)
			require.Equal(s, runs, calls.Load(), "how often fn ran: %v", fault)
			s.gone(db)
			s.deliver(key, idem.Duplicate)
		}
	})
}

// No new connection can be had: unknown is said to be unknown, and the same key later gets the right answer.
func TestUnknownCommit(t *testing.T) {
	for fault, later := range map[faultconn.Mode]idem.Outcome{
		faultconn.DropReply:  idem.Duplicate,
		faultconn.DropBefore: idem.Executed,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			sites(t, func(s *site) {
				script := &faultconn.Script{When: faultconn.Commit, Mode: fault, Refuse: true}
				db := s.broken(script)
				key := stripe.Key("evt_1")
				out, err := idemsql.Once{Tries: 3}.Run(s.ctx, db, key, s.effect(key, new(atomic.Int32)))
				wantUnknown(s, out, err)
				script.Release()
				s.gone(db)
				s.deliver(key, later)
			}, typical...)
		})
	}
}

func wantUnknown(s *site, out idem.Outcome, err error) {
	s.Helper()
	require.Zero(s, out)
	require.True(s, pgerr.CommitUnknown(err), "%v", err)
	require.True(s, idem.Retryable(err))
	var own *idem.Error
	require.ErrorAs(s, err, &own)
	require.True(s, own.Unknown)
	require.Equal(s, idem.StageCommit, own.Stage)
}

// A context that ends while COMMIT is under way: Run returns soon after, and does not claim to know.
func TestContextEndsDuringCommit(t *testing.T) {
	for name, when := range map[string]func(faultconn.Message) bool{
		"before it arrives": faultconn.Commit,
		"before its reply":  faultconn.CommitReply,
	} {
		t.Run(name, func(t *testing.T) {
			sites(t, func(s *site) {
				ctx, cancel := context.WithCancel(s.ctx)
				defer cancel()
				script := &faultconn.Script{When: when, Mode: faultconn.Stall, Do: func(faultconn.Message) { cancel() }}
				defer script.Release()
				db := s.broken(script)
				key := stripe.Key("evt_1")
				type answer struct {
					out idem.Outcome
					err error
				}
				answers := make(chan answer, 1)
				go func() {
					out, err := idemsql.Run(ctx, db, key, s.effect(key, new(atomic.Int32)))
					answers <- answer{out, err}
				}()
				select {
				case got := <-answers:
					wantUnknown(s, got.out, got.err)
				case <-time.After(30 * time.Second):
					s.Fatal("Run does not return")
				}
				require.Equal(s, 1, script.Hits(), "%v", script)
				script.Release()
				s.gone(db)
				s.deliver(key, idem.Executed, idem.Duplicate)
			}, "stdlib/cache statement")
		})
	}
}

// database/sql tries a bad connection's statement again on another one: outside of transactions, and where it begins one.
// So whatever a driver calls a bad connection, fn runs once for each transaction, and no key is claimed unnoticed.
func TestBadConnections(t *testing.T) {
	kill := func(s *site, db *sql.DB) {
		// Every idle connection, so that the next one that is taken out is dead and does not know it.
		s.count(`
			SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			 WHERE datname = current_database() AND application_name = 'broken'`)
		s.eventually("the sessions are gone", func() bool {
			return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'broken'`) == 0
		})
	}
	name := func(s *site, db *sql.DB) {
		var conns []*sql.Conn
		for range 2 {
			c, err := db.Conn(s.ctx)
			require.NoError(s, err)
			_, err = c.ExecContext(s.ctx, `SET application_name = 'broken'`)
			require.NoError(s, err)
			conns = append(conns, c)
		}
		for _, c := range conns {
			require.NoError(s, c.Close())
		}
	}

	t.Run("idle connections", func(t *testing.T) {
		sites(t, func(s *site) {
			db := s.broken(nil)
			db.SetMaxIdleConns(2)
			name(s, db)
			kill(s, db)
			var calls atomic.Int32
			key := stripe.Key("evt_1")
			out, err := idemsql.Run(s.ctx, db, key, s.effect(key, &calls))
			require.NoError(s, err)
			require.Equal(s, idem.Executed, out)
			require.EqualValues(s, 1, calls.Load())
			s.gone(db)
			s.deliver(key, idem.Duplicate)
		})
	})

	// The driver says driver.ErrBadConn, truthfully or not, to one call of the n-th transaction.
	cases := []struct {
		name  string
		fail  func(f *flaky)
		calls int32
	}{
		{"BEGIN", func(f *flaky) { f.begin = 1 }, 1},
		{"BEGIN, done already", func(f *flaky) { f.begin, f.after = 1, true }, 1},
		{"the claim", func(f *flaky) { f.statement = 1 }, 1},
		{"the claim, done already", func(f *flaky) { f.statement, f.after = 1, true }, 1},
		{"the effect", func(f *flaky) { f.statement = 2 }, 2},
		{"the effect, done already", func(f *flaky) { f.statement, f.after = 2, true }, 2},
		{"COMMIT", func(f *flaky) { f.commit = 1 }, 2},
		{"COMMIT, done already", func(f *flaky) { f.commit, f.after = 1, true }, 1},
	}
	t.Run("told", func(t *testing.T) {
		sites(t, func(s *site) {
			for _, c := range cases {
				f := &flaky{}
				c.fail(f)
				under := s.broken(nil)
				db := sql.OpenDB(f.over(under))
				var calls atomic.Int32
				key := stripe.Key(c.name)
				out, err := idemsql.Run(s.ctx, db, key, s.effect(key, &calls))
				require.NoError(s, err, c.name)
				require.Equal(s, idem.Executed, out, c.name)
				require.True(s, f.fired.Load(), "the fault did not happen: %s", c.name)
				require.Equal(s, c.calls, calls.Load(), "how often fn ran: %s", c.name)
				s.gone(db)
				s.gone(under)
				s.deliver(key, idem.Duplicate)
			}
		}, typical...)
	})
}

// flaky answers driver.ErrBadConn to the n-th BEGIN, statement or COMMIT that comes, once: instead of it, or after it.
type flaky struct {
	begin, statement, commit int32
	after                    bool

	begins, statements, commits atomic.Int32
	fired                       atomic.Bool
}

// call does what it is to do, or says that the connection is bad.
func (f *flaky) call(seen *atomic.Int32, n int32, do func() error) error {
	if seen.Add(1) != n || f.fired.Swap(true) {
		return do()
	}
	if f.after {
		if err := do(); err != nil {
			return err
		}
	}
	return driver.ErrBadConn
}

// over returns a connector to what db connects to.
func (f *flaky) over(db *sql.DB) driver.Connector { return flakyConnector{f, db} }

type flakyConnector struct {
	f  *flaky
	db *sql.DB
}

func (c flakyConnector) Driver() driver.Driver { return c.db.Driver() }

func (c flakyConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var inner driver.Conn
	err = conn.Raw(func(c any) error { inner = c.(driver.Conn); return nil })
	return &flakyConn{inner, conn, c.f, false}, err
}

// flakyConn is a connection that database/sql must not use again once it was called bad.
type flakyConn struct {
	driver.Conn
	outer *sql.Conn
	f     *flaky
	bad   bool
}

func (c *flakyConn) Close() error {
	_ = c.Conn.Close()
	_ = c.outer.Raw(func(any) error { return driver.ErrBadConn })
	return nil
}

func (c *flakyConn) IsValid() bool { return !c.bad }

func (c *flakyConn) call(seen *atomic.Int32, n int32, do func() error) error {
	if c.bad {
		return driver.ErrBadConn
	}
	err := c.f.call(seen, n, do)
	c.bad = c.bad || errors.Is(err, driver.ErrBadConn)
	return err
}

func (c *flakyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.call(&c.f.begins, c.f.begin, func() error {
		tx, err = c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return err
	})
	return flakyTx{tx, c}, err
}

func (c *flakyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.call(&c.f.statements, c.f.statement, func() error {
		res, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

func (c *flakyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.call(&c.f.statements, c.f.statement, func() error {
		rows, err = c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
		return err
	})
	if err != nil && rows != nil {
		_ = rows.Close()
	}
	return rows, err
}

type flakyTx struct {
	driver.Tx
	c *flakyConn
}

func (t flakyTx) Commit() error { return t.c.call(&t.c.f.commits, t.c.f.commit, t.Tx.Commit) }

func (t flakyTx) Rollback() error {
	if t.c.bad {
		return driver.ErrBadConn
	}
	return t.Tx.Rollback()
}

// way is one way to run a key once, with its transaction.
type way struct {
	name  string
	short bool // a duplicate, too, in the short form
	run   func(ctx context.Context, db *sql.DB, key idem.Key, fn func(context.Context, idemsql.Tx) error) (idem.Outcome, error)
}

var ways = []way{
	{"Run", true, func(ctx context.Context, db *sql.DB, key idem.Key, fn func(context.Context, idemsql.Tx) error) (idem.Outcome, error) {
		return idemsql.Run(ctx, db, key, fn)
	}},
	{"Do with MaxWait", false, func(ctx context.Context, db *sql.DB, key idem.Key, fn func(context.Context, idemsql.Tx) error) (idem.Outcome, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer func() { _ = tx.Rollback() }()
		out, err := idemsql.Once{MaxWait: 10 * time.Second}.Do(ctx, tx, key, fn)
		if err != nil {
			return 0, err
		}
		return out, tx.Commit()
	}},
}

// Run and Do are cut at every message that they exchange, or their context cancelled there, one by one, and the delivery
// is repeated: one effect, always.
func TestCutAtEveryMessage(t *testing.T) {
	names := typical
	if long {
		names = nil
	}
	for _, w := range ways {
		for _, seen := range []bool{false, true} {
			if seen && !w.short && !long {
				continue
			}
			t.Run(fmt.Sprintf("%s/seen %v", w.name, seen), func(t *testing.T) {
				t.Parallel()
				sites(t, func(s *site) {
					number := 0
					cut := func(script *faultconn.Script, cancels bool) {
						number++
						key := stripe.Key(fmt.Sprint(number))
						if seen {
							s.deliver(key, idem.Executed)
						}
						ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
						defer cancel()
						if cancels {
							script.Do = func(faultconn.Message) { cancel() }
						}
						db := s.broken(script)
						out, err := w.run(ctx, db, key, s.effect(key, new(atomic.Int32)))
						s.gone(db)
						s.checkCut(key, seen, out, err, script)
						if script.Mode != faultconn.Pass && err != nil {
							require.NotEqual(s, "Run", w.name, "one cut is met by the next try: %v\n%v", err, script)
							require.True(s, idem.Retryable(err), "%v\n%v", err, script)
						}
					}
					counted := &faultconn.Script{}
					cut(counted, false)
					for _, side := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
						require.Greater(s, counted.Count(side), 1)
						for n := 1; n <= counted.Count(side); n++ {
							for _, fault := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Pass} {
								// A message whose reply is lost is a reply that is cut off before it comes, which the other side has.
								if fault == faultconn.DropReply && (side == faultconn.Backend || !long) {
									continue
								}
								script := &faultconn.Script{From: side, N: n, Mode: fault}
								cut(script, fault == faultconn.Pass)
								require.Equal(s, 1, script.Hits(), "message %v %d was not reached", side, n)
							}
						}
					}
					s.Logf("%d cuts", number)
				}, names...)
			})
		}
	}
}

// checkCut wants that a call which met a fault told the truth, and that the next delivery ends well.
func (s *site) checkCut(key idem.Key, seen bool, out idem.Outcome, err error, script *faultconn.Script) {
	s.Helper()
	effects := s.effects(key)
	require.LessOrEqual(s, effects, 1, "%v", script)
	require.Equal(s, effects, s.keys(key), "key and effect stand or fall together\n%v", script)
	switch {
	case err == nil:
		require.Equal(s, 1, effects, "success without the effect\n%v", script)
		want := idem.Executed
		if seen {
			want = idem.Duplicate
		}
		require.Equal(s, want, out, "%v", script)
	case effects == 1 && !seen:
		// The effect is there, and the call has an error: only an unknown COMMIT may be so.
		require.True(s, pgerr.CommitUnknown(err), "%v\n%v", err, script)
	}
	s.deliver(key, idem.Executed, idem.Duplicate)
}
