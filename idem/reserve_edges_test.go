package idem_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// On a connection that is in a transaction a reservation would not be committed when the call is made, and could be
// rolled back after it: refused before anything is sent, to the server or to the provider.
func TestReserveRefusesConnectionInTransaction(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	acquired, err := s.sound.Acquire(s.ctx)
	require.NoError(t, err)
	defer acquired.Release()
	for name, db := range map[string]idem.DB{"conn": acquired.Conn(), "acquired": acquired} {
		key := newKey()
		c := s.till(key)
		tx, err := db.BeginTx(s.ctx, pgx.TxOptions{})
		require.NoError(t, err)
		for _, failed := range []bool{false, true} {
			if failed {
				_, err := tx.Exec(s.ctx, `SELECT 1/0`)
				require.Error(t, err)
			}
			_, out, err := c.Run(s.ctx, db, key)
			require.Zero(t, out, name)
			require.ErrorContains(t, err, "in a transaction already", name)
			_, out, err = idem.Once{}.Reserve(s.ctx, db, key, time.Hour)
			require.Zero(t, out, name)
			require.ErrorContains(t, err, "in a transaction already", name)
			require.False(t, idem.Retryable(err))
		}
		require.NoError(t, tx.Rollback(s.ctx))
		require.Zero(t, c.sent.Load(), name)
		state, _ := s.state(key)
		require.Zero(t, state)

		_, out, err := c.Run(s.ctx, db, key)
		require.NoError(t, err, "outside of a transaction")
		require.Equal(t, idem.Executed, out)
	}
}

// What a server or role may have set for its sessions, in each mode: every state of a reservation is read as it is.
func TestReservationSessions(t *testing.T) {
	for _, set := range [][2]string{
		{"default_transaction_isolation", "repeatable read"},
		{"default_transaction_isolation", "serializable"},
		{"bytea_output", "escape"},
		{"TimeZone", "Asia/Kathmandu"},
		{"DateStyle", "German, DMY"},
		{"IntervalStyle", "iso_8601"},
		{"extra_float_digits", "-15"},
	} {
		for _, mode := range modes() {
			t.Run(fmt.Sprint(set, "/", mode), func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				cfg := s.cfg.Copy()
				cfg.ConnConfig.DefaultQueryExecMode = mode
				cfg.ConnConfig.RuntimeParams[set[0]] = set[1]
				pool := s.open(cfg)
				once := idem.Once{MaxWait: time.Minute}
				payload := []byte{0, 0xff, '\\'}
				key := newKey().WithPayload(payload)
				r, out, err := once.Reserve(s.ctx, pool, key, time.Hour)
				require.NoError(t, err)
				require.Equal(t, idem.Executed, out)
				require.NoError(t, r.Extend(s.ctx, pool, 2*time.Hour))
				open, err := once.Pending(s.ctx, pool, key.Scope(), 10)
				require.NoError(t, err)
				require.Len(t, open, 1)
				require.Equal(t, key.ID(), open[0].Key.ID())
				require.Equal(t, idem.Reserved, open[0].State)
				require.Less(t, open[0].Age, time.Minute)
				rec, err := once.Lookup(s.ctx, pool, key)
				require.NoError(t, err)
				require.Len(t, rec.PayloadHash, 32)
				require.Equal(t, rec.PayloadHash, open[0].PayloadHash)

				s.expire(key)
				c := s.till(key)
				c.Once = once
				for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
					v, out, err := c.Run(s.ctx, pool, key)
					require.NoError(t, err)
					require.Equal(t, want, out)
					require.Equal(t, receipt{"ch_1", 10}, v)
				}
				_, attempt := s.state(key)
				require.Equal(t, 2, attempt)
			})
		}
	}
}

