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
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// The session is terminated before COMMIT, and while it waits for another holder; in fn: see the conformance suite.
func TestTerminated(t *testing.T) {
	terminate := func(s *site, pid uint32) {
		_, err := s.sound.Exec(s.ctx, `SELECT pg_terminate_backend($1::int8::int4)`, int64(pid))
		require.NoError(s, err)
		require.Eventually(s, func() bool {
			var n int
			err := s.sound.QueryRow(s.ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int8::int4`,
				int64(pid)).Scan(&n)
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
