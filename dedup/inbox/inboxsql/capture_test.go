package inboxsql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/dedup/inbox/inboxsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever stores
// and handles.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for i, driver := range []string{"pgx", "postgres", "postgres", "pgx"} {
		path := pgtest.ShadowPaths()[i/2]
		t.Run(driver+"/"+path, func(t *testing.T) {
			t.Parallel()
			db := pgtest.ShadowedSQL(t, path, func(dsn string) (*sql.DB, error) { return sql.Open(driver, dsn) })
			captureLife(t, db, inbox.Table{Name: "app.messages", Keep: 1})
		})
	}
}

// captureLife is everything that can happen to a message, and to its table.
func captureLife(t *testing.T, db *sql.DB, table inbox.Table) {
	ctx := t.Context()
	for range 2 {
		require.NoError(t, inboxsql.Migrate(ctx, db, table))
	}
	require.NoError(t, inboxsql.Verify(ctx, db, table))
	for _, m := range []inbox.Message{
		{ID: "bad", Key: "k"},
		{ID: "behind", Key: "k"},
		{ID: "behind", Key: "k"},
		{ID: "free"},
	} {
		m.Source, m.Operation, m.Headers = "s", "o", map[string]string{"a": "b"}
		_, err := inboxsql.Store(ctx, db, table, m)
		require.NoError(t, err)
	}
	bad := true
	h := func(_ context.Context, _ inboxsql.Tx, m inbox.Message) error {
		if m.ID == "bad" && bad {
			return errors.New("bad")
		}
		return nil
	}
	w := inbox.Worker{Table: table, Workers: 1, MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
	s, err := inboxsql.Drain(ctx, db, w, h)
	require.ErrorContains(t, err, "bad")
	require.Equal(t, inbox.Stats{Handled: 1, Failed: 2, Dead: 1}, s)
	f := inbox.Filter{IDs: []string{"bad"}, ReceivedAfter: time.Unix(0, 0), ReceivedBefore: time.Now().Add(time.Hour)}
	dead, err := inboxsql.List(ctx, db, table, f, 5)
	require.NoError(t, err)
	require.Len(t, dead, 1)
	n, err := inboxsql.Replay(ctx, db, table, f)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	_, err = inboxsql.Drain(ctx, db, w, h)
	require.ErrorContains(t, err, "bad")
	n, err = inboxsql.Discard(ctx, db, table, inbox.Filter{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	bad = false
	_, err = inboxsql.Drain(ctx, db, w, h)
	require.NoError(t, err)
	d, err := inboxsql.Depth(ctx, db, table)
	require.NoError(t, err)
	require.Zero(t, d)
	p, err := inboxsql.Purge(ctx, db, table)
	require.NoError(t, err)
	require.EqualValues(t, 3, p.Keys)
}
