package idem_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// Serialization failures and deadlocks by the thousand: Run begins anew, and each key has its effect once.
func TestConflicts(t *testing.T) {
	want := int64(50)
	if long {
		want = 1000
	}
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			_, err := s.sound.Exec(s.ctx, `CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL); INSERT INTO counter VALUES (1, 0), (2, 0)`)
			require.NoError(t, err)
			cfg := s.cfg.Copy()
			cfg.ConnConfig.RuntimeParams["deadlock_timeout"] = "50ms" // of one second, most of the test would be waits
			pool := s.open(cfg)
			once := idem.Once{Tries: 1000, TxOptions: pgx.TxOptions{IsoLevel: level}}
			var calls, done atomic.Int64
			var wg sync.WaitGroup
			begun := time.Now()
			for w := range 8 {
				wg.Go(func() {
					for i := 0; calls.Load()-done.Load() < want && s.ctx.Err() == nil; i++ {
						out, err := once.Run(s.ctx, pool, stripe.Key(fmt.Sprintf("%d-%d", w, i)),
							func(ctx context.Context, tx pgx.Tx) error {
								calls.Add(1)
								// Read, then write what was read; and half of the workers in the other order, for deadlocks.
								for _, id := range [][]int{{1, 2}, {2, 1}}[w%2] {
									var n int
									if err := tx.QueryRow(ctx, `SELECT n FROM counter WHERE id = $1`, id).Scan(&n); err != nil {
										return err
									}
									if _, err := tx.Exec(ctx, `UPDATE counter SET n = $2 WHERE id = $1`, id, n+1); err != nil {
										return err
									}
								}
								return nil
							})
						if err != nil || out != idem.Executed {
							t.Errorf("%v, %v", out, err)
							return
						}
						done.Add(1)
					}
				})
			}
			wg.Wait()
			for id := 1; id <= 2; id++ {
				var n int64
				require.NoError(t, s.sound.QueryRow(s.ctx, `SELECT n FROM counter WHERE id = $1`, id).Scan(&n))
				require.Equal(t, done.Load(), n, "no update was lost, none was made twice")
			}
			var keys int64
			require.NoError(t, s.sound.QueryRow(s.ctx, `SELECT count(*) FROM processed_events`).Scan(&keys))
			require.Equal(t, done.Load(), keys)
			t.Logf("%d keys, %d runs of fn that a conflict undid; %v", keys, calls.Load()-done.Load(),
				time.Since(begun).Round(time.Second))
			require.GreaterOrEqual(t, calls.Load()-done.Load(), want, "too few conflicts to prove anything")
		})
	}
}

// Deadlocks at READ COMMITTED, where there are no serialization failures to come first.
func TestDeadlocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, err := s.sound.Exec(s.ctx, `CREATE TABLE hot (id int PRIMARY KEY, n int NOT NULL); INSERT INTO hot VALUES (1, 0), (2, 0)`)
	require.NoError(t, err)
	rounds := 5
	if long {
		rounds = 100
	}
	cfg := s.cfg.Copy()
	cfg.ConnConfig.RuntimeParams["deadlock_timeout"] = "20ms"
	cfg.MaxConns = 8
	pool := s.open(cfg)
	var calls atomic.Int64
	for round := range rounds {
		var wg sync.WaitGroup
		var holding atomic.Int32
		both := make(chan struct{}) // closed when each holds its first row
		for w, order := range [][]int{{1, 2}, {2, 1}} {
			first := true
			wg.Go(func() {
				_, err := idem.Once{Tries: 100}.Run(s.ctx, pool, stripe.Key(fmt.Sprintf("%d-%d", round, w)),
					func(ctx context.Context, tx pgx.Tx) error {
						calls.Add(1)
						for _, id := range order {
							if _, err := tx.Exec(ctx, `UPDATE hot SET n = n + 1 WHERE id = $1`, id); err != nil {
								return err
							}
							if id != order[0] || !first {
								continue
							}
							first = false
							if holding.Add(1) == 2 {
								close(both)
							}
							select {
							case <-both:
							case <-ctx.Done():
								return ctx.Err()
							}
						}
						return nil
					})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	var n int
	require.NoError(t, s.sound.QueryRow(s.ctx, `SELECT n FROM hot WHERE id = 1`).Scan(&n))
	require.Equal(t, 2*rounds, n)
	t.Logf("%d keys, %d runs of fn", 2*rounds, calls.Load())
	require.GreaterOrEqual(t, calls.Load(), int64(3*rounds), "each round begins with a deadlock")
}
