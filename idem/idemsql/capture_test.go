package idemsql_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Whoever may create functions in a schema of the search path could have them run with the rights of whoever claims.
// The shadows raise an error when they are called.
func TestNothingIsCaptured(t *testing.T) {
	t.Parallel()
	for _, driver := range []opener{
		{"stdlib", overStdlib(pgx.QueryExecModeCacheStatement)},
		{"stdlib, simple protocol", overStdlib(pgx.QueryExecModeSimpleProtocol)},
		{"pq", overPQ("")},
	} {
		for i, path := range pgtest.ShadowPaths() {
			layout := []dedup.Layout{dedup.Plain, dedup.Weekly}[i] // to make the shadows is most of the test
			t.Run(driver.name+"/"+path, func(t *testing.T) {
				t.Parallel()
				db := pgtest.ShadowedSQL(t, path, func(dsn string) (*sql.DB, error) { return driver.open(t, dsn, nil), nil })
				captureLife(t, db, dedup.Table{Name: "app.events", Layout: layout, Retention: 21 * 24 * time.Hour})
			})
		}
	}
}

// captureLife is everything that can happen to a key, and to its table.
func captureLife(t *testing.T, db *sql.DB, table dedup.Table) {
	ctx := t.Context()
	for range 2 {
		require.NoError(t, idemsql.Migrate(ctx, db, table))
		require.NoError(t, idemsql.Verify(ctx, db, table))
	}
	exec := func(sql string) {
		t.Helper()
		_, err := db.ExecContext(ctx, sql)
		require.NoError(t, err)
	}
	exec(`CREATE TABLE app.effects (what pg_catalog.text)`)
	key := func(id string) idem.Key {
		return idem.Scope{Source: "s", Operation: "o"}.Key(id).OccurredAt(time.Now()).WithPayload([]byte("p"))
	}
	fn := func(ctx context.Context, tx idemsql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO app.effects (what) VALUES ('x')`)
		return err
	}
	inTx := func(f func(tx *sql.Tx) error) {
		t.Helper()
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		require.NoError(t, f(tx))
		require.NoError(t, tx.Commit())
	}
	once := idemsql.Once{Table: table}
	for _, o := range []idemsql.Once{once, {Table: table, MaxWait: time.Minute}} {
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := o.Run(ctx, db, key("run"), fn)
			require.NoError(t, err)
			require.Equal(t, want, out)
			inTx(func(tx *sql.Tx) error { _, err := o.Do(ctx, tx, key("do"), fn); return err })
		}
		_, err := o.Lookup(ctx, db, key("run"))
		require.NoError(t, err)
		inTx(func(tx *sql.Tx) error {
			return errors.Join(o.Forget(ctx, tx, key("run")), o.Forget(ctx, tx, key("do")))
		})
	}
	for _, k := range []idem.Key{
		key("future").OccurredAt(time.Now().Add(240 * time.Hour)),
		key("past").OccurredAt(time.Now().Add(-10000 * time.Hour)),
	} {
		_, err := once.Run(ctx, db, k, fn)
		require.True(t, errors.Is(err, idem.ErrFuture) || errors.Is(err, idem.ErrExpired), "%v", err)
	}
	for range 2 {
		_, _, err := idemsql.Returning[string]{Once: once}.Run(ctx, db, key("returned"),
			func(context.Context, idemsql.Tx) (string, error) { return "v", nil })
		require.NoError(t, err)
	}

	reserve := func(id string, lease time.Duration) idemsql.Reservation {
		t.Helper()
		r, _, err := once.Reserve(ctx, db, key(id), lease)
		require.NoError(t, err)
		return r
	}
	r := reserve("confirmed", time.Hour)
	require.NoError(t, r.Extend(ctx, db, time.Hour))
	inTx(func(tx *sql.Tx) error { return r.Confirm(ctx, tx, nil) })
	require.NoError(t, reserve("failed", time.Hour).Fail(ctx, db, nil))
	require.NoError(t, reserve("void", time.Hour).Void(ctx, db))
	require.NoError(t, reserve("released", time.Hour).Release(ctx, db))
	reserve("run out", time.Millisecond)
	time.Sleep(10 * time.Millisecond) // the lease
	require.NoError(t, reserve("run out", time.Hour).Release(ctx, db), "taken over")
	open, err := once.Pending(ctx, db, idem.Scope{}, 10)
	require.NoError(t, err)
	require.Len(t, open, 1)
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		_, out, err := idemsql.Call[string]{
			Once: once, Lease: time.Minute, Remembers: time.Hour,
			Send:  func(context.Context, string) (string, error) { return "paid", nil },
			Apply: func(ctx context.Context, tx idemsql.Tx, _ string) error { return fn(ctx, tx) },
		}.Run(ctx, db, key("called"))
		require.NoError(t, err)
		require.Equal(t, want, out)
	}

	// The last look of a limited wait.
	exec(`CREATE FUNCTION app.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.pg_sleep(0.05); RETURN NEW; END'`)
	exec(`CREATE TRIGGER slow BEFORE INSERT ON app.events FOR EACH ROW EXECUTE FUNCTION app.slow()`)
	hasty := idemsql.Once{Table: table, MaxWait: time.Millisecond}
	inTx(func(tx *sql.Tx) error { _, err := hasty.Do(ctx, tx, key("do slowly"), fn); return err })
	_, err = hasty.Run(ctx, db, key("run slowly"), fn)
	require.NoError(t, err)
	_, _, err = hasty.Reserve(ctx, db, key("reserve slowly"), time.Hour)
	require.NoError(t, err)
	exec(`DROP FUNCTION app.slow() CASCADE`)

	if table.Layout != dedup.Weekly {
		exec(`UPDATE app.events SET processed_at = '2000-01-01' WHERE lease_until IS NULL`)
	}
	done, err := idemsql.Maintain(ctx, db, dedup.Cleaner{Table: table})
	require.NoError(t, err)
	require.Equal(t, table.Layout != dedup.Weekly, done.Deleted > 0)
}
