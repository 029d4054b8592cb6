package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Sessions of workers are killed at random, from the server's side, while messages are stored and come again: each has
// one effect, and order holds.
func TestKilledSessions(t *testing.T) {
	t.Parallel()
	const keys, each, enough = 4, 30, 6
	var kills atomic.Int64
	pool := migrated(t)
	cfg := pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["application_name"] = "worker"
	workers := pgtest.PoolConfig(t, cfg)
	execSQL(t, pool, `CREATE TABLE sequence (n bigint GENERATED ALWAYS AS IDENTITY, key text, id text)`)
	want := map[string][]string{}
	for k := range keys {
		messages, ids := numbered(fmt.Sprint("k", k), each)
		want[messages[0].Key] = ids
		store(t, pool, messages...)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		w := quick()
		w.Workers, w.Poll, w.Lease, w.MaxAttempts = 4, time.Millisecond, 20*time.Millisecond, math.MaxInt32
		ended <- w.Run(ctx, workers, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
			if m.ID == want[m.Key][each-1] && kills.Load() < enough {
				return errors.New("there are kills to come")
			}
			_, err := tx.Exec(ctx, `INSERT INTO sequence (key, id) VALUES ($1::text, $2::text)`, m.Key, m.ID)
			return err
		})
	}()
	deadline := time.Now().Add(50 * time.Second)
	for count(t, pool, `SELECT count(*) FROM inbox WHERE state <> 2`) > 0 && time.Now().Before(deadline) {
		if kills.Load() < 40 {
			kills.Add(int64(count(t, pool, `
				SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				 WHERE datname = current_database() AND application_name = 'worker' ORDER BY random() LIMIT 1) AS a`)))
		}
		again(t, pool, msg("k0", want["k0"][kills.Load()%each]))
		time.Sleep(10 * time.Millisecond) // between two kills
	}
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.GreaterOrEqual(t, kills.Load(), int64(enough))
	t.Logf("%d sessions were killed; %d attempts were made", kills.Load(),
		count(t, pool, `SELECT sum(attempt) FROM inbox`))
	rows, err := pool.Query(t.Context(), `SELECT key, array_agg(id ORDER BY n) FROM sequence GROUP BY key`)
	require.NoError(t, err)
	got := map[string][]string{}
	var key string
	var ids []string
	_, err = pgx.ForEachRow(rows, []any{&key, &ids}, func() error { got[key] = append([]string{}, ids...); return nil })
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A database that comes back from a dump that was made while messages were being handled: everything is handled, and
// what had been handled then is a duplicate. The numbers begin again, as where only the rows were restored.
func TestRestored(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	all, ids := numbered("k", 4)
	store(t, pool, append(all, msg("", "free"))...)
	w := quick()
	w.Lease = 50 * time.Millisecond
	stopped, stop := context.WithCancel(ctx)
	_, err := w.Drain(ctx, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		if m.ID == ids[1] {
			// The dump: what is committed now, the claim of this message as well.
			execSQL(t, pool, `CREATE TABLE dump AS SELECT * FROM inbox`)
			stop()
		}
		return insert(ctx, tx, m)
	})
	require.NoError(t, err)
	<-stopped.Done()
	execSQL(t, pool, `TRUNCATE inbox RESTART IDENTITY`)
	execSQL(t, pool, `INSERT INTO inbox OVERRIDING SYSTEM VALUE SELECT * FROM dump`)
	handled := count(t, pool, `SELECT count(*) FROM inbox WHERE state = 2`)
	require.Positive(t, handled)
	require.Positive(t, count(t, pool, `SELECT count(*) FROM inbox WHERE token IS NOT NULL AND state = 1`))
	execSQL(t, pool, `DELETE FROM effects WHERE id NOT IN (SELECT message_id FROM inbox WHERE state = 2)`)
	again(t, pool, all[0])
	store(t, pool, msg("k", "new"), msg("", "new, free"))
	require.Eventually(t, func() bool {
		_, err := w.Drain(ctx, pool, insert)
		require.NoError(t, err)
		return depth(t, pool) == inbox.Depth{}
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, 7, count(t, pool, `SELECT count(*) FROM effects`))
	require.Equal(t, 7, count(t, pool, `SELECT count(DISTINCT id) FROM effects`))
}

// Nothing is marked before the handler has ended: not the name, of which a redelivery is told, nor the message, which
// others that look see as waiting.
func TestNothingIsMarkedBefore(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	look := func(db *pgxpool.Pool) {
		require.Equal(t, 1, count(t, db, `SELECT count(*) FROM inbox WHERE state = 1 AND finished_at IS NULL`))
	}
	drain(t, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		look(pool)
		defer look(pool)
		return insert(ctx, tx, m)
	})
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM inbox WHERE state = 2`))
}
