package inboxsql_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// What must hold whichever front door is used is tested here for all of them: pgx in each of its modes, and
// database/sql over either driver.

// execer is a transaction as a handler of any door sees it.
type execer struct {
	exec func(ctx context.Context, query string, args ...any) error
	// open leaves rows open.
	open func(ctx context.Context, query string) error
}

// worker drains over a door.
type worker func(ctx context.Context, w inbox.Worker,
	h func(ctx context.Context, tx execer, m inbox.Message) error) (inbox.Stats, error)

// door is a front door over a driver in one of its modes.
type door struct {
	name string
	// open connects with one connection, over a script where there is one.
	open func(t *testing.T, dsn string, script *faultconn.Script) worker
}

func (d door) String() string { return d.name }

func doors() []door {
	all := []door{{"pq", overPQ}}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		all = append(all, door{"pgx/" + mode.String(), overPgx(mode)}, door{"stdlib/" + mode.String(), overStdlib(mode)})
	}
	return pgtest.Matrix(all, door.String, "pgx/exec", "pgx/cache statement", "stdlib/exec", "pq")
}

// forEachDoor runs test over each door. db has the tables, and is not watched.
func forEachDoor(t *testing.T, test func(t *testing.T, d door, dsn string, db *sql.DB)) {
	for _, d := range doors() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			db, err := sql.Open("pgx", dsn)
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			require.NoError(t, inboxsql.Migrate(t.Context(), db))
			execSQL(t, db, `CREATE TABLE effects (id text)`)
			test(t, d, dsn, db)
		})
	}
}

func overPgx(mode pgx.QueryExecMode) func(*testing.T, string, *faultconn.Script) worker {
	return func(t *testing.T, dsn string, script *faultconn.Script) worker {
		cfg, err := pgxpool.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.MaxConns, cfg.ConnConfig.DefaultQueryExecMode = 1, mode
		if script != nil {
			script.Attach(&cfg.ConnConfig.Config)
			// Messages can be counted only where the time that passes makes none.
			cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		}
		pool := pgtest.PoolConfig(t, cfg)
		return func(ctx context.Context, w inbox.Worker, h func(context.Context, execer, inbox.Message) error) (inbox.Stats,
			error,
		) {
			return w.Drain(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				return h(ctx, execer{
					func(ctx context.Context, query string, args ...any) error {
						_, err := tx.Exec(ctx, query, args...)
						return err
					},
					func(ctx context.Context, query string) error {
						rows, err := tx.Query(ctx, query)
						if err == nil {
							rows.Next()
						}
						return err
					},
				}, m)
			})
		}
	}
}

func overStdlib(mode pgx.QueryExecMode) func(*testing.T, string, *faultconn.Script) worker {
	return func(t *testing.T, dsn string, script *faultconn.Script) worker {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = mode
		if script != nil {
			script.Attach(&cfg.Config)
		}
		return overSQL(t, stdlib.OpenDB(*cfg, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool {
			return script == nil
		})))
	}
}

func overPQ(t *testing.T, dsn string, script *faultconn.Script) worker {
	c, err := pq.NewConnector(dsn)
	require.NoError(t, err)
	if script != nil {
		c.Dialer(script)
	}
	return overSQL(t, sql.OpenDB(c))
}

func overSQL(t *testing.T, db *sql.DB) worker {
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	return func(ctx context.Context, w inbox.Worker, h func(context.Context, execer, inbox.Message) error) (inbox.Stats,
		error,
	) {
		return inboxsql.Drain(ctx, db, w, func(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
			return h(ctx, execer{
				func(ctx context.Context, query string, args ...any) error {
					_, err := tx.ExecContext(ctx, query, args...)
					return err
				},
				func(ctx context.Context, query string) error {
					rows, err := tx.QueryContext(ctx, query)
					if err == nil {
						rows.Next()
					}
					return err
				},
			}, m)
		})
	}
}

// put stores messages of these ids, and of a key where they begin with it and a dash.
func put(t *testing.T, db *sql.DB, ids ...string) {
	t.Helper()
	for _, id := range ids {
		key, _, found := strings.Cut(id, "-")
		if !found {
			key = ""
		}
		out, err := inboxsql.Store(t.Context(), db, inbox.Table{},
			inbox.Message{Source: "s", Operation: "o", ID: id, Key: key})
		require.NoError(t, err)
		require.Equal(t, inbox.Stored, out)
	}
}

// effect is what a message does.
func effect(ctx context.Context, tx execer, m inbox.Message) error {
	return tx.exec(ctx, `INSERT INTO effects (id) VALUES ($1::text)`, m.ID)
}
