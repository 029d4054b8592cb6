package outboxsql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/dedup/outbox/outboxsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever relays.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for i, driver := range []string{"pgx", "postgres", "postgres", "pgx"} {
		path := pgtest.ShadowPaths()[i/2]
		t.Run(driver+"/"+path, func(t *testing.T) {
			t.Parallel()
			db := pgtest.ShadowedSQL(t, path, func(dsn string) (*sql.DB, error) { return sql.Open(driver, dsn) })
			captureLife(t, db, outbox.Table{Name: "app.events"})
		})
	}
}

// captureLife is everything that can happen to an event, and to its tables.
func captureLife(t *testing.T, db *sql.DB, table outbox.Table) {
	ctx := t.Context()
	for range 2 {
		require.NoError(t, outboxsql.Migrate(ctx, db, table))
	}
	require.NoError(t, outboxsql.Verify(ctx, db, table))
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, outboxsql.Append(ctx, tx, table,
		outbox.Event{Topic: "t", Key: "bad", Headers: map[string]string{"a": "b"}},
		outbox.Event{Topic: "t", Key: "bad", Payload: []byte("behind")},
		outbox.Event{Topic: "t", Key: "good"}, outbox.Event{Topic: "t"}))
	require.NoError(t, tx.Commit())
	bad := true
	r := outbox.Relay{Table: table, Workers: 1, MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
	r.Publisher = outbox.PublisherFunc(func(_ context.Context, events []outbox.Event) error {
		errs, stopped := make(outbox.EventErrors, len(events)), false
		for i, e := range events {
			if e.Key == "bad" && bad && (stopped || len(e.Payload) == 0) {
				errs[i], stopped = errors.New("bad"), true
			}
		}
		return errs.Err()
	})
	s, err := outboxsql.Drain(ctx, db, r)
	require.ErrorContains(t, err, "bad")
	require.Equal(t, 1, int(s.Parked))
	parked, err := outboxsql.Parked(ctx, db, table, 5)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	n, err := outboxsql.Retry(ctx, db, table, parked[0].ID)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	_, err = outboxsql.Drain(ctx, db, r)
	require.ErrorContains(t, err, "bad")
	n, err = outboxsql.Discard(ctx, db, table, parked[0].ID)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	bad = false
	_, err = outboxsql.Drain(ctx, db, r)
	require.NoError(t, err)
	lag, err := outboxsql.Lag(ctx, db, table)
	require.NoError(t, err)
	require.Zero(t, lag)
}
