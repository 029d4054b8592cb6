package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// till is a Call over a provider that honours keys, and what it leaves in the database: an effect a key.
type till struct {
	idemsql.Call[string]
	sent, applied atomic.Int32
	charges       sync.Map
}

func (s *site) till(key idem.Key) *till {
	c := &till{}
	c.Lease, c.Remembers = time.Hour, 23*time.Hour
	c.Send = func(_ context.Context, external string) (string, error) {
		c.sent.Add(1)
		c.charges.Store(external, true)
		return "ch_1", nil
	}
	c.Apply = func(ctx context.Context, tx idemsql.Tx, _ string) error { return s.effect(key, &c.applied)(ctx, tx) }
	return c
}

func (s *site) exec(query string, args ...any) {
	s.Helper()
	_, err := s.sound.ExecContext(s.ctx, query, args...)
	require.NoError(s, err)
}

// expire ends the lease of a key, as time would.
func (s *site) expire(key idem.Key) {
	s.Helper()
	s.exec(`UPDATE processed_events SET lease_until = clock_timestamp() WHERE key = $1 AND lease_until > clock_timestamp()`, key.ID())
}

// again delivers a call's key soundly, and wants one charge and one effect.
func (s *site) again(c *till, key idem.Key, want ...idem.Outcome) {
	s.Helper()
	s.expire(key)
	v, out, err := c.Run(s.ctx, s.sound, key)
	require.NoError(s, err, "the same key again")
	require.Contains(s, want, out)
	require.Equal(s, "ch_1", v)
	n := 0
	c.charges.Range(func(any, any) bool { n++; return true })
	require.Equal(s, 1, n, "every attempt passes the same key")
	require.Equal(s, 1, s.effects(key))
}

// A Call has two COMMITs. Of that of the reservation nothing has been sent yet: a lost one is an error, and
// retryable. That of the answer is settled by looking at the row, and its effect is there once.
func TestCallLostCommit(t *testing.T) {
	for fault, applied := range map[faultconn.Mode]int32{
		faultconn.DropReply: 1, faultconn.DropBefore: 2,
		faultconn.Reset: 2,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			sites(t, func(s *site) {
				key := stripe.Key("reservation")
				c := s.till(key)
				script := &faultconn.Script{When: faultconn.Commit, N: 1, Mode: fault}
				db := s.broken(script)
				_, out, err := c.Run(s.ctx, db, key)
				require.Error(s, err)
				require.Zero(s, out)
				require.True(s, idem.Retryable(err), "%v", err)
				require.Zero(s, c.sent.Load())
				s.gone(db)
				s.again(c, key, idem.Executed)

				key = stripe.Key("answer")
				c = s.till(key)
				script = &faultconn.Script{When: faultconn.Commit, N: 2, Mode: fault}
				db = s.broken(script)
				v, out, err := c.Run(s.ctx, db, key)
				require.NoError(s, err, "%v", script)
				require.Equal(s, idem.Executed, out)
				require.Equal(s, "ch_1", v)
				require.Equal(s, 1, script.Hits())
				require.Equal(s, applied, c.applied.Load(), "how often Apply ran")
				require.EqualValues(s, 1, c.sent.Load())
				s.gone(db)
				s.again(c, key, idem.Duplicate)

				if fault == faultconn.Reset {
					return
				}
				// No new connection can be had.
				key = stripe.Key("unknown")
				c = s.till(key)
				c.Once.Tries = 2
				script = &faultconn.Script{When: faultconn.Commit, N: 2, Mode: fault, Refuse: true}
				db = s.broken(script)
				db.SetMaxIdleConns(1)
				db.SetMaxOpenConns(1)
				_, out, err = c.Run(s.ctx, db, key)
				conformance.WantUnknown(s, out, err)
				script.Release()
				s.gone(db)
				s.again(c, key, idem.Duplicate, idem.Executed)
			}, typical...)
		})
	}
}

