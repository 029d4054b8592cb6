package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

func (s *site) reserve(key idem.Key) idem.Reservation {
	s.Helper()
	r, out, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
	require.NoError(s, err)
	require.Equal(s, idem.Executed, out)
	return r
}

// A late retry, of a key that may have been purged: refused, not sent again.
func TestReserveRefusesExpiredKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := stripe.Key("1").OccurredAt(time.Now().Add(-dedup.DefaultRetention - time.Minute))
	c := s.till(key)
	_, _, err := c.Run(s.ctx, s.sound, key)
	require.ErrorIs(t, err, idem.ErrExpired)
	_, _, err = idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
	require.ErrorIs(t, err, idem.ErrExpired)
	require.Zero(t, c.sent.Load())
	state, _ := s.state(key)
	require.Zero(t, state)

	// A key within the window, and one whose row is there, whatever its time.
	recent := stripe.Key("2").OccurredAt(time.Now().Add(-dedup.DefaultRetention + time.Hour))
	c = s.till(recent)
	_, out, err := c.Run(s.ctx, s.sound, recent)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
	_, out, err = c.Run(s.ctx, s.sound, stripe.Key("2").OccurredAt(time.Unix(1, 0)))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
}

// A row that can be neither inserted nor read is no reservation of somebody else.
func TestReserveOfHiddenRow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sql(`CREATE FUNCTION hide() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER hide BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION hide()`)
	_, out, err := idem.Once{}.Reserve(s.ctx, s.sound, stripe.Key("1"), time.Hour)
	require.Zero(t, out)
	require.ErrorContains(t, err, "neither inserted nor read")
	require.NotErrorIs(t, err, idem.ErrInProgress)
	require.False(t, idem.Retryable(err))
}

// Somebody comes in between the statements of a take-over: 1 inserts and looks, 2 takes over, 3 looks why that failed.
func TestTakeOverRaces(t *testing.T) {
	for name, tc := range map[string]struct {
		payload string
		before  func(s *site, key idem.Key, held idem.Reservation, n int)
		check   func(s *site, key idem.Key, sent int32, err error)
	}{
		// The holder extends its lease, which then runs out again: not a word about what the provider remembers.
		"extended": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			switch n {
			case 2:
				require.NoError(s, held.Extend(s.ctx, s.sound, time.Hour))
			case 3:
				s.expire(key)
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.NoError(s, err)
			require.EqualValues(s, 1, sent)
			_, attempt := s.state(key)
			require.Equal(s, 2, attempt)
		}},
		"extended, and alive": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, held.Extend(s.ctx, s.sound, time.Hour))
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.ErrorIs(s, err, idem.ErrInProgress)
			require.Zero(s, sent)
		}},
		"extended, and alive, without a memory": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, held.Extend(s.ctx, s.sound, time.Hour))
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.ErrorIs(s, err, idem.ErrInProgress)
			require.Zero(s, sent)
		}},
		"confirmed, without a memory": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
					return held.Confirm(s.ctx, tx, []byte(`{"ID":"ch_1"}`))
				}))
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.NoError(s, err)
			require.Zero(s, sent)
		}},
		"confirmed": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
					return held.Confirm(s.ctx, tx, []byte(`{"ID":"ch_1"}`))
				}))
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.NoError(s, err)
			require.Zero(s, sent)
		}},
		// The row that is taken over must be the one whose payload was compared.
		"another payload": {"a", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, held.Void(s.ctx, s.sound))
				s.reserve(stripe.Key(key.ID()).WithPayload([]byte("b")))
				s.expire(key)
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.ErrorIs(s, err, idem.ErrPayloadMismatch)
			require.Zero(s, sent)
		}},
		"another attempt": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				s.reserve(key)
				s.expire(key)
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.NoError(s, err)
			_, attempt := s.state(key)
			require.Equal(s, 3, attempt)
		}},
		"gone": {"", func(s *site, key idem.Key, held idem.Reservation, n int) {
			if n == 2 {
				require.NoError(s, held.Void(s.ctx, s.sound))
			}
		}, func(s *site, key idem.Key, sent int32, err error) {
			require.NoError(s, err)
			_, attempt := s.state(key)
			require.Equal(s, 1, attempt)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			if tc.payload != "" {
				key = key.WithPayload([]byte(tc.payload))
			}
			held := s.reserve(key)
			s.expire(key)
			c := s.till(key)
			if strings.HasSuffix(name, "without a memory") {
				c.Remembers = 0
			}
			_, _, err := c.Run(s.ctx, &between{Pool: s.sound, before: func(n int) { tc.before(s, key, held, n) }}, key)
			tc.check(s, key, c.sent.Load(), err)
		})
	}
}

