package idem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// till is a Call over a provider, and what it leaves in the database: an effect a key.
type till struct {
	idem.Call[receipt]
	provider      *provider
	sent, applied atomic.Int32
}

func (s *site) till(key idem.Key) *till {
	c := &till{provider: newProvider(-1)}
	c.Lease, c.Remembers = time.Hour, 23*time.Hour
	c.Send = func(_ context.Context, external string) (receipt, error) {
		c.sent.Add(1)
		return c.provider.charge(external, key.ID(), 10), nil
	}
	c.Apply = func(ctx context.Context, tx pgx.Tx, _ receipt) error { return s.effect(key, &c.applied)(ctx, tx) }
	return c
}

// state is what the table says of a key; 0: there is no row.
func (s *site) state(key idem.Key) (idem.State, int) {
	s.Helper()
	rec, err := idem.Once{}.Lookup(s.ctx, s.sound, key)
	if errors.Is(err, idem.ErrNotFound) {
		return 0, 0
	}
	require.NoError(s, err)
	return rec.State, rec.Attempt
}

// expire ends the lease of a key, as time would.
func (s *site) expire(key idem.Key) {
	s.Helper()
	_, err := s.sound.Exec(s.ctx, `
		UPDATE processed_events SET lease_until = clock_timestamp() - interval '1 second'
		 WHERE key = $1 AND lease_until > clock_timestamp()`, key.ID())
	require.NoError(s, err)
}

// again delivers a call's key over the sound pool until it is settled, and wants one charge and one effect.
func (s *site) again(c *till, key idem.Key, want ...idem.Outcome) {
	s.Helper()
	s.expire(key)
	v, out, err := c.Run(s.ctx, s.sound, key)
	require.NoError(s, err, "the same key again")
	require.Contains(s, want, out)
	require.Equal(s, 10, v.Amount)
	require.Len(s, c.provider.look(key.ID()), 1)
	require.Equal(s, 1, s.effects(key))
}

// between calls a function before, or after, each batch that goes through the pool.
type between struct {
	*pgxpool.Pool
	n             int
	before, after func(n int)
}

func (b *between) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	b.n++
	if b.before != nil {
		b.before(b.n)
	}
	return closing{b.Pool.SendBatch(ctx, batch), func() {
		if b.after != nil {
			b.after(b.n)
		}
	}}
}

type closing struct {
	pgx.BatchResults
	closed func()
}

func (c closing) Close() error {
	err := c.BatchResults.Close()
	c.closed()
	return err
}

// A Call is cut, or its context cancelled, at every statement that it sends, in the long form at every message that it
// exchanges: one charge and one effect, always.
func TestCallCutAtEveryMessage(t *testing.T) {
	type fault struct {
		name   string
		side   faultconn.Side
		mode   faultconn.Mode
		cancel bool
	}
	faults := []fault{
		{"drop before", faultconn.Frontend, faultconn.DropBefore, false},
		{"drop reply", faultconn.Frontend, faultconn.DropReply, false},
		{"cancel", faultconn.Frontend, faultconn.Pass, true},
	}
	if long {
		faults = append(
			faults,
			fault{"reset", faultconn.Frontend, faultconn.Reset, false},
			fault{"drop backend", faultconn.Backend, faultconn.DropBefore, false},
			fault{"cancel backend", faultconn.Backend, faultconn.Pass, true},
		)
	}
	run := func(s *site, mode pgx.QueryExecMode, taken, canceled bool, script *faultconn.Script) *faultconn.Script {
		key := newKey()
		c := s.till(key)
		if taken { // an earlier attempt has charged, and died
			_, _, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
			require.NoError(s, err)
			c.provider.charge(key.External(), key.ID(), 10)
			s.expire(key)
		}
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		defer cancel()
		if canceled {
			script.Do = func(faultconn.Message) { cancel() }
		}
		pool := s.broken(script, mode)
		_, out, err := c.Run(ctx, pool, key)
		script.Release()
		s.gone(pool)
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
	cutModes := modes()
	if !long {
		cutModes = cutModes[:1]
	}
	for _, mode := range cutModes {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprint(mode, "/taken over ", taken), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				when := faultconn.Statement
				if long {
					when = nil
				}
				done := 0
				for _, f := range faults {
					counted := run(s, mode, taken, false, &faultconn.Script{From: f.side, When: when})
					require.Greater(t, counted.Matches(), 3)
					for n := 1; n <= counted.Matches(); n++ {
						script := &faultconn.Script{From: f.side, When: when, N: n, Mode: f.mode}
						run(s, mode, taken, f.cancel, script)
						require.Equal(t, 1, script.Hits(), "%s at message %d was not reached", f.name, n)
						done++
					}
				}
				t.Logf("%d faults", done)
			})
		}
	}
}

