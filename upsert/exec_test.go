package upsert_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// order is the row of most tests.
type order struct {
	ID     string    `db:"id"`
	Status string    `db:"status"`
	At     time.Time `db:"at"`
	Rank   int       `db:"rank"`
}

const orderColumns = "id text, status text, at timestamptz, rank int"

var (
	orders = ownOrders()
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// ownOrders returns the statement anew. A test that looks into what was prepared takes its own: what another test
// does to orders makes it prepare again.
func ownOrders() *upsert.Stmt[order] {
	return upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
}

func TestExecOutcomes(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "orders", orderColumns)
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		steps := []struct {
			name   string
			row    order
			want   upsert.Outcome
			err    error
			stored string
		}{
			{"first", order{"1", "new", noon, 1}, upsert.Inserted, nil, "new"},
			{"again", order{"1", "new", noon, 1}, upsert.Unchanged, nil, "new"},
			{"older", order{"1", "draft", noon.Add(-time.Second), 9}, upsert.Stale, nil, "new"},
			{"same second, lower rank", order{"1", "draft", noon, 0}, upsert.Stale, nil, "new"},
			{"same second, same rank", order{"1", "other", noon, 1}, 0, upsert.ErrVersionConflict, "new"},
			{"same second, higher rank", order{"1", "paid", noon, 2}, upsert.Updated, nil, "paid"},
			{"newer", order{"1", "sent", noon.Add(time.Second), 0}, upsert.Updated, nil, "sent"},
			{"another", order{"7", "new", noon, 1}, upsert.Inserted, nil, "new"},
		}
		for _, s := range steps {
			res, err := orders.Exec(ctx, tx, s.row)
			require.ErrorIs(t, err, s.err, s.name)
			require.Equal(t, s.err == nil, res.Err == nil, s.name)
			require.Equal(t, s.want, res.Outcome, s.name)
			require.Equal(t, s.stored, res.Stored.Status, s.name)
		}
		require.NoError(t, tx.Commit(ctx))
		require.Equal(t, "sent", get[string](t, pool, "SELECT status FROM orders WHERE id = '1'"))
	})
}

// A row deleted and inserted again inside one transaction is Inserted: the mark of the update before must be gone.
func TestExecAfterDeleteInOneTransaction(t *testing.T) {
	t.Parallel()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "orders", orderColumns)
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		for i, want := range []upsert.Outcome{upsert.Inserted, upsert.Updated, upsert.Updated} {
			res, err := orders.Exec(ctx, tx, order{"1", "x", noon, i})
			require.NoError(t, err)
			require.Equal(t, want, res.Outcome)
		}
		exec(t, tx, "DELETE FROM orders")
		res, err := orders.Exec(ctx, tx, order{"1", "x", noon, 9})
		require.NoError(t, err)
		require.Equal(t, upsert.Inserted, res.Outcome)
	})
}

func TestStoredNullVersionIsOldest(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx := context.Background()
	create(t, pool, "plain", "orders", orderColumns)
	for name, stored := range map[string]string{
		"version": "NULL, 5", "tie-breaker": "'2026-03-01 12:00Z', NULL", "both": "NULL, NULL",
	} {
		exec(t, pool, "INSERT INTO orders VALUES ($1, 'old', "+stored+")", name)
		res, err := orders.Exec(ctx, pool, order{name, "new", noon, 0})
		require.NoError(t, err)
		require.Equal(t, upsert.Updated, res.Outcome, name)
	}
	exec(t, pool, "INSERT INTO orders VALUES ('later', 'old', '2026-03-01 12:01Z', NULL)")
	res, err := orders.Exec(ctx, pool, order{"later", "new", noon, 0})
	require.NoError(t, err)
	require.Equal(t, upsert.Stale, res.Outcome)
}
