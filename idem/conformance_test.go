package idem_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// execModes are all that pgx has.
var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func TestConformance(t *testing.T) {
	for _, mode := range execModes {
		if testing.Short() && mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeSimpleProtocol {
			continue // .ci/versions: a server sees two protocols; what else the modes differ in the driver does by itself
		}
		t.Run(mode.String(), func(t *testing.T) {
			features := conformance.Features{Describes: mode == pgx.QueryExecModeDescribeExec}
			conformance.Run(t, conformance.Door{
				Core: !pgtest.Full() && mode != execModes[0], Features: features,
				Open: func(t *testing.T) conformance.DB {
					cfg := pgtest.Config(t)
					cfg.ConnConfig.DefaultQueryExecMode = mode
					cfg.MaxConns = 16
					return newDB(pgtest.PoolConfig(t, cfg))
				},
			})
		})
	}
}

// The same over the other layouts, in one mode each: their tables differ, and the modes do not.
func TestConformanceOfLayouts(t *testing.T) {
	for name, layout := range map[string]dedup.Layout{"hash": dedup.Hash(4), "weekly": dedup.Weekly} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Door{Core: !pgtest.Full(), Layout: layout, Open: func(t *testing.T) conformance.DB {
				cfg := pgtest.Config(t)
				cfg.MaxConns = 16
				return newDB(pgtest.PoolConfig(t, cfg))
			}})
		})
	}
}

// migrated makes the tables that the tests use.
func migrated(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), conformance.Schema)
	require.NoError(t, err)
	return pool
}

func once(s conformance.Settings) idem.Once {
	return idem.Once{
		Table: s.Table, MaxWait: s.MaxWait, Tries: s.Tries, Observer: s.Observer,
		TxOptions: pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(s.Level)},
	}
}

// sender is what the moves of a reservation take.
type sender = dedup.Querier

// pgxQuerier is a pool or a transaction.
type pgxQuerier interface {
	sender
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type querier struct{ q pgxQuerier }

func (q querier) Exec(ctx context.Context, sql string, args ...any) error {
	_, err := q.q.Exec(ctx, sql, args...)
	return err
}

func (q querier) Int(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = q.q.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

func (q querier) Move(ctx context.Context, r conformance.Reservation, m conformance.Move) error {
	return conformance.MoveOver[sender](ctx, q.q, r.Held.(idem.Reservation), m)
}

type pgxDB struct {
	querier
	pool *pgxpool.Pool
}

func newDB(pool *pgxpool.Pool) pgxDB { return pgxDB{querier{pool}, pool} }

func (d pgxDB) RunReturning(
	ctx context.Context, s conformance.Settings, key idem.Key,
	fn func(context.Context, conformance.Tx) (conformance.Receipt, error),
) (conformance.Receipt, idem.Outcome, error) {
	return idem.Returning[conformance.Receipt]{Once: once(s)}.Run(ctx, d.pool, key,
		func(ctx context.Context, tx pgx.Tx) (conformance.Receipt, error) {
			return fn(ctx, pgxTx{querier{tx}, tx})
		})
}

func (d pgxDB) Reserve(
	ctx context.Context, s conformance.Settings, key idem.Key, lease time.Duration,
) (conformance.Reservation, idem.Outcome, error) {
	r, out, err := once(s).Reserve(ctx, d.pool, key, lease)
	return conformance.Reservation{Attempt: r.Attempt, Value: r.Value, Held: r}, out, err
}

func (d pgxDB) Pending(
	ctx context.Context, s conformance.Settings, scope idem.Scope, limit int,
) ([]idem.PendingKey, error) {
	return once(s).Pending(ctx, d.pool, scope, limit)
}

func (d pgxDB) Migrate(ctx context.Context, all ...dedup.Table) error {
	return dedup.Migrate(ctx, d.pool, all...)
}

func (d pgxDB) Maintain(ctx context.Context, c dedup.Cleaner) (dedup.Stats, error) {
	return c.Maintain(ctx, d.pool)
}

func (d pgxDB) Renew() { d.pool.Reset() }

func (d pgxDB) Call(ctx context.Context, c conformance.Call, key idem.Key) (conformance.Receipt, idem.Outcome, error) {
	call := idem.Call[conformance.Receipt]{Once: once(c.Settings), Lease: c.Lease, Remembers: c.Remembers, Send: c.Send}
	if c.Apply != nil {
		call.Apply = func(ctx context.Context, tx pgx.Tx, v conformance.Receipt) error {
			return c.Apply(ctx, pgxTx{querier{tx}, tx}, v)
		}
	}
	return call.Run(ctx, d.pool, key)
}

func (d pgxDB) Begin(ctx context.Context, level string) (conformance.Tx, error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
	if err != nil {
		return nil, err
	}
	return pgxTx{querier{tx}, tx}, nil
}

func (d pgxDB) Run(
	ctx context.Context, s conformance.Settings, key idem.Key, fn func(context.Context, conformance.Tx) error,
) (idem.Outcome, error) {
	return once(s).Run(ctx, d.pool, key,
		func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgxTx{querier{tx}, tx}) })
}