// A COMMIT that was lost, or whose reply was: success is said only of this attempt's own.
func TestCallLostCommit(t *testing.T) {
	for _, mode := range modes() {
		for fault, applied := range map[faultconn.Mode]int32{
			faultconn.DropReply: 1, faultconn.DropBefore: 2,
			faultconn.Reset: 2,
		} {
			t.Run(fmt.Sprint(mode, "/", fault), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				key := newKey()
				c := s.till(key)
				script := &faultconn.Script{When: faultconn.Commit, Mode: fault}
				pool := s.broken(script, mode)
				v, out, err := c.Run(s.ctx, pool, key)
				require.NoError(t, err, "%v", script)
				require.Equal(t, idem.Executed, out)
				require.Equal(t, receipt{"ch_1", 10}, v)
				require.Equal(t, 1, script.Hits())
				require.Equal(t, applied, c.applied.Load(), "how often Apply ran")
				require.EqualValues(t, 1, c.sent.Load())
				s.gone(pool)
				s.again(c, key, idem.Duplicate)
			})
		}
	}

	// What the second look finds, where the COMMIT did not take place and somebody came in between.
	for name, tc := range map[string]struct {
		meanwhile func(s *site, key idem.Key)
		check     func(t *testing.T, err error)
	}{
		"taken over and confirmed": {func(s *site, key idem.Key) {
			s.expire(key)
			_, out, err := s.till(key).Run(s.ctx, s.sound, key)
			require.NoError(s, err)
			require.Equal(s, idem.Executed, out)
		}, wantLost},
		"taken over": {func(s *site, key idem.Key) {
			s.expire(key)
			_, _, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
			require.NoError(s, err)
		}, wantLost},
		"failed by hand": {func(s *site, key idem.Key) {
			s.sql(`UPDATE processed_events SET lease_until = NULL, failed = true`)
		}, wantLost},
		// Whether the COMMIT took place before the row went away, nobody can say.
		"gone": {func(s *site, key idem.Key) { s.sql(`DELETE FROM processed_events`) }, wantUnsure},
		"gone, and confirmed anew": {func(s *site, key idem.Key) {
			s.sql(`DELETE FROM processed_events`)
			_, out, err := s.till(key).Run(s.ctx, s.sound, key)
			require.NoError(s, err)
			require.Equal(s, idem.Executed, out)
		}, wantUnsure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			c := s.till(key)
			script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropBefore}
			pool := &between{Pool: s.broken(script, pgx.QueryExecModeCacheStatement)}
			pool.before = func(n int) {
				if n == 3 { // 1: reserve, 2: confirm and apply, 3: confirm again
					tc.meanwhile(s, key)
				}
			}
			_, out, err := c.Run(s.ctx, pool, key)
			require.Zero(t, out)
			tc.check(t, err)
			require.EqualValues(t, 1, c.applied.Load())
			require.LessOrEqual(t, s.effects(key), 1)
			s.gone(pool.Pool)
		})
	}

	// No new connection can be had.
	for fault, later := range map[faultconn.Mode]idem.Outcome{
		faultconn.DropReply:  idem.Duplicate,
		faultconn.DropBefore: idem.Executed,
	} {
		t.Run("unknown/"+fault.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			c := s.till(key)
			c.Once.Tries = 2
			script := &faultconn.Script{When: faultconn.Commit, Mode: fault, Refuse: true}
			pool := s.broken(script, pgx.QueryExecModeCacheStatement)
			_, out, err := c.Run(s.ctx, pool, key)
			conformance.WantUnknown(t, out, err)
			script.Release()
			s.gone(pool)
			s.again(c, key, later)
		})
	}
}

