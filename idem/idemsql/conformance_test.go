package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// opener is a driver in one of its modes: how it opens a database, over a script that may break its connections.
type opener struct {
	name string
	open func(t testing.TB, dsn string, script *faultconn.Script) *sql.DB
}

func (d opener) String() string { return d.name }

// drivers are those that are supported.
var drivers = []opener{
	{"stdlib/" + pgx.QueryExecModeCacheStatement.String(), overStdlib(pgx.QueryExecModeCacheStatement)},
	{"stdlib/" + pgx.QueryExecModeCacheDescribe.String(), overStdlib(pgx.QueryExecModeCacheDescribe)},
	{"stdlib/" + pgx.QueryExecModeDescribeExec.String(), overStdlib(pgx.QueryExecModeDescribeExec)},
	{"stdlib/" + pgx.QueryExecModeExec.String(), overStdlib(pgx.QueryExecModeExec)},
	{"stdlib/" + pgx.QueryExecModeSimpleProtocol.String(), overStdlib(pgx.QueryExecModeSimpleProtocol)},
	{"pq", overPQ("")},
	{"pq/binary parameters", overPQ("binary_parameters=yes")},
}

func overPQ(option string) func(testing.TB, string, *faultconn.Script) *sql.DB {
	return func(t testing.TB, dsn string, script *faultconn.Script) *sql.DB {
		sep := "?"
		if strings.Contains(dsn, sep) {
			sep = "&"
		}
		c, err := pq.NewConnector(strings.TrimSuffix(dsn+sep+option, sep))
		require.NoError(t, err)
		if script != nil {
			c.Dialer(script)
		}
		return sql.OpenDB(c)
	}
}

func overStdlib(mode pgx.QueryExecMode) func(testing.TB, string, *faultconn.Script) *sql.DB {
	return func(t testing.TB, dsn string, script *faultconn.Script) *sql.DB {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.DefaultQueryExecMode = mode
		if script == nil {
			return stdlib.OpenDB(*cfg)
		}
		script.Attach(&cfg.Config)
		// Messages can be counted only where the time that passes makes none.
		return stdlib.OpenDB(*cfg, stdlib.OptionShouldPing(func(context.Context,
			stdlib.ShouldPingParams,
		) bool {
			return false
		}))
	}
}

// migrated makes the tables that the tests use, and has db closed at the test's end.
func migrated(t testing.TB, db *sql.DB) *sql.DB {
	t.Helper()
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { closes(t, db) })
	require.NoError(t, idemsql.Migrate(t.Context(), db))
	_, err := db.ExecContext(t.Context(), conformance.Schema)
	require.NoError(t, err)
	return db
}

// closes closes db, which must not wait for a connection that was not given back.
func closes(t testing.TB, db *sql.DB) {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = db.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("db.Close does not return")
	}
}

func TestConformance(t *testing.T) {
	for i, driver := range drivers {
		if testing.Short() && i != 0 && driver.name != "pq" {
			continue // .ci/versions: what a mode does is the same on every version of the server, and idem runs both protocols
		}
		t.Run(driver.name, func(t *testing.T) {
			conformance.Run(t, conformance.Door{
				Core:     !pgtest.Full() && !slices.Contains(typical, driver.name),
				Open:     func(t *testing.T) conformance.DB { return newDB(migrated(t, driver.open(t, pgtest.DSN(t), nil))) },
				Features: features(driver),
			})
		})
	}
}

// The layouts with partitions are made and verified through every driver.
func TestMigrateLayouts(t *testing.T) {
	for _, driver := range pgtest.Matrix(drivers, opener.String, typical...) {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, driver.open(t, pgtest.DSN(t), nil))
			tables := []dedup.Table{
				{Name: "hash", Layout: dedup.Hash(3)},
				{Name: "weekly", Layout: dedup.Weekly, Retention: 10 * 24 * time.Hour},
			}
			for range 2 {
				require.NoError(t, idemsql.Migrate(t.Context(), db, tables...))
				require.NoError(t, idemsql.Verify(t.Context(), db, tables...))
			}
			once := idemsql.Once{Table: tables[1]}
			fn := func(context.Context, idemsql.Tx) error { return nil }
			var bad *idem.KeyError
			_, err := once.Run(t.Context(), db, stripe.Key("1"), fn)
			require.ErrorAs(t, err, &bad)
			for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
				out, err := once.Run(t.Context(), db, stripe.Key("1").OccurredAt(lastWeek), fn)
				require.NoError(t, err)
				require.Equal(t, want, out)
			}
			_, err = once.Run(t.Context(), db, stripe.Key("2").OccurredAt(lastWeek.AddDate(1, 0, 0)), fn)
			require.ErrorIs(t, err, idem.ErrFuture)
			_, err = once.Run(t.Context(), db, stripe.Key("2").OccurredAt(lastWeek.AddDate(-1, 0, 0)), fn)
			require.ErrorIs(t, err, idem.ErrExpired)

			// A week without a partition is for an operator, and no CHECK that the caller's data violates.
			var leaf string
			require.NoError(t, db.QueryRowContext(t.Context(), `SELECT tableoid::regclass::text FROM weekly`).Scan(&leaf))
			_, err = db.ExecContext(t.Context(), `DROP TABLE `+leaf)
			require.NoError(t, err)
			_, err = once.Run(t.Context(), db, stripe.Key("3").OccurredAt(lastWeek), fn)
			require.ErrorContains(t, err, "Maintain")
			require.Empty(t, pgerr.Code(err))
		})
	}
}

