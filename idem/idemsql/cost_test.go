package idemsql_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// trips counts what the client sends: both drivers write once a round trip. It is a dialer of lib/pq.
type trips struct{ writes atomic.Int64 }

type tripConn struct {
	net.Conn
	t *trips
}

func (c tripConn) Write(b []byte) (int, error) {
	c.t.writes.Add(1)
	return c.Conn.Write(b)
}

func (tr *trips) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return tripConn{c, tr}, err
}

func (tr *trips) Dial(network, addr string) (net.Conn, error) {
	return tr.DialContext(context.Background(), network, addr)
}

func (tr *trips) DialTimeout(network, addr string, _ time.Duration) (net.Conn, error) {
	return tr.Dial(network, addr)
}

func (tr *trips) of(f func()) int64 {
	before := tr.writes.Load()
	f()
	return tr.writes.Load() - before
}

// counted returns a database of one connection whose round trips are counted.
func counted(t *testing.T, mode pgx.QueryExecMode, overPQ bool) (*sql.DB, *trips) {
	tr := &trips{}
	dsn := pgtest.DSN(t)
	var db *sql.DB
	if overPQ {
		c, err := pq.NewConnector(dsn)
		require.NoError(t, err)
		c.Dialer(tr)
		db = sql.OpenDB(c)
	} else {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = mode
		cfg.DialFunc = tr.DialContext
		never := func(context.Context, stdlib.ShouldPingParams) bool { return false }
		db = stdlib.OpenDB(*cfg, stdlib.OptionShouldPing(never))
	}
	migrated(t, db)
	db.SetMaxOpenConns(1)
	return db, tr
}

func TestRoundTrips(t *testing.T) {
	type counts struct{ Do, DoDuplicate, DoMaxWait, Run, RunDuplicate, RunMaxWait, Lookup, Call, CallUnsent int64 }
	// Of a connection whose statements are cached where the mode caches. Do counts begin, claim, effect, check and commit;
	// Call has those behind its reservation (begin, insert, read, commit), and, unsent, begin, delete and commit.
	one := counts{
		Do: 5, DoDuplicate: 4, DoMaxWait: 9, Run: 5, RunDuplicate: 4, RunMaxWait: 7, Lookup: 1, Call: 9,
		CallUnsent: 7,
	}
	// lib/pq takes two round trips for a statement with parameters, pgx in this mode for every query.
	parameters := counts{
		Do: 6, DoDuplicate: 6, DoMaxWait: 11, Run: 6, RunDuplicate: 6, RunMaxWait: 9, Lookup: 2,
		Call: 12, CallUnsent: 10,
	}
	queries := counts{
		Do: 7, DoDuplicate: 6, DoMaxWait: 13, Run: 7, RunDuplicate: 6, RunMaxWait: 11, Lookup: 2, Call: 13,
		CallUnsent: 10,
	}
	for _, c := range []struct {
		mode pgx.QueryExecMode
		pq   bool
		want counts
	}{
		{pgx.QueryExecModeCacheStatement, false, one},
		{pgx.QueryExecModeCacheDescribe, false, one},
		{pgx.QueryExecModeDescribeExec, false, queries},
		{pgx.QueryExecModeExec, false, one},
		{pgx.QueryExecModeSimpleProtocol, false, one},
		{0, true, parameters},
	} {
		name := c.mode.String()
		if c.pq {
			name = "pq"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			db, tr := counted(t, c.mode, c.pq)
			effect := func(ctx context.Context, tx idemsql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects (what) VALUES ('a')`)
				return err
			}
			limited := idemsql.Once{MaxWait: time.Minute}
			n := 0
			next := func() idem.Key { n++; return stripe.Key(fmt.Sprint(n)) }
			do := func(o idemsql.Once, key idem.Key) {
				tx, err := db.BeginTx(ctx, nil)
				require.NoError(t, err)
				_, err = o.Do(ctx, tx, key, effect)
				require.NoError(t, err)
				require.NoError(t, tx.Commit())
			}
			run := func(o idemsql.Once, key idem.Key) {
				_, err := o.Run(ctx, db, key, effect)
				require.NoError(t, err)
			}
			call := func(unsent error) {
				c := idemsql.Call[int]{
					Lease: time.Hour,
					Send:  func(context.Context, string) (int, error) { return 1, idem.Unsent(unsent) },
					Apply: func(ctx context.Context, tx idemsql.Tx, _ int) error { return effect(ctx, tx) },
				}
				_, _, err := c.Run(ctx, db, next())
				require.ErrorIs(t, err, unsent)
			}
			var got counts
			for range 3 { // the last one counts: by then every statement is cached
				key := next()
				got.Do = tr.of(func() { do(idemsql.Once{}, key) })
				got.DoDuplicate = tr.of(func() { do(idemsql.Once{}, key) })
				got.DoMaxWait = tr.of(func() { do(limited, next()) })
				key = next()
				got.Run = tr.of(func() { run(idemsql.Once{}, key) })
				got.RunDuplicate = tr.of(func() { run(idemsql.Once{}, key) })
				got.RunMaxWait = tr.of(func() { run(limited, next()) })
				got.Call = tr.of(func() { call(nil) })
				got.CallUnsent = tr.of(func() { call(context.DeadlineExceeded) })
				got.Lookup = tr.of(func() {
					_, err := idemsql.Once{}.Lookup(ctx, db, key)
					require.NoError(t, err)
				})
			}
			require.Equal(t, c.want, got)
		})
	}
}
