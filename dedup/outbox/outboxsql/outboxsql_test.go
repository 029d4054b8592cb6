package outboxsql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/dedup/outbox/outboxsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The life of events, over each driver: appended, rolled back, published, failed, parked, made due again, given up.
func TestDrivers(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			db, err := sql.Open(driver, pgtest.DSN(t))
			require.NoError(t, err)
			defer db.Close()
			table := outbox.Table{Name: "events"}
			for range 2 {
				require.NoError(t, outboxsql.Migrate(ctx, db, table))
			}
			require.NoError(t, outboxsql.Verify(ctx, db, table))
			require.Error(t, outboxsql.Verify(ctx, db))

			add := func(commit bool, events ...outbox.Event) {
				tx, err := db.BeginTx(ctx, nil)
				require.NoError(t, err)
				require.NoError(t, outboxsql.Append(ctx, tx, table, events...))
				if !commit {
					require.NoError(t, tx.Rollback())
					require.Error(t, outboxsql.Append(ctx, tx, table, events...))
					return
				}
				require.NoError(t, tx.Commit())
			}
			require.Error(t, outboxsql.Append(ctx, db, table, outbox.Event{Topic: "t"}), "it would be committed alone")
			first := outbox.Event{
				ID: outbox.NewID(), Topic: "t", Key: `"{k}\`, Payload: []byte{0, 1, 255},
				Headers: map[string]string{"a": "b"},
			}
			add(false, outbox.Event{Topic: "t", Key: "gone"})
			add(true, first, outbox.Event{Topic: "t", Key: first.Key, Payload: []byte("2")},
				outbox.Event{Topic: "t", Key: "bad"})
			add(true, outbox.Event{Topic: "t", Key: "bad", Payload: []byte("behind")}, outbox.Event{Topic: "t"})

			var got []outbox.Event
			bad := true
			relay := outbox.Relay{Table: table, MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
			relay.Publisher = outbox.PublisherFunc(func(_ context.Context, events []outbox.Event) error {
				errs, stopped := make(outbox.EventErrors, len(events)), false
				for i, e := range events {
					if e.Key == "bad" && bad && (stopped || len(e.Payload) == 0) {
						errs[i], stopped = errors.New("bad"), true
						continue
					}
					got = append(got, e)
				}
				return errs.Err()
			})
			s, err := outboxsql.Drain(ctx, db, relay)
			require.ErrorContains(t, err, "bad")
			require.Equal(t, outbox.Stats{Published: 3, Failed: 2, Parked: 1}, s)
			var mine []outbox.Event
			for _, e := range got {
				if e.Key == first.Key {
					mine = append(mine, e)
				}
			}
			require.Len(t, mine, 2)
			require.WithinDuration(t, time.Now(), mine[0].AppendedAt, time.Hour)
			mine[0].AppendedAt, mine[0].Attempt = time.Time{}, 0
			require.Equal(t, first, mine[0])

			lag, err := outboxsql.Lag(ctx, db, table)
			require.NoError(t, err)
			require.Equal(t, []int64{2, 2, 1}, []int64{lag.Waiting, lag.Held, lag.Parked})
			parked, err := outboxsql.Parked(ctx, db, table, 5)
			require.NoError(t, err)
			require.Equal(t, "bad", parked[0].LastError)
			n, err := outboxsql.Retry(ctx, db, table)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			_, _ = outboxsql.Drain(ctx, db, relay)
			n, err = outboxsql.Discard(ctx, db, table, parked[0].ID)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)

			bad = false
			run, stop := context.WithCancel(ctx)
			relay.Done = func(_ context.Context, s outbox.Stats, err error) {
				if s.Published != 1 || err != nil {
					t.Error(fmt.Errorf("%+v: %w", s, err))
				}
				stop()
			}
			require.ErrorIs(t, outboxsql.Run(run, db, relay), context.Canceled)
			require.Equal(t, "behind", string(got[len(got)-1].Payload))
			lag, err = outboxsql.Lag(ctx, db, table)
			require.NoError(t, err)
			require.Zero(t, lag)
			require.Error(t, outboxsql.Run(ctx, db, outbox.Relay{}))
		})
	}
}

// A relay does not work in a transaction of somebody else's.
func TestInTransaction(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		ctx := t.Context()
		db, err := sql.Open(driver, pgtest.DSN(t))
		require.NoError(t, err)
		require.NoError(t, outboxsql.Migrate(ctx, db))
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		_, err = conn.ExecContext(ctx, `BEGIN`)
		require.NoError(t, err)
		require.NoError(t, outboxsql.Append(ctx, conn, outbox.Table{}, outbox.Event{Topic: "t"}), "a transaction by hand")
		none := outbox.PublisherFunc(func(context.Context, []outbox.Event) error { t.Error("published"); return nil })
		_, err = outboxsql.Drain(ctx, conn, outbox.Relay{Publisher: none})
		require.Error(t, err)
		_ = conn.Close() // lib/pq has closed it, for a BEGIN in a transaction is too much for it
		require.NoError(t, db.Close())
	}
}