// A Call is cut, or its context cancelled, at every statement that it sends: one charge and one effect, always.
func TestCallCutAtEveryStatement(t *testing.T) {
	names := typical
	if long {
		names = nil
	}
	sites(t, func(s *site) {
		number := 0
		run := func(script *faultconn.Script, cancels bool) *faultconn.Script {
			number++
			key := stripe.Key(fmt.Sprint(number))
			c := s.till(key)
			ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
			defer cancel()
			if cancels {
				script.Do = func(faultconn.Message) { cancel() }
			}
			db := s.broken(script)
			_, out, err := c.Run(ctx, db, key)
			s.gone(db)
			switch effects := s.effects(key); {
			case err == nil:
				require.Equal(s, idem.Executed, out, "%v", script)
				require.Equal(s, 1, effects, "success without the effect\n%v", script)
			case effects == 1:
				require.True(s, pgerr.CommitUnknown(err), "%v\n%v", err, script)
			default:
				require.Zero(s, effects)
				require.NotErrorIs(s, err, idem.ErrLostLease, "%v", script)
			}
			s.again(c, key, idem.Executed, idem.Duplicate)
			return script
		}
		counted := run(&faultconn.Script{From: faultconn.Frontend, When: faultconn.Statement}, false)
		require.Greater(s, counted.Matches(), 5)
		for n := 1; n <= counted.Matches(); n++ {
			for _, fault := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Pass} {
				script := &faultconn.Script{From: faultconn.Frontend, When: faultconn.Statement, N: n, Mode: fault}
				run(script, fault == faultconn.Pass)
				require.Equal(s, 1, script.Hits(), "statement %d was not reached", n)
			}
		}
		s.Logf("%d cuts", number)
	}, names...)
}

// The context ends in Send: an answer that has been had is applied all the same; without one the lease is ended, so
// that the next delivery need not wait for it.
func TestCallContextEndsInSend(t *testing.T) {
	sites(t, func(s *site) {
		for _, answered := range []bool{true, false} {
			key := stripe.Key(fmt.Sprint(answered))
			c := s.till(key)
			send := c.Send
			ctx, cancel := context.WithCancel(s.ctx)
			ending := c.Call
			ending.Send = func(sendCtx context.Context, external string) (string, error) {
				v, err := send(sendCtx, external)
				cancel()
				<-sendCtx.Done()
				if !answered {
					return "", sendCtx.Err()
				}
				return v, err
			}
			v, out, err := ending.Run(ctx, s.sound, key)
			if answered {
				require.NoError(s, err)
				require.Equal(s, idem.Executed, out)
				require.Equal(s, "ch_1", v)
				s.again(c, key, idem.Duplicate)
				continue
			}
			require.ErrorIs(s, err, context.Canceled)
			rec, err := idemsql.Once{}.Lookup(s.ctx, s.sound, key)
			require.NoError(s, err)
			require.Equal(s, idem.Unfinished, rec.State)
			s.again(c, key, idem.Executed)
			require.EqualValues(s, 2, c.sent.Load())
		}
	})
}

// MaxWait bounds the wait for a transaction that holds the key, and leaves nothing of it on the connection. Send
// holds none: one is enough for Call, Send and Apply.
func TestCallMaxWait(t *testing.T) {
	sites(t, func(s *site) {
		tx := s.begin()
		_, err := idemsql.Do(s.ctx, tx, stripe.Key("held"), nothing)
		require.NoError(s, err)
		db := s.broken(&faultconn.Script{})
		db.SetMaxOpenConns(1)
		defer closes(s, db)
		unlimited := func(ctx context.Context, q idemsql.Tx) {
			var limit string
			require.NoError(s, q.QueryRowContext(ctx, `SELECT current_setting('statement_timeout')`).Scan(&limit))
			require.Equal(s, "0", limit)
		}
		key := stripe.Key("free")
		c := s.till(key)
		c.Once.MaxWait = 50 * time.Millisecond
		begun := time.Now()
		_, _, err = c.Run(s.ctx, db, stripe.Key("held"))
		require.ErrorIs(s, err, idem.ErrInProgress)
		require.GreaterOrEqual(s, time.Since(begun), c.Once.MaxWait)
		require.Zero(s, c.sent.Load())
		require.NoError(s, tx.Rollback())
		send, apply := c.Send, c.Apply
		c.Send = func(ctx context.Context, external string) (string, error) {
			unlimited(ctx, db)
			return send(ctx, external)
		}
		c.Apply = func(ctx context.Context, tx idemsql.Tx, v string) error {
			unlimited(ctx, tx)
			return apply(ctx, tx, v)
		}
		_, out, err := c.Run(s.ctx, db, key)
		require.NoError(s, err)
		require.Equal(s, idem.Executed, out)
		s.again(c, key, idem.Duplicate)
	}, typical...)
}

