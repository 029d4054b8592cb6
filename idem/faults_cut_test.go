package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// way is one way to run a key once, with its transaction.
type way struct {
	name  string
	short pgx.QueryExecMode // the one mode of the short form; 0: none
	run   func(ctx context.Context, pool *pgxpool.Pool, key idem.Key, fn func(context.Context, pgx.Tx) error) (idem.Outcome, error)
}

func doAndCommit(o idem.Once) func(context.Context, *pgxpool.Pool, idem.Key, func(context.Context, pgx.Tx) error) (idem.Outcome, error) {
	return func(ctx context.Context, pool *pgxpool.Pool, key idem.Key, fn func(context.Context, pgx.Tx) error) (out idem.Outcome, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, err
		}
		// As pgx's own BeginFunc would, but for a context that is done: the roll back must be sent all the same.
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = tx.Rollback(ctx)
		}()
		if out, err = o.Do(ctx, tx, key, fn); err != nil {
			return 0, err
		}
		return out, tx.Commit(ctx)
	}
}

// applyOf has the effect that fn of a site has.
func applyOf(o idem.Once) func(context.Context, *pgxpool.Pool, idem.Key, func(context.Context, pgx.Tx) error) (idem.Outcome, error) {
	return func(ctx context.Context, pool *pgxpool.Pool, key idem.Key, _ func(context.Context, pgx.Tx) error) (idem.Outcome, error) {
		effects := &pgx.Batch{}
		effects.Queue(`INSERT INTO effects (what) VALUES ($1)`, key.ID())
		return o.Apply(ctx, pool, key, effects)
	}
}

var ways = []way{
	{"Run", pgx.QueryExecModeCacheStatement, func(ctx context.Context, pool *pgxpool.Pool, key idem.Key, fn func(context.Context, pgx.Tx) error) (idem.Outcome, error) {
		return idem.Run(ctx, pool, key, fn)
	}},
	{"Run with MaxWait", 0, func(ctx context.Context, pool *pgxpool.Pool, key idem.Key, fn func(context.Context, pgx.Tx) error) (idem.Outcome, error) {
		return idem.Once{MaxWait: 10 * time.Second}.Run(ctx, pool, key, fn)
	}},
	{"Apply", pgx.QueryExecModeCacheStatement, applyOf(idem.Once{})},
	{"Apply in the simple protocol", pgx.QueryExecModeSimpleProtocol, applyOf(idem.Once{})},
	{"Apply with MaxWait", 0, applyOf(idem.Once{MaxWait: 10 * time.Second})},
	{"Do", 0, doAndCommit(idem.Once{})},
	{"Do with MaxWait", pgx.QueryExecModeSimpleProtocol, doAndCommit(idem.Once{MaxWait: 10 * time.Second})},
}

// deliveries are what can be cut: a first one, and a duplicate.
var deliveries = []struct {
	name string
	seen bool
}{{"first", false}, {"duplicate", true}}

// cuts runs each way over a first delivery and a duplicate, in which nothing breaks, to count the messages, and then
// calls cut for each of them.
func cuts(t *testing.T, cut func(s *site, w way, mode pgx.QueryExecMode, seen bool, script *faultconn.Script) *faultconn.Script, scripts func(side faultconn.Side, n int) []*faultconn.Script) {
	for _, mode := range modes() {
		for _, w := range ways {
			if !long && w.short != mode {
				continue
			}
			for _, d := range deliveries {
				t.Run(fmt.Sprint(mode, "/", w.name, "/", d.name), func(t *testing.T) {
					t.Parallel()
					s := newSite(t)
					counted := cut(s, w, mode, d.seen, &faultconn.Script{})
					done := 0
					for _, side := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
						require.Positive(t, counted.Count(side))
						for n := 1; n <= counted.Count(side); n++ {
							for _, script := range scripts(side, n) {
								cut(s, w, mode, d.seen, script)
								require.Equal(t, 1, script.Hits(), "message %v %d was not reached", side, n)
								done++
							}
						}
					}
					t.Logf("%d cuts", done)
				})
			}
		}
	}
}

var keyNumber atomic.Int64

func newKey() idem.Key { return stripe.Key(fmt.Sprintf("evt_%d", keyNumber.Add(1))) }