func wantLost(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, idem.ErrLostLease)
	require.False(t, pgerr.CommitUnknown(err))
}

func wantUnsure(t *testing.T, err error) {
	t.Helper()
	require.True(t, pgerr.CommitUnknown(err), "%v", err)
}

// The context ends at each step.
func TestCallContextEnds(t *testing.T) {
	t.Run("before Reserve", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := s.till(key)
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		_, out, err := c.Run(ctx, s.sound, key)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, out)
		state, _ := s.state(key)
		require.Zero(t, state)
		require.Zero(t, c.sent.Load())
	})

	// Nothing was sent, which is certain: the key is released, also where the provider knows no keys.
	for name, lease := range map[string]time.Duration{
		"before Send":            time.Hour,
		"lease over before Send": time.Nanosecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			c := s.till(key)
			c.Remembers, c.Lease = 0, lease
			ctx, cancel := context.WithCancel(s.ctx)
			defer cancel()
			_, out, err := c.Run(ctx, &between{Pool: s.sound, after: func(int) {
				if lease == time.Hour {
					cancel()
				}
			}}, key)
			require.Zero(t, out)
			require.Error(t, err)
			require.True(t, idem.Retryable(err))
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageSend, own.Stage)
			require.Zero(t, c.sent.Load())
			state, _ := s.state(key)
			require.Zero(t, state, "released")
			c.Lease = time.Hour
			s.again(c, key, idem.Executed)
		})
	}

	t.Run("in Send, which gives up", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := s.till(key)
		ctx, cancel := context.WithCancel(s.ctx)
		send := c.Send
		c.Send = func(ctx context.Context, external string) (receipt, error) {
			_, _ = send(ctx, external)
			cancel()
			<-ctx.Done()
			return receipt{}, ctx.Err()
		}
		_, _, err := c.Run(ctx, s.sound, key)
		require.ErrorIs(t, err, context.Canceled)
		state, attempt := s.state(key)
		require.Equal(t, idem.Unfinished, state, "nobody has to wait for the lease")
		require.Equal(t, 1, attempt)
		c.Send = send
		s.again(c, key, idem.Executed)
	})

	// The answer is there: it is not thrown away, for a provider without a memory would not give it again.
	t.Run("in Send, which has its answer", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := s.till(key)
		c.Remembers = 0
		ctx, cancel := context.WithCancel(s.ctx)
		send := c.Send
		c.Send = func(ctx context.Context, external string) (receipt, error) {
			defer cancel()
			return send(ctx, external)
		}
		_, out, err := c.Run(ctx, s.sound, key)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		s.again(c, key, idem.Duplicate)
	})

	t.Run("in Send, which failed for good", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := s.till(key)
		ctx, cancel := context.WithCancel(s.ctx)
		c.Send = func(context.Context, string) (receipt, error) {
			cancel()
			return receipt{}, idem.Final(errors.New("declined"))
		}
		_, _, err := c.Run(ctx, s.sound, key)
		var final *idem.FinalError
		require.ErrorAs(t, err, &final)
		state, _ := s.state(key)
		require.Equal(t, idem.FinallyFailed, state)
	})

	t.Run("in Apply", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := s.till(key)
		ctx, cancel := context.WithCancel(s.ctx)
		apply := c.Apply
		c.Apply = func(ctx context.Context, tx pgx.Tx, v receipt) error {
			cancel()
			return apply(ctx, tx, v)
		}
		_, out, err := c.Run(ctx, s.sound, key)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		s.again(c, key, idem.Duplicate)
	})
}

