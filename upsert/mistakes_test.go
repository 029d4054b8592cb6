package upsert_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// TestMistakes runs the SQL of MISTAKES.md, and shows what each loses.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const (
		insert = "INSERT INTO status (id, status, updated_at, rank) VALUES ('a', $1, $2, $3) "
		update = "ON CONFLICT (id) DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at, rank = " +
			"excluded.rank "
	)
	type event struct {
		status  string
		seconds int
		rank    int
	}
	active, canceled := event{"active", 1, 0}, event{"canceled", 2, 1}
	tie := event{"canceled", 1, 1} // in the second of active
	tests := []struct {
		name   string
		sql    string
		before string // the row that is there
		events []event
		want   string // what is stored, and should be "canceled"
	}{
		{"no guard", insert + update, "", []event{canceled, active}, "active"},
		{
			"time of arrival", "INSERT INTO status (id, status, updated_at, rank) SELECT 'a', $1, clock_timestamp(), $3 WHERE " +
				"$2::timestamptz IS NOT NULL " +
				update + "WHERE status.updated_at < excluded.updated_at", "", []event{canceled, active}, "active",
		},
		{
			"NULL stops it", insert + update + "WHERE status.updated_at < excluded.updated_at", "('a', 'active', NULL, 0)",
			[]event{canceled},
			"active",
		},
		{
			"equals pass", insert + update + "WHERE status.updated_at <= excluded.updated_at", "",
			[]event{tie, active},
			"active",
		},
		{
			"equals are stopped", insert + update + "WHERE status.updated_at < excluded.updated_at", "",
			[]event{active, tie},
			"active",
		},
		{
			"each for itself", insert + update +
				"WHERE status.updated_at <= excluded.updated_at AND status.rank < excluded.rank", "",
			[]event{{"active", 1, 9}, {"canceled", 2, 1}},
			"active",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := pgtest.Pool(t)
			type row struct {
				ID     string `db:"id"`
				Status string `db:"status"`
				At     any    `db:"updated_at"`
				Rank   int    `db:"rank"`
			}
			right := upsert.Into[row]("status").OnConflict("id").Set("status").Version("updated_at", "rank").MustBuild()
			for _, good := range []bool{false, true} {
				exec(t, pool, "DROP TABLE IF EXISTS status")
				exec(t, pool, "CREATE TABLE status (id text PRIMARY KEY, status text, updated_at timestamptz, rank int)")
				if tt.before != "" {
					exec(t, pool, "INSERT INTO status VALUES "+tt.before)
				}
				for _, e := range tt.events {
					at := noon.AddDate(0, 0, e.seconds)
					if good {
						_, err := right.Exec(ctx, pool, row{"a", e.status, at, e.rank})
						require.NoError(t, err)
					} else {
						exec(t, pool, tt.sql, e.status, at, e.rank)
					}
				}
				want := tt.want
				if good {
					want = "canceled"
				}
				require.Equal(t, want, get[string](t, pool, "SELECT status FROM status"), "by this package: %v", good)
			}
		})
	}
}

func TestMistakeLookingFirst(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	exec(t, pool, "INSERT INTO orders VALUES ('1', 'new', '2026-03-01 10:00Z', 0)")
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	require.True(t, get[bool](t, tx, "SELECT at < '2026-03-01 11:00Z' FROM orders"))
	exec(t, pool, "UPDATE orders SET status = 'canceled', at = '2026-03-01 12:00Z'")
	exec(t, tx, "UPDATE orders SET status = 'active', at = '2026-03-01 11:00Z' WHERE id = '1'")
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, "active", get[string](t, pool, "SELECT status FROM orders"), "the newer state is lost")
}

func TestMistakePartialPayload(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE status (id text PRIMARY KEY, status text, plan text)")
	exec(t, pool, "INSERT INTO status VALUES ('a', 'new', 'pro')")
	exec(t, pool, "INSERT INTO status VALUES ('a', 'active', NULL) ON CONFLICT (id) DO UPDATE SET status = "+
		"excluded.status, plan = excluded.plan")
	require.True(t, get[bool](t, pool, "SELECT plan IS NULL FROM status"), "the plan is lost")
}

func TestMistakeDeletions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	created := order{"1", "created", noon, 0}
	_, err := orders.Exec(ctx, pool, created)
	require.NoError(t, err)
	exec(t, pool, "DELETE FROM orders WHERE id = '1'")
	res, err := orders.Exec(ctx, pool, created) // delivered again
	require.NoError(t, err)
	require.Equal(t, upsert.Inserted, res.Outcome, "the row is back")

	exec(t, pool, "CREATE TABLE status (id text, status text, updated_at int, deleted_at timestamptz)")
	exec(t, pool, "CREATE UNIQUE INDEX ON status (id) WHERE deleted_at IS NULL")
	exec(t, pool, "INSERT INTO status VALUES ('a', 'deleted', 2, now())")
	exec(t, pool, "INSERT INTO status VALUES ('a', 'created', 1, NULL) ON CONFLICT (id) WHERE deleted_at IS NULL "+
		"DO UPDATE SET status = excluded.status WHERE status.updated_at < excluded.updated_at")
	require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM status"), "a live row beside the deleted one")
}

func TestMistakeNoTarget(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE account (id text PRIMARY KEY, email text UNIQUE)")
	exec(t, pool, "INSERT INTO account VALUES ('1', 'a@example.com')")
	exec(t, pool, "INSERT INTO account VALUES ('2', 'a@example.com') ON CONFLICT DO NOTHING")
	require.Zero(t, get[int](t, pool, "SELECT count(*) FROM account WHERE id = '2'"),
		"the account is lost, without an error")
}

func TestMistakeOneKeyTwice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE status (id text PRIMARY KEY, status text, updated_at int)")
	_, err := pool.Exec(ctx, "INSERT INTO status VALUES ('a', 'active', 1), ('a', 'canceled', 2) ON CONFLICT (id) "+
		"DO UPDATE SET status = excluded.status, updated_at = excluded.updated_at WHERE status.updated_at < "+
		"excluded.updated_at")
	require.Equal(t, "21000", code(err))
}

func TestMistakeMerge(t *testing.T) {
	t.Parallel()
	if pgtest.Version(t) < 150000 {
		t.Skip("MERGE came with PostgreSQL 15")
	}
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	rival, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer rival.Rollback(ctx)
	exec(t, rival, "INSERT INTO orders VALUES ('1', 'rival', now(), 0)")
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "MERGE INTO orders USING (VALUES ('1', 'mine', now(), 0)) AS e (id, status, at, rank) ON "+
			"orders.id = e.id "+
			"WHEN MATCHED AND orders.at < e.at THEN UPDATE SET status = e.status, at = e.at "+
			"WHEN NOT MATCHED THEN INSERT VALUES (e.id, e.status, e.at, e.rank)", pgx.QueryExecModeExec)
		done <- err
	}()
	waitForLock(t, pool, conn.Conn().PgConn().PID())
	require.NoError(t, rival.Commit(ctx))
	require.Equal(t, "23505", code(<-done))
}

func code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
