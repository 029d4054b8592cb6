package inbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// together has the transactions that end the first two messages wait for each other at their COMMIT, so that neither
// sees the other's end. A second is what they wait: a worker gives its last statement five, and one that comes too late
// for the other goes on alone.
const together = `
CREATE FUNCTION together() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(4711);
  FOR n IN 1 .. 100 LOOP
    EXIT WHEN (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711) >= 2;
    PERFORM pg_sleep(0.01);
  END LOOP;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER together AFTER UPDATE ON inbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state IN (2, 4) AND OLD.state NOT IN (2, 4) AND NEW.seq < 3)
  EXECUTE FUNCTION together()`

// Two messages of a key end at once, one of them discarded. Each end takes the other message for unfinished, and the
// third one is due all the same.
func TestEndedTogether(t *testing.T) {
	for name, first := range map[string]string{
		"discarded": `UPDATE inbox SET state = 3, due_at = NULL WHERE message_id = $1`,
		"handled":   `UPDATE inbox SET due_at = now() WHERE message_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := migrated(t)
			messages, ids := numbered("k", 3)
			store(t, pool, messages...)
			execSQL(t, pool, first, ids[0])
			execSQL(t, pool, `UPDATE inbox SET state = 3, due_at = NULL WHERE message_id = $1`, ids[1])
			execSQL(t, pool, `UPDATE inbox SET due_at = 'infinity' WHERE message_id = $1`, ids[2])
			execSQL(t, pool, together)

			var wg sync.WaitGroup
			wg.Go(func() {
				var err error
				if name == "handled" {
					_, err = quick().Drain(ctx, pool, insert)
				} else {
					_, err = inbox.Table{}.Discard(ctx, pool, inbox.Filter{IDs: ids[:1]})
				}
				if err != nil {
					t.Error(err)
				}
			})
			_, err := inbox.Table{}.Discard(ctx, pool, inbox.Filter{IDs: ids[1:2]})
			require.NoError(t, err)
			wg.Wait()
			drain(t, pool, func(context.Context, pgx.Tx, inbox.Message) error { return nil })
			require.Zero(t, depth(t, pool), "the third message waits for nothing")
		})
	}
}

// What a session has the server print says nothing of the table.
func TestQuotedIdentifiers(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.ConnConfig.RuntimeParams["quote_all_identifiers"] = "on"
	pool := pgtest.PoolConfig(t, cfg)
	for range 2 {
		require.NoError(t, inbox.Migrate(t.Context(), pool))
		require.NoError(t, inbox.Verify(t.Context(), pool))
	}
}

// A session that stores a name as other bytes than another one makes two messages of one: Verify asks the session, too.
func TestVerifySession(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	require.NoError(t, inbox.Migrate(t.Context(), pgtest.PoolConfig(t, cfg.Copy())))
	cfg.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1"
	err := inbox.Verify(t.Context(), pgtest.PoolConfig(t, cfg))
	var found *dedup.VerifyError
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Problems, 1)
	require.Equal(t, "client encoding", found.Problems[0].Kind.String())
}