// Another attempt is made only where it would end, with its lease, before the provider may forget: here that is an
// hour of ninety minutes. Both are counted from the row's creation, by the server's clock.
func TestMemory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for age, again := range map[time.Duration]bool{
		0: true, 29 * time.Minute: true, 31 * time.Minute: false, 89 * time.Minute: false, 91 * time.Minute: false,
		100 * 24 * time.Hour: false,
	} {
		key := newKey()
		s.reserve(key)
		_, err := s.sound.Exec(s.ctx, `
			UPDATE processed_events SET processed_at = processed_at - $2::int8 * interval '1 microsecond', lease_until = '-infinity'
			 WHERE key = $1`, key.ID(), age.Microseconds())
		require.NoError(t, err)
		c := s.till(key)
		c.Lease, c.Remembers = time.Hour, 90*time.Minute
		_, out, err := c.Run(s.ctx, s.sound, key)
		if again {
			require.NoError(t, err, "%v", age)
			require.Equal(t, idem.Executed, out)
			continue
		}
		require.ErrorIs(t, err, idem.ErrUnknown, "%v", age)
		require.Zero(t, c.sent.Load(), "%v", age)
	}
}

// A transaction holds the key: Reserve and Call wait for it, and with MaxWait for so long only.
func TestReserveMaxWait(t *testing.T) {
	limited := idem.Once{MaxWait: 30 * time.Millisecond}
	for name, hold := range map[string]func(s *site, tx pgx.Tx, key idem.Key) error{
		"Do": func(s *site, tx pgx.Tx, key idem.Key) error {
			_, err := idem.Do(s.ctx, tx, key, nothing)
			return err
		},
		"Confirm": func(s *site, tx pgx.Tx, key idem.Key) error {
			return s.reserve(key).Confirm(s.ctx, tx, []byte(`{"ID":"ch_1"}`))
		},
		"late Confirm": func(s *site, tx pgx.Tx, key idem.Key) error {
			r := s.reserve(key)
			s.expire(key)
			return r.Confirm(s.ctx, tx, []byte(`{"ID":"ch_1"}`))
		},
	} {
		for _, mode := range modes() {
			t.Run(fmt.Sprint(mode, "/", name), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				cfg := s.cfg.Copy()
				cfg.ConnConfig.DefaultQueryExecMode = mode
				pool := s.open(cfg)
				key := newKey()
				tx, err := s.sound.Begin(s.ctx)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback(context.Background()) }()
				require.NoError(t, hold(s, tx, key))

				_, out, err := limited.Reserve(s.ctx, pool, key, time.Hour)
				require.ErrorIs(t, err, idem.ErrInProgress)
				require.Zero(t, out)
				c := s.till(key)
				c.Once = limited
				_, _, err = c.Run(s.ctx, pool, key)
				require.ErrorIs(t, err, idem.ErrInProgress)
				require.Zero(t, c.sent.Load())

				waits := make(chan idem.Outcome, 1)
				go func() {
					_, out, _ := idem.Once{}.Reserve(s.ctx, pool, key, time.Hour)
					waits <- out
				}()
				require.Eventually(t, func() bool {
					var n int
					err := s.sound.QueryRow(s.ctx, `
						SELECT count(*) FROM pg_stat_activity
						 WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
					return err == nil && n == 1
				}, 20*time.Second, time.Millisecond)
				require.NoError(t, tx.Commit(s.ctx))
				require.Equal(t, idem.Duplicate, <-waits)
				// The limit was the statement's, and is gone with it.
				var limit string
				require.NoError(t, pool.QueryRow(s.ctx, `SHOW statement_timeout`).Scan(&limit))
				require.Equal(t, "0", limit)
			})
		}
	}

	// It is caught between the look and the take-over.
	t.Run("take-over", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		key := newKey()
		held := s.reserve(key)
		s.expire(key)
		tx, err := s.sound.Begin(s.ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, _, err = limited.Reserve(s.ctx, &between{Pool: s.sound, before: func(n int) {
			if n == 2 {
				require.NoError(t, held.Confirm(s.ctx, tx, nil))
			}
		}}, key, time.Hour)
		require.ErrorIs(t, err, idem.ErrInProgress)
	})
}

// Whatever Confirm fails of: what the caller wrote before cannot be committed without it.
func TestConfirmFailsTheTransaction(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	held := s.reserve(stripe.Key("1"))
	for name, r := range map[string]struct {
		idem.Reservation
		value []byte
	}{
		"holds nothing": {idem.Reservation{Key: stripe.Key("2")}, nil},
		"bad key":       {idem.Reservation{}, nil},
		"too large":     {held, make([]byte, dedup.MaxValueBytes+1)},
	} {
		err := pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
			_, err := tx.Exec(s.ctx, `INSERT INTO effects (what) VALUES ('written')`)
			require.NoError(t, err)
			require.Error(t, r.Confirm(s.ctx, tx, r.value))
			return nil
		})
		require.ErrorIs(t, err, pgx.ErrTxCommitRollback, name)
	}
	require.Zero(t, s.effects(stripe.Key("written")))
	state, _ := s.state(stripe.Key("1"))
	require.Equal(t, idem.Reserved, state)
}

// Each end of a Call as the observer is told it. No error says anything of keys, values or payloads.
func TestCallEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	answer := errors.New("cause")
	var seen events
	call := idem.Call[receipt]{
		Once: idem.Once{Observer: &seen}, Lease: time.Hour, Remembers: 23 * time.Hour,
		Send: func(context.Context, string) (receipt, error) { return receipt{"SECRET", 1}, answer },
	}
	strict := call
	strict.Remembers = 0
	key := func(id string) idem.Key { return stripe.Key("SECRET", id).WithPayload([]byte("SECRET")) }
	for _, c := range []struct {
		what   dedup.Outcome
		call   idem.Call[receipt]
		id     string
		answer error
		before func()
	}{
		{dedup.Executed, call, "1", nil, nil},
		{dedup.Duplicate, call, "1", nil, nil},
		{dedup.Failed, call, "2", errors.New("time-out"), nil},
		{dedup.Executed, call, "2", nil, nil},
		{dedup.FinalFailure, call, "3", idem.Final(errors.New("SECRET")), nil},
		{dedup.FinalFailure, call, "3", nil, nil},
		{dedup.Failed, strict, "4", errors.New("time-out"), nil},
		{dedup.Unsettled, strict, "4", nil, nil},
		{dedup.Failed, strict, "5", idem.Unsent(errors.New("refused")), nil},
		{dedup.InProgress, call, "6", nil, func() { s.reserve(key("6")) }},
		{dedup.Failed, call, "7", nil, func() { // a value that is no receipt
			require.NoError(t, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
				return s.reserve(key("7")).Confirm(s.ctx, tx, []byte(`"SECRET"`))
			}))
		}},
		{dedup.PayloadMismatch, call, "8", nil, func() { s.reserve(key("8").WithPayload([]byte("other"))) }},
		{dedup.LostLease, idem.Call[receipt]{
			Once: call.Once, Lease: time.Hour,
			Send: func(context.Context, string) (receipt, error) {
				s.expire(key("9"))
				s.reserve(key("9"))
				return receipt{"SECRET", 1}, nil
			},
		}, "9", nil, nil},
		{dedup.Failed, idem.Call[receipt]{Once: call.Once}, "10", nil, nil}, // no lease
	} {
		if c.before != nil {
			c.before()
		}
		answer = c.answer
		seen.all = nil
		_, out, err := c.call.Run(s.ctx, s.sound, key(c.id))
		require.Equal(t, []dedup.Outcome{c.what}, seen.whats(), "%s: %v", c.id, err)
		require.Equal(t, err == nil, out != 0)
		require.NotContains(t, errText(err), "SECRET")
		e := seen.all[0]
		require.Equal(t, []string{"processed_events", "stripe", "activate"}, []string{e.Table, e.Source, e.Operation})
		require.NotContains(t, fmt.Sprintf("%+v", e), "SECRET")
		if c.what == dedup.Executed {
			require.Positive(t, e.Waited)
			require.Positive(t, e.Held)
		}
		if c.what == dedup.Duplicate {
			require.Positive(t, e.Age)
		}
	}
	// A key that cannot be stored, and the server's own word about it.
	s.sql(`ALTER TABLE processed_events ADD CHECK (key NOT LIKE '%never%')`)
	_, _, err := call.Run(s.ctx, s.sound, key("never"))
	require.Error(t, err)
	require.False(t, strings.Contains(fmt.Sprintf("%+v %#v", err, errors.Unwrap(err)), "SECRET"), "%v", err)
}
