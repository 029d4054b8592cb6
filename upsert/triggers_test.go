package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// trigger puts one trigger on the table orders, in place of the last.
func trigger(t *testing.T, pool *pgxpool.Pool, when, body string) {
	t.Helper()
	exec(t, pool, "DROP TRIGGER IF EXISTS tr ON orders")
	exec(t, pool, "CREATE OR REPLACE FUNCTION tr() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "+body+" END$$")
	exec(t, pool, "CREATE TRIGGER tr "+when+" ON orders FOR EACH ROW EXECUTE FUNCTION tr()")
}

// Whatever a trigger does to a row after it was judged, the summary says what is in the table, told or only counted.
func TestManyUnderTriggers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, when, body string
		want             upsert.Summary // of the rows below
		stored           string
	}{
		{
			"skips an update", "BEFORE UPDATE", "IF NEW.id = '1' THEN RETURN NULL; END IF; RETURN NEW;",
			upsert.Summary{Inserted: 2, Updated: 1, Failed: 1},
			"1o 2n 8n 9n",
		},
		{"skips every update", "BEFORE UPDATE", "RETURN NULL;", upsert.Summary{Inserted: 2, Failed: 2}, "1o 2o 8n 9n"},
		{
			"skips an insert", "BEFORE INSERT", "IF NEW.id = '9' THEN RETURN NULL; END IF; RETURN NEW;",
			upsert.Summary{Inserted: 1, Updated: 2, Failed: 1},
			"1n 2n 8n",
		},
		{
			"sets the version", "BEFORE INSERT OR UPDATE", "NEW.rank = 100; RETURN NEW;",
			upsert.Summary{Inserted: 2, Updated: 2},
			"1n 2n 8n 9n",
		},
		{
			"writes elsewhere", "BEFORE UPDATE",
			"INSERT INTO other VALUES (NEW.id, 's', NEW.at, 1) ON CONFLICT (id) DO UPDATE SET status = 'u'; RETURN NEW;",
			upsert.Summary{Inserted: 2, Updated: 2},
			"1n 2n 8n 9n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
				ctx := context.Background()
				create(t, pool, kind, "orders", orderColumns)
				create(t, pool, "plain", "other", orderColumns)
				trigger(t, pool, tt.when, tt.body)
				for _, again := range []bool{false, true} {
					for _, listed := range []bool{false, true} {
						exec(t, pool, "TRUNCATE orders")
						exec(t, pool, "ALTER TABLE orders DISABLE TRIGGER tr")
						exec(t, pool, "INSERT INTO orders VALUES ('1', 'o', '2026-01-01', 0), ('2', 'o', '2026-01-01', 0)")
						exec(t, pool, "ALTER TABLE orders ENABLE TRIGGER tr")
						rows := []order{{"1", "n", noon, 1}, {"2", "n", noon, 1}, {"8", "n", noon, 1}, {"9", "n", noon, 1}}
						want := tt.want
						if again { // a key twice, which takes the other form of the statement
							rows = append(rows, order{"8", "older", noon, 0})
							want.Stale++
						}
						told := make([]verdict, len(rows))
						var each func(int, upsert.Result[order])
						if listed {
							each = func(i int, r upsert.Result[order]) { told[i].outcome = r.Outcome }
						}
						sum, err := orders.ExecMany(ctx, pool, slices.Values(rows), each)
						if want.Failed > 0 {
							require.ErrorIs(t, err, upsert.ErrUnsettled)
						} else {
							require.NoError(t, err)
						}
						require.Equal(t, want, sum, "listed: %v, a key twice: %v", listed, again)
						if listed {
							require.Equal(t, sum, count(told))
						}
						require.Equal(t, tt.stored, get[string](t, pool, "SELECT string_agg(id || status, ' ' ORDER BY id) FROM orders"))
					}
				}
			})
		})
	}
}

// A trigger that stores a row under another key is told as an error at once: every further try would store one more.
func TestManyUnderAnotherKey(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	exec(t, pool, "CREATE SEQUENCE n")
	trigger(t, pool, "BEFORE INSERT", "NEW.id = nextval('n'); RETURN NEW;")
	sum, err := orders.ExecMany(ctx, pool, slices.Values([]order{{"a", "n", noon, 1}, {"b", "n", noon, 1}}),
		func(int, upsert.Result[order]) {})
	require.ErrorIs(t, err, upsert.ErrUnsettled)
	require.Equal(t, upsert.Summary{Failed: 2}, sum)
	require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM orders"))

	// Beside a row that was skipped, the count cannot be had.
	trigger(t, pool, "BEFORE INSERT", "IF NEW.id = 'b' THEN RETURN NULL; END IF; NEW.id = nextval('n'); RETURN NEW;")
	sum, err = orders.ExecMany(ctx, pool, slices.Values([]order{{"a", "n", noon, 1}, {"b", "n", noon, 1}}), nil)
	require.ErrorContains(t, err, "a trigger stores a row under another key")
	require.Zero(t, sum)
}

// What the server takes back at the end of a statement that was answered already is not counted.
func TestManyIsNotCountedWhenItFails(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	create(t, pool, "plain", "orders", orderColumns)
	exec(t, pool, "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'late'; END$$")
	exec(t, pool, "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "+
		"EXECUTE FUNCTION late()")
	for _, d := range drivers(t, cfg) {
		for _, listed := range []bool{false, true} {
			var each func(int, upsert.Result[order])
			if listed {
				each = func(i int, r upsert.Result[order]) { t.Errorf("%s: row %d is %s", d.name, i, r.Outcome) }
			}
			sum, err := orders.ExecMany(ctx, d.db, slices.Values([]order{{"1", "n", noon, 1}, {"2", "n", noon, 1}}), each)
			require.ErrorContains(t, err, "late", d.name)
			require.Zero(t, sum, fmt.Sprint(d.name, listed))
		}
	}
	require.Zero(t, get[int](t, pool, "SELECT count(*) FROM orders"))
}