// Send and Apply panic, or end the goroutine: the next delivery need not wait for the lease.
func TestCallMisbehaves(t *testing.T) {
	ends := map[string]func(){
		"panics": func() { panic("SECRET") },
		"exits":  runtime.Goexit,
	}
	for name, end := range ends {
		for _, step := range []string{"Send", "Apply"} {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				key := newKey()
				c := s.till(key)
				var seen events
				bad := c.Call
				bad.Once.Observer = &seen
				if step == "Send" {
					bad.Send = func(context.Context, string) (receipt, error) { end(); return receipt{}, nil }
				} else {
					bad.Apply = func(ctx context.Context, tx pgx.Tx, v receipt) error {
						require.NoError(t, c.Apply(ctx, tx, v))
						end()
						return nil
					}
				}
				var recovered any
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { recovered = recover() }()
					_, _, _ = bad.Run(s.ctx, s.sound, key)
				}()
				<-done
				if name == "panics" {
					require.Equal(t, "SECRET", recovered, "a panic passes through")
				}
				require.Equal(t, []dedup.Outcome{dedup.Failed}, seen.whats())
				require.Zero(t, s.effects(key))
				state, _ := s.state(key)
				require.Equal(t, idem.Unfinished, state)
				s.again(c, key, idem.Executed)
			})
		}
	}
}

// events keeps what an observer is told.
type events struct {
	mu  sync.Mutex
	all []dedup.Event
}

func (e *events) Observe(_ context.Context, event dedup.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

func (e *events) whats() (all []dedup.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		all = append(all, event.Outcome)
	}
	return all
}

// How an attempt ended cannot be recorded: the error says both, the key stays open, and its lease is over.
func TestCallCannotRecord(t *testing.T) {
	cause := errors.New("cause")
	for name, tc := range map[string]struct {
		mark  func(error) error
		sql   string
		fault faultconn.Mode
		state idem.State // afterwards
	}{
		"final, lost":    {idem.Final, "failed = true", faultconn.DropBefore, idem.Unfinished},
		"final, reply":   {idem.Final, "failed = true", faultconn.DropReply, idem.FinallyFailed},
		"release, lost":  {idem.Unsent, "delete from", faultconn.DropBefore, idem.Unfinished},
		"release, reply": {idem.Unsent, "delete from", faultconn.DropReply, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			c := s.till(key)
			c.Send = func(context.Context, string) (receipt, error) { return receipt{}, tc.mark(cause) }
			script := &faultconn.Script{When: faultconn.Containing(tc.sql), Mode: tc.fault}
			pool := s.broken(script, pgx.QueryExecModeCacheStatement)
			_, out, err := c.Run(s.ctx, pool, key)
			require.Equal(t, 1, script.Hits(), "%v", script)
			require.Zero(t, out)
			require.ErrorIs(t, err, cause)
			require.True(t, idem.Retryable(err), "%v", err)
			var final *idem.FinalError
			require.False(t, errors.As(err, &final), "it is not known to be stored")
			state, _ := s.state(key)
			require.Equal(t, tc.state, state)
			s.gone(pool)
		})
	}

	t.Run("an answer that cannot be stored", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		c := idem.Call[string]{Lease: time.Hour, Remembers: time.Hour, Send: func(context.Context, string) (string, error) {
			return strings.Repeat("SECRET", dedup.MaxValueBytes/6+1), nil
		}}
		_, _, err := c.Run(s.ctx, s.sound, key)
		require.ErrorContains(t, err, "larger than")
		require.NotContains(t, err.Error(), "SECRET")
		state, _ := s.state(key)
		require.Equal(t, idem.Unfinished, state)
	})
}
