package idemsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
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
			test(d.site(t))
		})
	}
}

func (d opener) site(t *testing.T) *site {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	dsn := pgtest.DSN(t)
	s := &site{T: t, ctx: ctx, sound: migrated(t, d.open(t, dsn, nil))}
	s.broken = func(script *faultconn.Script) *sql.DB {
		db := d.open(t, dsn, script)
		db.SetMaxOpenConns(2)
		return db
	}
	return s
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

// faulty runs a fault test of the suite over each of the drivers named.
func faulty(t *testing.T, names []string, test func(t *testing.T, open func(*testing.T) conformance.Breakable)) {
	for _, d := range drivers {
		if !slices.Contains(names, d.name) {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			test(t, func(t *testing.T) conformance.Breakable {
				s := d.site(t)
				return conformance.Breakable{
					Sound: newDB(s.sound),
					Broken: func(script *faultconn.Script) (conformance.DB, func()) {
						db := s.broken(script)
						return newDB(db), func() { s.gone(db) }
					},
				}
			})
		})
	}
}

// most are the drivers that a test runs over by default.
func most() []string {
	var names []string
	for _, d := range pgtest.Matrix(drivers, opener.String, typical...) {
		names = append(names, d.name)
	}
	return names
}

func TestLostCommit(t *testing.T) { faulty(t, most(), conformance.LostCommit) }

func TestUnknownCommit(t *testing.T) { faulty(t, typical, conformance.UnknownCommit) }

func TestEndsDuringCommit(t *testing.T) { faulty(t, typical[:1], conformance.EndsDuringCommit) }

func TestCutAtEveryMessage(t *testing.T) { eachCut(t, conformance.CutAtEveryMessage) }

func TestCancelAtEveryMessage(t *testing.T) { eachCut(t, conformance.CancelAtEveryMessage) }

func eachCut(t *testing.T, test func(*testing.T, conformance.Cuts)) {
	names, ways := typical, []string{"Run", "Do with MaxWait"}
	if long {
		names, ways = most(), append(ways, "Run with MaxWait", "Do")
	}
	faulty(t, names, func(t *testing.T, open func(*testing.T) conformance.Breakable) {
		test(t, conformance.Cuts{Open: open, Ways: ways, Long: long})
	})
}

// database/sql tries a bad connection's statement again on another one: outside of transactions, and where it begins
// one. So whatever a driver calls a bad connection, fn runs once for each transaction, and no key is claimed
// unnoticed.
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

func (c *flakyConn) ExecContext(
	ctx context.Context, query string, args []driver.NamedValue,
) (res driver.Result, err error) {
	err = c.call(&c.f.statements, c.f.statement, func() error {
		res, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

func (c *flakyConn) QueryContext(
	ctx context.Context, query string, args []driver.NamedValue,
) (rows driver.Rows, err error) {
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