// checkCut wants that a call which met a fault told the truth, left nothing open, and that the next delivery ends well.
func (s *site) checkCut(pool *pgxpool.Pool, key idem.Key, seen bool, out idem.Outcome, err error, script *faultconn.Script) {
	s.Helper()
	script.Release()
	s.gone(pool)
	effects := s.effects(key)
	require.LessOrEqual(s, effects, 1, "%v", script)
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

// Run and Do are cut at every message that they exchange, one by one, and the delivery is repeated: one effect, always.
func TestCutAtEveryMessage(t *testing.T) {
	cuts(t, func(s *site, w way, mode pgx.QueryExecMode, seen bool, script *faultconn.Script) *faultconn.Script {
		key := newKey()
		if seen {
			s.deliver(key, idem.Executed)
		}
		pool := s.broken(script, mode)
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		defer cancel()
		out, err := w.run(ctx, pool, key, s.effect(key, new(atomic.Int32)))
		s.checkCut(pool, key, seen, out, err, script)
		if script.Mode != faultconn.Pass && err != nil {
			require.Contains(s, w.name, "Do", "one cut is met by the next try: %v\n%v", err, script)
			require.True(s, idem.Retryable(err), "%v\n%v", err, script)
		}
		return script
	}, func(side faultconn.Side, n int) []*faultconn.Script {
		scripts := []*faultconn.Script{{From: side, N: n, Mode: faultconn.DropBefore}}
		if long && side == faultconn.Frontend {
			scripts = append(scripts, &faultconn.Script{From: side, N: n, Mode: faultconn.DropReply})
		}
		if long {
			scripts = append(scripts, &faultconn.Script{From: side, N: n, Mode: faultconn.Reset})
		}
		return scripts
	})
}

// The context is cancelled at every message, which is at every point where a call can be waiting.
func TestCancelAtEveryMessage(t *testing.T) {
	cuts(t, func(s *site, w way, mode pgx.QueryExecMode, seen bool, script *faultconn.Script) *faultconn.Script {
		key := newKey()
		if seen {
			s.deliver(key, idem.Executed)
		}
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		defer cancel()
		if script.N > 0 {
			script.Do = func(faultconn.Message) { cancel() }
		}
		pool := s.broken(script, mode)
		out, err := w.run(ctx, pool, key, s.effect(key, new(atomic.Int32)))
		if err != nil && !pgerr.CommitUnknown(err) && pgerr.Code(err) == "" {
			// Which of the two a driver reports depends on who was faster; it is never taken for anything else.
			require.True(s, errors.Is(err, context.Canceled) || ctx.Err() != nil, "%v", err)
		}
		s.checkCut(pool, key, seen, out, err, script)
		return script
	}, func(side faultconn.Side, n int) []*faultconn.Script {
		return []*faultconn.Script{{From: side, N: n, Mode: faultconn.Pass}}
	})
}

// The session is terminated before COMMIT, and while it waits for another holder; in fn: see the conformance suite.
func TestTerminated(t *testing.T) {
	terminate := func(s *site, pid uint32) {
		_, err := s.sound.Exec(s.ctx, `SELECT pg_terminate_backend($1::int8::int4)`, int64(pid))
		require.NoError(s, err)
		require.Eventually(s, func() bool {
			var n int
			err := s.sound.QueryRow(s.ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int8::int4`, int64(pid)).Scan(&n)
			return err == nil && n == 0
		}, 20*time.Second, time.Millisecond)
	}

	t.Run("before COMMIT", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		script := &faultconn.Script{When: faultconn.Commit, Do: func(m faultconn.Message) { terminate(s, m.PID) }}
		pool := s.broken(script, pgx.QueryExecModeCacheStatement)
		var calls atomic.Int32
		key := stripe.Key("evt_1")
		out, err := idem.Run(s.ctx, pool, key, s.effect(key, &calls))
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 1, s.effects(key))
		s.gone(pool)
	})

	t.Run("waiting for another holder", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := stripe.Key("evt_1")
		holder, err := s.sound.Begin(s.ctx)
		require.NoError(t, err)
		_, err = idem.Do(s.ctx, holder, key, s.effect(key, new(atomic.Int32)))
		require.NoError(t, err)
		type answer struct {
			out idem.Outcome
			err error
		}
		answers := make(chan answer, 1)
		pool := s.broken(&faultconn.Script{}, pgx.QueryExecModeCacheStatement)
		go func() {
			out, err := idem.Run(s.ctx, pool, key, s.effect(key, new(atomic.Int32)))
			answers <- answer{out, err}
		}()
		var pid int64
		require.Eventually(t, func() bool {
			return s.sound.QueryRow(s.ctx, `
				SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&pid) == nil
		}, 20*time.Second, time.Millisecond)
		terminate(s, uint32(pid))
		require.NoError(t, holder.Commit(s.ctx))
		got := <-answers
		require.NoError(t, got.err)
		require.Equal(t, idem.Duplicate, got.out)
		require.Equal(t, 1, s.effects(key))
		s.gone(pool)
	})
}

// The server's own limits: each ends the call with its code, and the delivery that follows ends well.
func TestServerTimeouts(t *testing.T) {
	for _, c := range []struct {
		limit, code string
		hold        bool // another transaction holds the key
		in          string
	}{
		{"statement_timeout", "57014", false, `SELECT pg_sleep(30)`},
		{"statement_timeout", "57014", true, ``},
		{"lock_timeout", "55P03", true, ``},
		{"idle_in_transaction_session_timeout", "25P03", false, ``},
	} {
		t.Run(fmt.Sprint(c.limit, ", held ", c.hold), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			cfg := s.cfg.Copy()
			cfg.ConnConfig.RuntimeParams[c.limit] = "100ms"
			pool, err := pgxpool.NewWithConfig(s.ctx, cfg)
			require.NoError(t, err)
			key := stripe.Key("evt_1")
			var holder pgx.Tx
			if c.hold {
				holder, err = s.sound.Begin(s.ctx)
				require.NoError(t, err)
				_, err = idem.Do(s.ctx, holder, key, s.effect(key, new(atomic.Int32)))
				require.NoError(t, err)
			}
			out, err := idem.Once{Tries: 2}.Run(s.ctx, pool, key, func(ctx context.Context, tx pgx.Tx) error {
				if c.in != "" {
					_, err := tx.Exec(ctx, c.in)
					return err
				}
				// Idle for as long as the server takes to end the session.
				pid := int64(tx.Conn().PgConn().PID())
				require.Eventually(t, func() bool {
					var n int
					err := s.sound.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int8::int4`, pid).Scan(&n)
					return err == nil && n == 0
				}, 20*time.Second, 5*time.Millisecond)
				return s.effect(key, new(atomic.Int32))(ctx, tx)
			})
			require.Zero(t, out)
			require.Error(t, err)
			if code := pgerr.Code(err); code != "" {
				require.Equal(t, c.code, code)
			}
			var own *idem.Error
			require.False(t, errors.As(err, &own) && own.Unknown)
			if c.hold {
				require.NoError(t, holder.Rollback(s.ctx))
			}
			s.gone(pool)
			s.deliver(key, idem.Executed)
		})
	}
}
