package idem_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// A key with a time of its own never runs again once its row was purged: a row goes only when that time has left the
// window, however far ahead of the database's clock it was (or it is refused), and however old the claim's
// transaction was.
func TestPurgedKeysAreExpired(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, layout := range []dedup.Layout{dedup.Plain, dedup.Hash(2)} {
		table := dedup.Table{
			Name:   map[dedup.Layout]string{dedup.Plain: "plain", dedup.Hash(2): "hashed"}[layout],
			Layout: layout, Retention: 100 * time.Hour,
		}
		require.NoError(t, dedup.Migrate(s.ctx, s.sound, table))
		once := idem.Once{Table: table}
		const grace = time.Hour // a hundredth
		for ahead, want := range map[time.Duration]error{
			0: nil, grace/2 - time.Minute: nil,
			grace/2 + time.Minute: idem.ErrFuture, 1000 * time.Hour: idem.ErrFuture,
		} {
			for _, open := range []time.Duration{0, grace / 2} { // the age of the transaction when it claims
				at := time.Now().Add(ahead)
				key := newKey().OccurredAt(at)
				out, err := once.Run(s.ctx, s.sound, key, nothing)
				require.ErrorIs(t, err, want)
				if _, _, err := once.Reserve(s.ctx, s.sound, newKey().OccurredAt(at), time.Minute); want != nil {
					require.ErrorIs(t, err, want)
					require.False(t, idem.Retryable(err))
					continue
				}
				require.Equal(t, idem.Executed, out)
				// Time passes until the purge takes the row: for row and key alike.
				pass := table.Retention + grace + time.Second - open
				_, err = s.sound.Exec(s.ctx, `UPDATE `+table.Name+
					` SET processed_at = processed_at - $2::int8 * interval '1 microsecond' WHERE key = $1`,
					key.ID(), (pass + open).Microseconds())
				require.NoError(t, err)
				stats, err := table.Purge(s.ctx, s.sound)
				require.NoError(t, err)
				require.EqualValues(t, 1, stats.Deleted)
				id := key.ID()
				later := idem.Scope{Source: key.Scope().Source, Operation: key.Scope().Operation}.Key(id).OccurredAt(at.Add(-pass))
				require.Equal(t, id, later.ID())
				_, err = once.Run(s.ctx, s.sound, later, never(t))
				require.ErrorIs(t, err, idem.ErrExpired, "%v ahead, in a transaction that was open for %v", ahead, open)
			}
		}
	}
}

// The age of a timed key's row counts from the claim, not from the beginning of its transaction, which may be hours
// older: a purge would take the row while the key's time is still in the window.
func TestTimedRowIsAsOldAsItsClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := newKey().OccurredAt(time.Now())
	var before, after bool
	require.NoError(t, pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error {
		var begun string
		require.NoError(t, tx.QueryRow(s.ctx, `SELECT clock_timestamp()::text`).Scan(&begun))
		out, err := idem.Do(s.ctx, tx, key, nothing)
		require.Equal(t, idem.Executed, out)
		require.NoError(t, err)
		return tx.QueryRow(s.ctx, `SELECT processed_at > $2::text::timestamptz, processed_at <= clock_timestamp() FROM processed_events WHERE key = $1`,
			key.ID(), begun).Scan(&before, &after)
	}))
	require.True(t, before)
	require.True(t, after)
}