// An Apply that ends its transaction in SQL text is found, though it returned nil.
func TestCallMisuse(t *testing.T) {
	sites(t, func(s *site) {
		for _, text := range []string{`COMMIT`, `ROLLBACK`, `COMMIT AND CHAIN`, `ROLLBACK AND CHAIN`} {
			key := stripe.Key(text)
			c := s.till(key)
			c.Apply = func(ctx context.Context, tx idemsql.Tx, _ string) error {
				_, err := tx.ExecContext(ctx, text)
				return err
			}
			_, out, err := c.Run(s.ctx, s.sound, key)
			require.Zero(s, out)
			var own *idem.Error
			require.ErrorAs(s, err, &own, text)
			require.Equal(s, idem.StageFn, own.Stage)
		}
		require.True(s, newDB(s.sound).Idle(s.ctx))

		key := stripe.Key("read-only")
		c := s.till(key)
		c.Once.TxOptions.ReadOnly = true
		c.Send = func(context.Context, string) (string, error) { panic("sent, and not to be confirmed") }
		_, _, err := c.Run(s.ctx, s.sound, key)
		require.ErrorContains(s, err, "read-only")
	})
}

// As fn of Do, fn of Returning may use the transaction itself. One that leaves it failed or ended gets an error that
// says so, and not that its value could not be stored.
func TestReturningMisuse(t *testing.T) {
	sites(t, func(s *site) {
		for name, spoil := range map[string]func(tx *sql.Tx) error{
			"swallows": func(tx *sql.Tx) error { _, _ = tx.Exec(`SELECT * FROM no_such_table`); return nil },
			"ends":     func(tx *sql.Tx) error { return tx.Rollback() },
			"ends, in SQL text": func(tx *sql.Tx) error {
				_, err := tx.Exec(`ROLLBACK`)
				return err
			},
		} {
			tx := s.begin()
			v, out, err := idemsql.Returning[string]{}.Do(s.ctx, tx, stripe.Key(name),
				func(context.Context, idemsql.Tx) (string, error) {
					return "v", spoil(tx)
				})
			require.Zero(s, v)
			require.Zero(s, out)
			var own *idem.Error
			require.ErrorAs(s, err, &own)
			require.Equal(s, idem.StageFn, own.Stage, "%s: %v", name, err)
			_ = tx.Rollback()
			require.Zero(s, s.keys(stripe.Key(name)))
		}
		// Rows that fn leaves open are closed before the value is stored, and reported.
		_, _, err := idemsql.Returning[string]{}.Run(s.ctx, s.sound, stripe.Key("rows"),
			func(ctx context.Context, tx idemsql.Tx) (string, error) {
				_, err := tx.QueryContext(ctx, `SELECT generate_series(1, 1000)`)
				return "v", err
			})
		require.ErrorContains(s, err, "rows are still open")
	})
}

// What Confirm is given must be a transaction, and is failed by any error of Confirm's; a nested Do's Tx will do.
func TestConfirm(t *testing.T) {
	sites(t, func(s *site) {
		r, _, err := idemsql.Once{}.Reserve(s.ctx, s.sound, stripe.Key("a"), time.Hour)
		require.NoError(s, err)
		require.True(s, pgerr.Is(r.Confirm(s.ctx, s.sound, nil), "25P01"))
		tx := s.begin()
		_, err = idemsql.Do(s.ctx, tx, stripe.Key("outer"), func(ctx context.Context, tx idemsql.Tx) error {
			return r.Confirm(ctx, tx, make([]byte, dedup.MaxValueBytes+1))
		})
		var own *idem.Error
		require.ErrorAs(s, err, &own)
		require.Equal(s, idem.StageValue, own.Stage)
		require.Error(s, tx.Commit())
		tx = s.begin()
		require.Error(s, idemsql.Reservation{Key: stripe.Key("a")}.Confirm(s.ctx, tx, nil), "it holds nothing")
		require.Error(s, tx.Commit())
		_, err = idemsql.Run(s.ctx, s.sound, stripe.Key("outer"), func(ctx context.Context, tx idemsql.Tx) error {
			return r.Confirm(ctx, tx, []byte(strings.Repeat("v", 10)))
		})
		require.NoError(s, err)
		rec, err := idemsql.Once{}.Lookup(s.ctx, s.sound, stripe.Key("a"))
		require.NoError(s, err)
		require.Equal(s, idem.Done, rec.State)
		require.Equal(s, "vvvvvvvvvv", string(rec.Value))
	}, typical...)
}

// An answer that the provider gave, and Send wrapped: the mark of package idem counts here, too.
func TestMarksAreShared(t *testing.T) {
	sites(t, func(s *site) {
		own := errors.New("own")
		c := s.till(stripe.Key("1"))
		c.Send = func(context.Context, string) (string, error) { return "", fmt.Errorf("around: %w", idem.Unsent(own)) }
		_, _, err := c.Run(s.ctx, s.sound, stripe.Key("1"))
		require.ErrorIs(s, err, own)
		require.EqualError(s, err, "own")
		require.Zero(s, s.keys(stripe.Key("1")))
	}, typical[0])
}