var lastWeek = time.Now().AddDate(0, 0, -7)

// The same over the other layouts, with one driver each.
func TestConformanceOfLayouts(t *testing.T) {
	for name, layout := range map[string]dedup.Layout{"hash": dedup.Hash(4), "weekly": dedup.Weekly} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Door{
				Open: func(t *testing.T) conformance.DB { return newDB(migrated(t, overPQ("")(t, pgtest.DSN(t), nil))) },
				Features: conformance.Features{
					FnCannotEnd: true, AsksServer: true, EndUnknown: true, BusyUnnamed: true,
					NoApply: true,
				},
				Layout: layout,
				Core:   !pgtest.Full(),
			})
		})
	}
}

func isolation(level string) sql.IsolationLevel {
	return map[string]sql.IsolationLevel{
		"read committed":  sql.LevelReadCommitted,
		"repeatable read": sql.LevelRepeatableRead,
		"serializable":    sql.LevelSerializable,
	}[level]
}

func once(s conformance.Settings) idemsql.Once {
	return idemsql.Once{
		Table: s.Table, MaxWait: s.MaxWait, Tries: s.Tries, Observer: s.Observer,
		TxOptions: sql.TxOptions{Isolation: isolation(s.Level)},
	}
}

type querier struct {
	q interface {
		idemsql.Conn
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
}

func (q querier) Exec(ctx context.Context, query string, args ...any) error {
	_, err := q.q.ExecContext(ctx, query, args...)
	return err
}

func (q querier) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = q.q.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (q querier) Lookup(ctx context.Context, s conformance.Settings, key idem.Key) (idem.Record, error) {
	return once(s).Lookup(ctx, q.q, key)
}

func (q querier) Move(ctx context.Context, r conformance.Reservation, m conformance.Move) error {
	return conformance.MoveOver[idemsql.Conn](ctx, q.q, r.Held.(idemsql.Reservation), m)
}

type sqlDB struct {
	querier
	db *sql.DB
}

func newDB(db *sql.DB) sqlDB { return sqlDB{querier{db}, db} }

func (d sqlDB) Begin(ctx context.Context, level string) (conformance.Tx, error) {
	tx, err := d.db.BeginTx(ctx, &sql.TxOptions{Isolation: isolation(level)})
	if err != nil {
		return nil, err
	}
	return sqlTx{querier{tx}}, nil
}

func (d sqlDB) Run(
	ctx context.Context, s conformance.Settings, key idem.Key, fn func(context.Context, conformance.Tx) error,
) (idem.Outcome, error) {
	return once(s).Run(ctx, d.db, key,
		func(ctx context.Context, tx idemsql.Tx) error { return fn(ctx, sqlTx{querier{tx}}) })
}

// Apply is that of package idem, over the connection of pgx/stdlib. Of other drivers the suite does not ask for it.
func (d sqlDB) Apply(
	ctx context.Context, s conformance.Settings, key idem.Key, effects ...conformance.Effect,
) (out idem.Outcome, err error) {
	b := &pgx.Batch{}
	for _, e := range effects {
		b.Queue(e.SQL, e.Args...)
	}
	o := idem.Once{
		Table: s.Table, MaxWait: s.MaxWait, Tries: s.Tries, Observer: s.Observer,
		TxOptions: pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(s.Level)},
	}
	conn, err := d.db.Conn(context.WithoutCancel(ctx)) // what has ended is for Apply to say
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	err = conn.Raw(func(c any) (err error) {
		out, err = o.Apply(ctx, c.(*stdlib.Conn).Conn(), key, b)
		return err
	})
	return out, err
}

func (d sqlDB) RunReturning(
	ctx context.Context, s conformance.Settings, key idem.Key,
	fn func(context.Context, conformance.Tx) (conformance.Receipt, error),
) (conformance.Receipt, idem.Outcome, error) {
	return idemsql.Returning[conformance.Receipt]{Once: once(s)}.Run(ctx, d.db, key,
		func(ctx context.Context, tx idemsql.Tx) (conformance.Receipt, error) {
			return fn(ctx, sqlTx{querier{tx}})
		})
}