// Each length of time that a caller can give.
func TestReservationTimes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, d := range []time.Duration{math.MaxInt32 * time.Millisecond, 30 * 24 * time.Hour, math.MaxInt64} {
		key := newKey()
		c := s.till(key)
		c.Lease, c.Remembers, c.Once.MaxWait = d, d, d
		_, out, err := c.Run(s.ctx, s.sound, key)
		require.NoError(t, err, "%v", d)
		require.Equal(t, idem.Executed, out)

		key = newKey()
		r, out, err := idem.Once{MaxWait: d}.Reserve(s.ctx, s.sound, key, d)
		require.NoError(t, err, "%v", d)
		require.Equal(t, idem.Executed, out)
		require.NoError(t, r.Extend(s.ctx, s.sound, d))
	}
	key := newKey()
	r := s.reserve(key)
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		require.ErrorContains(t, r.Extend(s.ctx, s.sound, d), "must be positive")
		_, _, err := idem.Once{}.Reserve(s.ctx, s.sound, newKey(), d)
		require.ErrorContains(t, err, "must be positive")
		c := s.till(key)
		c.Lease = d
		_, _, err = c.Run(s.ctx, s.sound, key)
		require.ErrorContains(t, err, "must be positive")
		require.Zero(t, c.sent.Load())
	}
}

// late is a pool whose first batch takes time before it reaches the server.
type late struct {
	*pgxpool.Pool
	wait time.Duration
}

func (l *late) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	time.Sleep(l.wait)
	l.wait = 0
	return l.Pool.SendBatch(ctx, b)
}

// A reservation is whole when its holder gets it, however long it waited for a transaction or for a connection.
func TestReserveWaitsLongerThanItsLease(t *testing.T) {
	const lease, wait = 2 * time.Second, 2200 * time.Millisecond
	for name, db := range map[string]func(s *site, key idem.Key) idem.DB{
		"transaction": func(s *site, key idem.Key) idem.DB {
			tx, err := s.sound.Begin(s.ctx)
			require.NoError(s, err)
			_, err = idem.Do(s.ctx, tx, key, nothing)
			require.NoError(s, err)
			time.AfterFunc(wait, func() { _ = tx.Rollback(context.Background()) })
			return s.sound
		},
		"connection": func(s *site, _ idem.Key) idem.DB { return &late{s.sound, wait} },
	} {
		t.Run("Reserve/"+name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			_, out, err := idem.Once{}.Reserve(s.ctx, db(s, key), key, lease)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			state, attempt := s.state(key)
			require.Equal(t, idem.Reserved, state)
			require.Equal(t, 1, attempt)
		})
		t.Run("Call/"+name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := newKey()
			c := s.till(key)
			c.Lease = lease
			_, out, err := c.Run(s.ctx, db(s, key), key)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
		})
	}
}

// A row that cannot be changed is not for ever in progress.
func TestReserveOfFixedRow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := newKey()
	s.reserve(key)
	s.expire(key)
	s.sql(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE UPDATE ON processed_events FOR EACH ROW EXECUTE FUNCTION keep()`)
	_, out, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
	require.Zero(t, out)
	require.ErrorContains(t, err, "not changed")
	require.NotErrorIs(t, err, idem.ErrInProgress)
	require.False(t, idem.Retryable(err))
	c := s.till(key)
	_, _, err = c.Run(s.ctx, s.sound, key)
	require.ErrorContains(t, err, "not changed")
	require.Zero(t, c.sent.Load())
}

// What cannot be had back is said by the name of its type, not of its value.
func TestValuesOfInterfaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fn := func(context.Context, pgx.Tx) (fmt.Stringer, error) { return time.Second, nil }
	var r idem.Returning[fmt.Stringer]
	_, out, err := r.Run(s.ctx, s.sound, stripe.Key("1"), fn)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
	_, out, err = r.Run(s.ctx, s.sound, stripe.Key("1"), fn)
	require.Zero(t, out)
	require.ErrorContains(t, err, "fmt.Stringer")

	bad := func(context.Context, pgx.Tx) (json.Marshaler, error) { return json.RawMessage("{"), nil }
	_, _, err = idem.Returning[json.Marshaler]{}.Run(s.ctx, s.sound, stripe.Key("2"), bad)
	require.ErrorContains(t, err, "json.Marshaler")
	state, _ := s.state(stripe.Key("2"))
	require.Zero(t, state)
}

// Values of every size up to the limit come back as they were, an empty one as empty, none as none.
func TestValueSizes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, value := range [][]byte{nil, {}, {0}, make([]byte, dedup.MaxValueBytes)} {
		key := newKey()
		r := s.reserve(key)
		require.NoError(t, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error { return r.Confirm(s.ctx, tx, value) }))
		again, out, err := idem.Once{}.Reserve(s.ctx, s.sound, key, time.Hour)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		require.Equal(t, value == nil, again.Value == nil)
		require.Equal(t, len(value), len(again.Value))
	}
}
