package idem_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// While Maintain makes and drops partitions, and handlers hold their transactions for half a second, no claim waits
// for it for longer than 150 ms: the server counts, by lock_timeout, so that a machine that is busy with other things
// adds nothing. The times are only logged, beside those of claims on a table that nobody maintains.
func TestMaintainHoldsNoClaimUp(t *testing.T) {
	ctx := t.Context()
	cfg := pgtest.Config(t)
	cfg.MaxConns = 8 // one for each handler and each claim: one that had to be opened later would be measured, too
	own := cfg.ConnConfig.Copy()
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "150ms"
	pool := migrateWeekly(t, pgtest.PoolConfig(t, cfg))
	keeper, err := pgx.ConnectConfig(ctx, own)
	require.NoError(t, err)
	defer keeper.Close(context.WithoutCancel(ctx))
	calm := idem.Once{Table: dedup.Table{Name: "calm", Layout: dedup.Weekly}}
	require.NoError(t, dedup.Migrate(ctx, pool, calm.Table))
	drop := func() { // the weeks ahead, so that there are some to make
		_, err := pool.Exec(ctx, `
			DO $$
			DECLARE leaf regclass;
			BEGIN
			  FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'processed_events'::regclass ORDER BY inhrelid::regclass::text DESC LIMIT 6 LOOP
			    EXECUTE format('DROP TABLE %s', leaf);
			  END LOOP;
			END $$`)
		require.NoError(t, err)
	}
	old := stripe.Key(uuid7(time.Now().Add(-30*24*time.Hour), 1))
	out, err := byWeek.Run(ctx, pool, old, nothing)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)

	hold := func(ctx context.Context, tx pgx.Tx) error {
		select {
		case <-time.After(500 * time.Millisecond): // what the handler does
		case <-ctx.Done():
		}
		return nil
	}
	// measure runs work beside the handlers and the claims, and returns how long the claims took, on the table and on
	// the calm one.
	measure := func(name string, work func()) (took, control []time.Duration) {
		ctx, cancel := context.WithCancel(ctx)
		var wg, counted sync.WaitGroup // counted: who claims, until his claims count
		const warm = 20
		counted.Add(4)
		var mu sync.Mutex
		for w := range 4 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					_, err := byWeek.Run(context.WithoutCancel(ctx), pool,
						stripe.Key(name, "h", fmt.Sprint(w, n)).OccurredAt(time.Now()), hold)
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for w := range 4 {
			once, times := byWeek, &took
			if w%2 == 1 {
				once, times = calm, &control
			}
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					at := time.Now().Add(-time.Duration(n%7) * 24 * time.Hour)
					key := stripe.Key(name, "c", fmt.Sprint(w, n/2)).OccurredAt(at.Truncate(24 * time.Hour))
					begun := time.Now()
					_, err := once.Run(context.WithoutCancel(ctx), pool, key, nothing)
					d := time.Since(begun)
					if err != nil {
						t.Error(err)
					}
					if n == warm {
						counted.Done()
					}
					if n < warm {
						continue // connections are opened, and statements prepared
					}
					mu.Lock()
					*times = append(*times, d)
					mu.Unlock()
				}
			})
		}
		counted.Wait()
		work()
		cancel()
		wg.Wait()
		return took, control
	}
	rounds := 1
	if os.Getenv("PGONCE_LONG") != "" {
		rounds = 10
	}
	var worst, control []time.Duration
	var made, dropped int
	for round := range rounds {
		drop()
		took, beside := measure(fmt.Sprint("maintained", round), func() {
			for days := 28; days >= 7; days -= 7 { // each drops a week
				table := byWeek.Table
				table.Retention = time.Duration(days) * 24 * time.Hour
				stats, err := table.Maintain(ctx, keeper)
				if err != nil {
					t.Error(err)
				}
				made, dropped = made+len(stats.Made), dropped+len(stats.Dropped)
			}
		})
		worst, control = append(worst, took...), append(control, beside...)
		if round < rounds-1 {
			_, err := pool.Exec(ctx, `DROP TABLE processed_events, effects, business, child, parent`)
			require.NoError(t, err)
			migrateWeekly(t, pool)
		}
	}
	for _, all := range [][]time.Duration{worst, control} {
		slices.SortFunc(all, func(a, b time.Duration) int { return int(b - a) })
		require.Greater(t, len(all), 100, "or this proves nothing")
	}
	t.Logf("made %d, dropped %d; %d claims, the slowest %v; control: %d, %v", made, dropped, len(worst), worst[:3],
		len(control), control[:3])
	require.GreaterOrEqual(t, made, 6*rounds)
	require.GreaterOrEqual(t, dropped, 3*rounds)

	_, err = byWeek.Run(ctx, pool, old, never(t))
	require.Error(t, err, "its partition is gone")
	expired := byWeek
	expired.Table.Retention = 7 * 24 * time.Hour
	_, err = expired.Run(ctx, pool, old, never(t))
	require.ErrorIs(t, err, idem.ErrExpired)
}
