package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whatever the defaults of the server, the role or the connection: relays that share the lanes meet no error, and
// publish everything once.
func TestDefaults(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{
		"default_transaction_isolation=serializable", "default_transaction_isolation=repeatable read",
		"default_transaction_read_only=on", "synchronous_commit=off", "bytea_output=escape", "DateStyle=German",
		"standard_conforming_strings=off", "enable_indexscan=off", "TimeZone=Asia/Kathmandu", "extra_float_digits=0",
		"plan_cache_mode=force_generic_plan", "client_encoding=LATIN1", "IntervalStyle=sql_standard",
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			name, value := cut(setting)
			cfg := pgtest.Config(t)
			cfg.ConnConfig.RuntimeParams[name] = value
			pool := pgtest.PoolConfig(t, cfg)
			require.NoError(t, outbox.Migrate(ctx, pool))
			require.NoError(t, outbox.Verify(ctx, pool))
			b := &broker{}
			run, stop := context.WithCancel(ctx)
			var mu sync.Mutex
			var total outbox.Stats
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = outbox.Relay{
					Publisher: b, Batch: 3, Workers: 4, Poll: time.Millisecond,
					Done: func(_ context.Context, s outbox.Stats, err error) {
						mu.Lock()
						defer mu.Unlock()
						total.Published += s.Published
						total.Again += s.Again
						if err != nil && run.Err() == nil {
							t.Error(err)
						}
					},
				}.Run(run, pool)
			}()
			const keys, each = 20, 10
			var writers sync.WaitGroup
			for k := range keys {
				writers.Go(func() {
					for n := 1; n <= each; n++ {
						opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
						err := pgx.BeginTxFunc(ctx, pool, opts,
							func(tx pgx.Tx) error { return outbox.Append(ctx, tx, ev(fmt.Sprint("k", k), n)) })
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			writers.Wait()
			require.Eventually(t, func() bool { return count(t, pool, `SELECT count(*) FROM outbox`) == 0 }, 20*time.Second,
				5*time.Millisecond)
			stop()
			<-done
			inOrder(t, b, keys, each)
			require.Equal(t, outbox.Stats{Published: keys * each}, total)
		})
	}
}

func cut(setting string) (name, value string) {
	for i, c := range setting {
		if c == '=' {
			return setting[:i], setting[i+1:]
		}
	}
	return setting, ""
}
