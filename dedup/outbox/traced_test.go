package outbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/tracelog"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// No call that succeeds leaves a failed span, a log line of an error, or an error in the server's log: each of those
// has come to the client as an ErrorResponse.
func TestSuccessLeavesNoError(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			var mu sync.Mutex
			var seen []string
			add1 := func(what string) { mu.Lock(); defer mu.Unlock(); seen = append(seen, what) }
			script := &faultconn.Script{
				From: faultconn.Backend, When: func(m faultconn.Message) bool { return m.Type == "ErrorResponse" },
				Do: func(m faultconn.Message) { add1("server " + m.Code) }, Repeat: true,
			}
			cfg := pgtest.Config(t)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.Tracer = &tracelog.TraceLog{
				LogLevel: tracelog.LogLevelTrace,
				Logger: tracelog.LoggerFunc(func(_ context.Context, level tracelog.LogLevel, msg string, _ map[string]any) {
					if level <= tracelog.LogLevelWarn {
						add1("log " + msg)
					}
				}),
			}
			script.Attach(&cfg.ConnConfig.Config)
			pool := pgtest.PoolConfig(t, cfg)
			for range 2 {
				require.NoError(t, outbox.Migrate(ctx, pool))
			}
			require.NoError(t, outbox.Verify(ctx, pool))
			b := &broker{}
			for n := range 3 {
				add(t, pool, ev("k", n), ev("", n))
				drain(t, pool, quick(b))
			}
			drain(t, pool, quick(b))
			_, err := outbox.Table{}.Lag(ctx, pool)
			require.NoError(t, err)
			_, err = outbox.Table{}.Parked(ctx, pool, 10)
			require.NoError(t, err)
			require.Len(t, b.payloads(), 6)
			mu.Lock()
			defer mu.Unlock()
			require.Empty(t, seen)
		})
	}
}
