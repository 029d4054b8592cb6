package idemsql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func number(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}

// Tables are purged and maintained through every driver: what is done and has expired goes, the rest stays.
func TestMaintain(t *testing.T) {
	for _, driver := range pgtest.Matrix(drivers, opener.String, typical...) {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, driver.open(t, pgtest.DSN(t), nil))
			plain := dedup.Table{Retention: 10 * 24 * time.Hour}
			weekly := dedup.Table{Name: "weekly", Layout: dedup.Weekly}
			require.NoError(t, idemsql.Migrate(t.Context(), db, plain, weekly))
			for _, insert := range []string{
				`INSERT INTO processed_events (source, operation, key, processed_at, lease_until)
				 SELECT 's', 'o', 'k' || i, now() - CASE WHEN i % 2 = 0 THEN interval '11 days' ELSE interval '9 days' END,
				        CASE WHEN i > 900 THEN timestamptz '2001-01-01' END
				   FROM generate_series(1, 1000) AS i`,
				`INSERT INTO weekly (source, operation, key, event_time, bucket, lease_until)
				 SELECT 's', 'o', 'k' || i, w AT TIME ZONE 'UTC', w::date, CASE WHEN i = 4 THEN timestamptz '-infinity' END
				   FROM generate_series(0, 5) AS i,
				        LATERAL (SELECT date_trunc('week', now() AT TIME ZONE 'UTC') - i * interval '7 days') AS x (w)`,
				`DO $$ BEGIN EXECUTE format('DROP TABLE %s', (SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'weekly'::regclass)); END $$`,
			} {
				_, err := db.ExecContext(t.Context(), insert)
				require.NoError(t, err)
			}

			var told told
			c := dedup.Cleaner{Table: plain, Batch: 100, Observer: &told}
			stats, err := idemsql.Maintain(t.Context(), db, c)
			require.NoError(t, err)
			require.EqualValues(t, 450, stats.Deleted)
			require.Zero(t, stats.Skipped)
			require.Positive(t, stats.Took)
			require.Equal(t, 550, number(t, db, `SELECT count(*) FROM processed_events`))
			require.Equal(t, 50, number(t, db,
				`SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '10 days'`), "not done")
			require.Equal(t, dedup.Event{Table: "processed_events", Outcome: dedup.Purged, Rows: 450, Held: stats.Took},
				told.last)

			weekly.Retention = 8 * 24 * time.Hour
			c.Table = weekly
			stats, err = idemsql.Maintain(t.Context(), db, c)
			require.NoError(t, err)
			require.Len(t, stats.Made, 1)
			require.NotEmpty(t, stats.Dropped)
			require.Len(t, stats.Kept, 1)
			require.Equal(t, "weekly", told.last.Table)
			require.Equal(t, 1, number(t, db, `SELECT count(*) FROM weekly WHERE lease_until IS NOT NULL`))
			require.Zero(t, number(t, db, `SELECT count(*) FROM weekly WHERE key = 'k5'`))
			require.Equal(t, 2, number(t, db, `SELECT count(*) FROM weekly WHERE key IN ('k0', 'k1')`))

			// Another purge is running, which is no failure; a table is missing; something is wrong with the cleaner.
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(),
				`SELECT pg_advisory_xact_lock(x'01e693ac'::int4, 'processed_events'::regclass::oid::int4)`)
			require.NoError(t, err)
			_, err = idemsql.Maintain(t.Context(), db, dedup.Cleaner{Observer: &told})
			require.ErrorIs(t, err, dedup.ErrBusy)
			require.Equal(t, dedup.Purged, told.last.Outcome)
			require.NoError(t, tx.Rollback())
			_, err = idemsql.Maintain(t.Context(), db, dedup.Cleaner{Table: dedup.Table{Name: "none"}, Observer: &told})
			require.ErrorContains(t, err, "dedup.Migrate")
			require.Equal(t, dedup.PurgeFailed, told.last.Outcome)
			_, err = idemsql.Maintain(t.Context(), db, dedup.Cleaner{Batch: -1})
			require.Error(t, err)
			require.Error(t, idemsql.Clean(t.Context(), db, dedup.Cleaner{Table: dedup.Table{Name: "a.b.c"}}))
		})
	}
}

type told struct{ last dedup.Event }

func (t *told) Observe(_ context.Context, e dedup.Event) { t.last = e }

// Again and again, by several at once, until the context ends.
func TestClean(t *testing.T) {
	t.Parallel()
	for _, i := range []int{0, len(drivers) - 1} {
		db := migrated(t, drivers[i].open(t, pgtest.DSN(t), nil))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done, ends := make(chan dedup.Stats), make(chan error, 2)
		for range 2 {
			go func() {
				ends <- idemsql.Clean(ctx, db,
					dedup.Cleaner{Interval: 10 * time.Millisecond, Done: func(ctx context.Context, s dedup.Stats, _ error) {
						select {
						case done <- s:
						case <-ctx.Done():
						}
					}})
			}()
		}
		for range 2 {
			_, err := db.ExecContext(t.Context(), `INSERT INTO processed_events (source, operation, key, processed_at)
				SELECT 's', 'o', 'k' || i, now() - interval '40 days' FROM generate_series(1, 300) AS i`)
			require.NoError(t, err)
			var deleted int64
			require.Eventually(t, func() bool { deleted += (<-done).Deleted; return deleted == 300 }, 30*time.Second,
				time.Millisecond)
		}
		cancel()
		for range 2 {
			require.ErrorIs(t, <-ends, context.Canceled)
		}
	}
}