func (d sqlDB) Reserve(
	ctx context.Context, s conformance.Settings, key idem.Key, lease time.Duration,
) (conformance.Reservation, idem.Outcome, error) {
	r, out, err := once(s).Reserve(ctx, d.db, key, lease)
	return conformance.Reservation{Attempt: r.Attempt, Value: r.Value, Held: r}, out, err
}

func (d sqlDB) Pending(
	ctx context.Context, s conformance.Settings, scope idem.Scope, limit int,
) ([]idem.PendingKey, error) {
	return once(s).Pending(ctx, d.db, scope, limit)
}

func (d sqlDB) Migrate(ctx context.Context, all ...dedup.Table) error {
	return idemsql.Migrate(ctx, d.db, all...)
}

func (d sqlDB) Maintain(ctx context.Context, c dedup.Cleaner) (dedup.Stats, error) {
	return idemsql.Maintain(ctx, d.db, c)
}

func (d sqlDB) Renew() {
	d.db.SetMaxIdleConns(0)
	d.db.SetMaxIdleConns(16)
}

func (d sqlDB) Call(ctx context.Context, c conformance.Call, key idem.Key) (conformance.Receipt, idem.Outcome, error) {
	call := idemsql.Call[conformance.Receipt]{Once: once(c.Settings), Lease: c.Lease, Remembers: c.Remembers, Send: c.Send}
	if c.Apply != nil {
		call.Apply = func(ctx context.Context, tx idemsql.Tx, v conformance.Receipt) error {
			return c.Apply(ctx, sqlTx{querier{tx}}, v)
		}
	}
	return call.Run(ctx, d.db, key)
}

func (d sqlDB) Idle(ctx context.Context) bool {
	for ctx.Err() == nil {
		if d.db.Stats().InUse == 0 {
			n, err := d.Int(ctx, `
				SELECT count(*) FROM pg_stat_activity
				 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
				   AND backend_type = 'client backend'`)
			if err == nil && n == 0 {
				return true
			}
		}
		time.Sleep(2 * time.Millisecond) // between two looks, until ctx ends
	}
	return false
}

// sqlTx is a transaction of a test's own, or the one that fn gets, which nobody can end.
type sqlTx struct{ querier }

func (t sqlTx) Do(
	ctx context.Context, s conformance.Settings, key idem.Key, fn func(context.Context, conformance.Tx) error,
) (idem.Outcome, error) {
	return once(s).Do(ctx, t.q, key, func(ctx context.Context, tx idemsql.Tx) error {
		return fn(ctx, sqlTx{querier{tx}})
	})
}

func (t sqlTx) DoMany(
	ctx context.Context, s conformance.Settings, keys []idem.Key, fn func(context.Context, conformance.Tx, []int) error,
) ([]idem.Result, error) {
	return once(s).DoMany(ctx, t.q, keys, func(ctx context.Context, tx idemsql.Tx, fresh []int) error {
		return fn(ctx, sqlTx{querier{tx}}, fresh)
	})
}

func (t sqlTx) DoReturning(
	ctx context.Context, s conformance.Settings, key idem.Key,
	fn func(context.Context, conformance.Tx) (conformance.Receipt, error),
) (conformance.Receipt, idem.Outcome, error) {
	return idemsql.Returning[conformance.Receipt]{Once: once(s)}.Do(ctx, t.q, key,
		func(ctx context.Context, tx idemsql.Tx) (conformance.Receipt, error) {
			return fn(ctx, sqlTx{querier{tx}})
		})
}

func (t sqlTx) Confirm(ctx context.Context, r conformance.Reservation, value []byte) error {
	return r.Held.(idemsql.Reservation).Confirm(ctx, t.q, value)
}

func (t sqlTx) Forget(ctx context.Context, s conformance.Settings, key idem.Key) error {
	return once(s).Forget(ctx, t.q, key)
}

var errNoEnd = errors.New("there is no such method")

func (t sqlTx) Commit(context.Context) error {
	if tx, ok := t.q.(interface{ Commit() error }); ok {
		return tx.Commit()
	}
	return errNoEnd
}

func (t sqlTx) Rollback(context.Context) error {
	if tx, ok := t.q.(interface{ Rollback() error }); ok {
		return tx.Rollback()
	}
	return errNoEnd
}

func (t sqlTx) Leave(ctx context.Context) (func(), error) {
	rows, err := t.q.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
	if err != nil {
		return nil, err
	}
	return func() { _ = rows.Close() }, rows.Err()
}

// Nested does what a careful user of database/sql does, and GORM's nested Transaction.
func (t sqlTx) Nested(ctx context.Context, fn func(conformance.Tx) error) (err error) {
	if err := t.Exec(ctx, `SAVEPOINT nested`); err != nil {
		return err
	}
	good := false
	defer func() {
		if good {
			return
		}
		if e := t.Exec(ctx, `ROLLBACK TO SAVEPOINT nested`); e != nil {
			err = errors.Join(err, e)
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	good = true
	return t.Exec(ctx, `RELEASE SAVEPOINT nested`)
}
