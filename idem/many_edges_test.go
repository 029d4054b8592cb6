package idem_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// lookingTx calls before each statement that reads the rows of a batch.
type lookingTx struct {
	pgx.Tx
	before func()
}

func (t lookingTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if strings.HasPrefix(strings.TrimSpace(q.SQL), "SELECT k.n") {
			t.before()
		}
	}
	return t.Tx.SendBatch(ctx, b)
}

// A row that goes away between the two statements of a batch is claimed once more. Where that fails, what the first
// claim has written must not be committed without its effect.
func TestManyClaimedTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		hinder func(s *site)
	}{
		"somebody takes the key": {idem.ErrInProgress, func(s *site) {
			rival, err := s.sound.Begin(s.ctx)
			require.NoError(t, err)
			s.Cleanup(func() { _ = rival.Rollback(context.Background()) })
			_, err = idem.Do(s.ctx, rival, stripe.Key("b"), nothing)
			require.NoError(t, err)
		}},
		"nothing else": {nil, func(*site) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			_, err := idem.Run(s.ctx, s.sound, stripe.Key("b"), nothing)
			require.NoError(t, err)
			tx, err := s.sound.Begin(s.ctx)
			require.NoError(t, err)
			looking := lookingTx{tx, func() {
				s.sql(`DELETE FROM processed_events WHERE key = 'b'`)
				c.hinder(s)
			}}
			ran := 0
			once := idem.Once{MaxWait: 100 * time.Millisecond}
			_, err = once.DoMany(s.ctx, looking, []idem.Key{stripe.Key("a"), stripe.Key("b")},
				func(_ context.Context, _ pgx.Tx, fresh []int) error {
					ran = len(fresh)
					return nil
				})
			require.ErrorIs(t, err, c.err)
			err = tx.Commit(s.ctx)
			if c.err == nil {
				require.NoError(t, err)
				require.Equal(t, 2, ran)
				return
			}
			require.Zero(t, ran)
			require.Error(t, err, "the row of a is in it")
			_, err = idem.Once{}.Lookup(s.ctx, s.sound, stripe.Key("a"))
			require.ErrorIs(t, err, idem.ErrNotFound)
		})
	}
}