func (d pgxDB) Apply(
	ctx context.Context, s conformance.Settings, key idem.Key, effects ...conformance.Effect,
) (idem.Outcome, error) {
	return once(s).Apply(ctx, d.pool, key, effectsOf(effects))
}

func effectsOf(effects []conformance.Effect) *pgx.Batch {
	b := &pgx.Batch{}
	for _, e := range effects {
		b.Queue(e.SQL, e.Args...)
	}
	return b
}

func (d pgxDB) Lookup(ctx context.Context, s conformance.Settings, key idem.Key) (idem.Record, error) {
	return once(s).Lookup(ctx, d.pool, key)
}

func (d pgxDB) Idle(ctx context.Context) bool {
	for ctx.Err() == nil {
		if d.pool.Stat().AcquiredConns() == 0 {
			var open int
			err := d.pool.QueryRow(ctx, `
				SELECT count(*) FROM pg_stat_activity
				 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
				   AND backend_type = 'client backend'`).Scan(&open)
			if err == nil && open == 0 {
				return true
			}
		}
		time.Sleep(2 * time.Millisecond) // between two looks, until ctx ends
	}
	return false
}

type pgxTx struct {
	querier
	tx pgx.Tx
}

func (t pgxTx) Do(
	ctx context.Context, s conformance.Settings, key idem.Key, fn func(context.Context, conformance.Tx) error,
) (idem.Outcome, error) {
	return once(s).Do(ctx, t.tx, key,
		func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgxTx{querier{tx}, tx}) })
}

func (t pgxTx) DoMany(
	ctx context.Context, s conformance.Settings, keys []idem.Key, fn func(context.Context, conformance.Tx, []int) error,
) ([]idem.Result, error) {
	return once(s).DoMany(ctx, t.tx, keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
		return fn(ctx, pgxTx{querier{tx}, tx}, fresh)
	})
}

func (t pgxTx) DoReturning(
	ctx context.Context, s conformance.Settings, key idem.Key,
	fn func(context.Context, conformance.Tx) (conformance.Receipt, error),
) (conformance.Receipt, idem.Outcome, error) {
	return idem.Returning[conformance.Receipt]{Once: once(s)}.Do(ctx, t.tx, key,
		func(ctx context.Context, tx pgx.Tx) (conformance.Receipt, error) {
			return fn(ctx, pgxTx{querier{tx}, tx})
		})
}

func (t pgxTx) Confirm(ctx context.Context, r conformance.Reservation, value []byte) error {
	return r.Held.(idem.Reservation).Confirm(ctx, t.tx, value)
}

func (t pgxTx) Forget(ctx context.Context, s conformance.Settings, key idem.Key) error {
	return once(s).Forget(ctx, t.tx, key)
}

func (t pgxTx) Lookup(ctx context.Context, s conformance.Settings, key idem.Key) (idem.Record, error) {
	return once(s).Lookup(ctx, t.tx, key)
}

func (t pgxTx) Commit(ctx context.Context) error   { return t.tx.Commit(ctx) }
func (t pgxTx) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }

func (t pgxTx) Leave(ctx context.Context) (func(), error) {
	rows, err := t.tx.Query(ctx, `SELECT generate_series(1, 100000)`)
	return rows.Close, err
}

func (t pgxTx) Nested(ctx context.Context, fn func(conformance.Tx) error) error {
	return pgx.BeginFunc(ctx, t.tx, func(tx pgx.Tx) error { return fn(pgxTx{querier{tx}, tx}) })
}
