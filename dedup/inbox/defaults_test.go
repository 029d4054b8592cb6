package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whatever the defaults of the server, the role or the connection: messages that come twice at once are stored without
// an error, and workers that share them meet none, and handle everything once.
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
			sound := migrated(t)
			cfg := sound.Config().Copy()
			name, value, _ := strings.Cut(setting, "=")
			cfg.ConnConfig.RuntimeParams[name] = value
			cfg.MaxConns = 12
			pool := pgtest.PoolConfig(t, cfg)
			require.NoError(t, inbox.Migrate(ctx, pool))
			run, stop := context.WithCancel(ctx)
			done := make(chan struct{})
			w := inbox.Worker{Workers: 4, Poll: time.Millisecond, Done: func(_ context.Context, _ inbox.Message, err error) {
				if err != nil && run.Err() == nil {
					t.Error(err)
				}
			}}
			go func() {
				defer close(done)
				_ = w.Run(run, pool, insert)
			}()
			const keys, each = 5, 20
			var writers sync.WaitGroup
			for k := range keys {
				for range 2 { // each message comes twice
					writers.Go(func() {
						for n := range each {
							m := msg([]string{"", "é"}[k%2], fmt.Sprint("é", k, "-", n))
							m.Headers = map[string]string{"é": "\x00🙂"}
							if _, err := inbox.Store(ctx, pool, m); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			writers.Wait()
			left := func() int { return count(t, sound, `SELECT count(*) FROM inbox WHERE state = 1`) }
			require.Eventually(t, func() bool { return left() == 0 }, 20*time.Second, 5*time.Millisecond)
			require.Equal(t, keys*each, count(t, sound, `SELECT count(DISTINCT id) FROM effects`))
			require.Equal(t, keys*each, count(t, sound, `SELECT count(*) FROM effects`))

			n, err := inbox.Table{}.Replay(ctx, pool, inbox.Filter{State: inbox.Handled, IDs: []string{"é0-0"}})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Eventually(t, func() bool { return left() == 0 }, 20*time.Second, 5*time.Millisecond)
			stop()
			<-done
			p, err := inbox.Table{Keep: time.Microsecond}.Purge(ctx, pool)
			require.NoError(t, err)
			require.EqualValues(t, keys*each, p.Keys)
		})
	}
}
