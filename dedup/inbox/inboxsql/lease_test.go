package inboxsql_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
)

// An attempt that took longer than the lease, and then fails, ends as any other: with its own class, counted once, and
// dead where no retry can help. Others that look without a pause do not get in between.
func TestFailsAfterTheLease(t *testing.T) {
	t.Parallel()
	type want struct {
		state inbox.State
		class string // "" where the drivers differ
	}
	for name, tc := range map[string]struct {
		fails func(ctx context.Context, tx execer) error
		want  want
	}{
		"error": {func(context.Context, execer) error { return fmt.Errorf("fails") }, want{inbox.Waiting, "error"}},
		"final": {func(context.Context, execer) error { return inbox.ErrFinal }, want{inbox.Dead, "error"}},
		"SQL error, final": {func(ctx context.Context, tx execer) error {
			return fmt.Errorf("%w: %w", inbox.ErrFinal, tx.exec(ctx, `SELECT 1/0`))
		}, want{inbox.Dead, "22012"}},
		"at COMMIT": {func(ctx context.Context, tx execer) error {
			return tx.exec(ctx, `INSERT INTO child VALUES (1)`)
		}, want{inbox.Waiting, "23503"}},
		"rows left open": {func(ctx context.Context, tx execer) error {
			return tx.open(ctx, `SELECT generate_series(1, 100000)`)
		}, want{inbox.Dead, "misuse"}},
		"timeout": {func(ctx context.Context, tx execer) error {
			// The server ends it itself, if it hears of no cancelling.
			return cmp.Or(tx.exec(ctx, `SELECT pg_sleep(2)`), ctx.Err())
		}, want{inbox.Waiting, ""}},
		"killed": {func(ctx context.Context, tx execer) error {
			return tx.exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		}, want{inbox.Waiting, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDoor(t, func(t *testing.T, d door, dsn string, db *sql.DB) {
				execSQL(t, db, `CREATE TABLE parent (id int PRIMARY KEY);
					CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
				const rounds = 2
				drain := d.open(t, dsn, nil)
				w := inbox.Worker{Lease: 200 * time.Millisecond, Timeout: time.Minute, MinRetry: time.Hour}
				if name == "timeout" {
					w.Timeout = 300 * time.Millisecond
				}
				for round := range rounds {
					put(t, db, fmt.Sprint(round))
					look, stop := context.WithCancel(t.Context())
					var rivals sync.WaitGroup
					s, err := drain(t.Context(), w, func(ctx context.Context, tx execer, m inbox.Message) error {
						for range 2 {
							rivals.Go(func() { rival(t, look, db) })
						}
						time.Sleep(250 * time.Millisecond)
						return tc.fails(ctx, tx)
					})
					stop()
					rivals.Wait()
					require.Error(t, err)
					require.EqualValues(t, 1, s.Failed)
				}
				all, err := inboxsql.List(t.Context(), db, inbox.Table{}, inbox.Filter{State: tc.want.state}, 10)
				require.NoError(t, err)
				require.Len(t, all, rounds)
				for _, m := range all {
					require.Equal(t, 1, m.Attempt)
					require.NotEqual(t, "crash", m.ErrorClass)
					if tc.want.class != "" {
						require.Equal(t, tc.want.class, m.ErrorClass, m.LastError)
					}
				}
			})
		})
	}
}

// rival looks for messages without a pause, and is to get none.
func rival(t *testing.T, ctx context.Context, db *sql.DB) {
	for ctx.Err() == nil {
		_, _ = inboxsql.Drain(ctx, db, inbox.Worker{}, func(_ context.Context, _ inboxsql.Tx, m inbox.Message) error {
			t.Errorf("a rival has got attempt %d", m.Attempt)
			return nil
		})
	}
}
