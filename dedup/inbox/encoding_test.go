package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// A database of another encoding than UTF-8 stores every header, and writes every error down, whatever is in their
// text.
func TestEncoding(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sound := pgtest.Pool(t)
	name := sound.Config().ConnConfig.Database + "_latin1"
	execSQL(t, sound, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize()+
		` ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
	t.Cleanup(func() {
		_, err := sound.Exec(context.WithoutCancel(ctx), `DROP DATABASE `+pgx.Identifier{name}.Sanitize()+` WITH (FORCE)`)
		require.NoError(t, err)
	})
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			cfg := sound.Config().Copy()
			cfg.ConnConfig.Database = name
			cfg.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.PoolConfig(t, cfg)
			require.NoError(t, inbox.Migrate(ctx, pool))
			m := msg("", mode.String())
			m.Headers = map[string]string{"é": "\x00→🙂\u2028\\u0041\"", "🙂": "\xff", "a": "<é>"}
			store(t, pool, m)
			s, err := inbox.Worker{MinRetry: time.Hour}.Drain(ctx, pool,
				func(_ context.Context, _ pgx.Tx, got inbox.Message) error {
					require.Equal(t, m.Headers, got.Headers)
					return errors.Join(inbox.ErrFinal, errors.New("→ é"))
				})
			require.ErrorIs(t, err, inbox.ErrFinal)
			require.NotContains(t, err.Error(), "write down")
			require.Equal(t, inbox.Stats{Failed: 1, Dead: 1}, s)
			dead := one(t, pool, inbox.Dead)
			require.Equal(t, m.Headers, dead.Headers)
			require.Contains(t, dead.LastError, "no retry can help")
			_, err = inbox.Table{}.Discard(ctx, pool, inbox.Filter{})
			require.NoError(t, err)
		})
	}
}
