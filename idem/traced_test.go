package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/tracelog"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// failures keeps every error that a tracer is told of, as a tracer for OpenTelemetry makes of it a span that failed.
type failures struct {
	mu  sync.Mutex
	all []string
}

func (f *failures) add(what string, err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf("%s: %v", what, err))
}

func (f *failures) take() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, f.all = f.all, nil
	return all
}

func (f *failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (f *failures) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	f.add("query", d.Err)
}

func (f *failures) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (f *failures) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	f.add(d.SQL, d.Err)
}

func (f *failures) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) {
	f.add("batch", d.Err)
}

func (f *failures) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	return ctx
}

func (f *failures) TracePrepareEnd(_ context.Context, _ *pgx.Conn, d pgx.TracePrepareEndData) {
	f.add("prepare", d.Err)
}

// Log is what tracelog writes.
func (f *failures) Log(_ context.Context, level tracelog.LogLevel, msg string, data map[string]any) {
	if level <= tracelog.LogLevelWarn {
		f.add("log "+msg, fmt.Errorf("%v", data["err"]))
	}
}

// No call that succeeds leaves a failed span, a log line of an error, or an error in the server's log: each of those
// has come to the client as an ErrorResponse.
func TestSuccessLeavesNoError(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			seen := &failures{}
			script := &faultconn.Script{
				From: faultconn.Backend, When: func(m faultconn.Message) bool { return m.Type == "ErrorResponse" },
				Do: func(m faultconn.Message) { seen.add("server", errors.New(m.Code)) }, Repeat: true,
			}
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.Tracer = multitracer.New(seen, &tracelog.TraceLog{Logger: seen, LogLevel: tracelog.LogLevelTrace})
			script.Attach(&cfg.ConnConfig.Config)
			pool := pgtest.PoolConfig(t, cfg)
			conn, err := pool.Acquire(ctx)
			require.NoError(t, err)
			defer conn.Release()
			table := dedup.Table{Retention: time.Hour}

			try := func(what string, call func() error) {
				t.Helper()
				require.NoError(t, call(), what)
				require.Empty(t, seen.take(), what)
			}
			outcome := func(want, got idem.Outcome, err error) error {
				if err == nil && got != want {
					return fmt.Errorf("%v instead of %v", got, want)
				}
				return err
			}
			for range 2 {
				try("Migrate", func() error { return dedup.Migrate(ctx, pool, table) })
			}
			try("Verify", func() error { return dedup.Verify(ctx, pool, table) })

			dbs := map[string]idem.DB{
				"pool": pool, "connection": conn, "bare connection": conn.Conn(),
				"wrapper": struct{ idem.DB }{pool},
			}
			for _, wait := range []time.Duration{0, time.Minute} {
				once := idem.Once{Table: table, MaxWait: wait}
				returning := idem.Returning[int]{Once: once}
				call := idem.Call[int]{
					Once: once, Lease: time.Minute, Remembers: time.Hour,
					Send: func(context.Context, string) (int, error) { return 1, nil },
				}
				for name, db := range dbs {
					key := func(what string) idem.Key { return stripe.Key(name, what, wait.String()) }
					for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
						what := fmt.Sprint(name, ", wait ", wait, ", ", want, ": ")
						try(what+"Run", func() error {
							out, err := once.Run(ctx, db, key("run"), nothing)
							return outcome(want, out, err)
						})
						try(what+"Run of a key with a time", func() error {
							out, err := once.Run(ctx, db, key("timed").OccurredAt(time.Now().Truncate(time.Hour/2)), nothing)
							return outcome(want, out, err)
						})
						try(what+"Returning", func() error {
							_, out, err := returning.Run(ctx, db, key("returning"),
								func(context.Context, pgx.Tx) (int, error) { return 1, nil })
							return outcome(want, out, err)
						})
						try(what+"Call", func() error {
							_, out, err := call.Run(ctx, db, key("call"))
							return outcome(want, out, err)
						})
						try(what+"Do", func() error {
							tx, err := db.BeginTx(ctx, pgx.TxOptions{})
							if err != nil {
								return err
							}
							out, err := once.Do(ctx, tx, key("do"), nothing)
							return errors.Join(outcome(want, out, err), tx.Commit(ctx))
						})
						try(what+"Lookup", func() error { _, err := once.Lookup(ctx, pool, key("run")); return err })
					}
					reserve := func(what string) (r idem.Reservation) {
						try("Reserve", func() error {
							var out idem.Outcome
							var err error
							r, out, err = once.Reserve(ctx, db, key(what), time.Minute)
							return outcome(idem.Executed, out, err)
						})
						return r
					}
					r := reserve("confirm")
					try("Extend", func() error { return r.Extend(ctx, db, time.Hour) })
					try("Open", func() error { _, err := once.Pending(ctx, pool, idem.Scope{}, 10); return err })
					try("Confirm", func() error {
						return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return r.Confirm(ctx, tx, nil) })
					})
					try("Reserve of a key that is done", func() error {
						_, out, err := once.Reserve(ctx, db, key("confirm"), time.Minute)
						return outcome(idem.Duplicate, out, err)
					})
					r = reserve("fail")
					try("Fail", func() error { return r.Fail(ctx, db, nil) })
					r = reserve("void")
					try("Void", func() error { return r.Void(ctx, db) })
					r = reserve("release")
					try("Release", func() error { return r.Release(ctx, db) })
					try("Forget", func() error {
						return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return once.Forget(ctx, tx, key("run")) })
					})
				}
			}
			try("Purge", func() error { _, err := table.Purge(ctx, pool); return err })

			weekly := dedup.Table{Name: "weekly", Layout: dedup.Weekly, Retention: 10 * 24 * time.Hour}
			for range 2 {
				try("Migrate weekly", func() error { return dedup.Migrate(ctx, pool, weekly) })
				try("Maintain", func() error { _, err := weekly.Maintain(ctx, pool); return err })
				try("Verify weekly", func() error { return dedup.Verify(ctx, pool, weekly) })
			}
			conn.Release()
			require.Zero(t, pool.Stat().AcquiredConns())
		})
	}
}
