package upsert_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// both runs a row alone, and as a batch of one, in turn: what holds for Exec holds for ExecMany. The batch is counted
// too, by the form that lists nothing, and rolled back.
func both[T any](
	t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, exec func(*upsert.Stmt[T], T) (upsert.Result[T], error)),
) {
	t.Helper()
	ctx := context.Background()
	eachWay(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[T], T) (upsert.Result[T], error)) {
		test(t, pool, func(s *upsert.Stmt[T], row T) (upsert.Result[T], error) {
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			sum, countErr := s.ExecMany(ctx, tx, slices.Values([]T{row}), nil)
			require.NoError(t, tx.Rollback(ctx))
			res, err := run(s, row)
			require.Equal(t, err == nil, countErr == nil, "counted: %v; told: %v", countErr, err)
			want := upsert.Summary{}
			if err == nil || errors.As(err, new(*upsert.RowError)) {
				want = count([]verdict{{outcome: res.Outcome}})
			}
			require.Equal(t, want, sum)
			return res, err
		})
	})
}

// eachWay is both without a count.
func eachWay[T any](
	t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, exec func(*upsert.Stmt[T], T) (upsert.Result[T], error)),
) {
	t.Helper()
	ctx := context.Background()
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Pool(t)
		test(t, pool, func(s *upsert.Stmt[T], row T) (upsert.Result[T], error) { return s.Exec(ctx, pool, row) })
	})
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Pool(t)
		test(t, pool, func(s *upsert.Stmt[T], row T) (res upsert.Result[T], err error) {
			_, err = s.ExecMany(ctx, pool, slices.Values([]T{row}), func(_ int, r upsert.Result[T]) { res = r })
			return res, err
		})
	})
}

type user struct {
	ID        int64      `db:"id"` // GENERATED, only read
	Email     string     `db:"email"`
	Name      *string    `db:"name"`
	Plan      *string    `db:"plan"`
	PublicID  string     `db:"public_id"`
	DeletedAt *time.Time `db:"deleted_at"`
	V         int        `db:"v"`
}

const usersDDL = `CREATE TABLE users (id bigint GENERATED ALWAYS AS IDENTITY, email text PRIMARY KEY, name text NOT NULL DEFAULT 'nobody', plan text,
	public_id text, deleted_at timestamptz, v int, stamp text NOT NULL DEFAULT 'stamped')`

func ptr[V any](v V) *V { return &v }

func TestSetIfNotNullAndSetOnInsert(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[user], user) (upsert.Result[user], error)) {
		exec(t, pool, usersDDL)
		stmt := upsert.Into[user]("users").OnConflict("email").SetIfNotNull("name",
			"plan").SetOnInsert("public_id").Version("v").MustBuild()
		steps := []struct {
			row  user
			want upsert.Outcome
			name string
			plan *string
		}{
			{user{Email: "a", V: 1, PublicID: "p1"}, upsert.Inserted, "nobody", nil},
			{user{Email: "a", V: 2, PublicID: "p2", Name: ptr("Ann"), Plan: ptr("pro")}, upsert.Updated, "Ann", ptr("pro")},
			{user{Email: "a", V: 3}, upsert.Updated, "Ann", ptr("pro")},                     // a partial payload erases nothing
			{user{Email: "a", V: 3, Name: ptr("Ann")}, upsert.Unchanged, "Ann", ptr("pro")}, // what it says is stored already
			{user{Email: "a", V: 3, Name: ptr("Bob")}, 0, "Ann", ptr("pro")},
			{user{Email: "a", V: 2, Name: ptr("Old")}, upsert.Stale, "Ann", ptr("pro")},
			{user{Email: "a", V: 4, Name: ptr("")}, upsert.Updated, "", ptr("pro")},
		}
		for i, s := range steps {
			res, err := run(stmt, s.row)
			if s.want == 0 {
				require.ErrorIs(t, err, upsert.ErrVersionConflict, i)
			} else {
				require.NoError(t, err, i)
			}
			require.Equal(t, s.want, res.Outcome, i)
			require.Equal(t, s.name, *res.Stored.Name, i)
			require.Equal(t, s.plan, res.Stored.Plan, i)
			require.Equal(t, "p1", res.Stored.PublicID, i)
			require.NotZero(t, res.Stored.ID, "a column that the database fills is read")
		}
	})
}

func TestFirstWins(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[user], user) (upsert.Result[user], error)) {
		exec(t, pool, usersDDL)
		stmt := upsert.Into[user]("users").OnConflict("email").SetOnInsert("public_id", "name").FirstWins().MustBuild()
		first, err := run(stmt, user{Email: "a", PublicID: "p1", Name: ptr("Ann")})
		require.NoError(t, err)
		require.Equal(t, upsert.Inserted, first.Outcome)
		second, err := run(stmt, user{Email: "a", PublicID: "p2", Name: ptr("Bob")})
		require.NoError(t, err)
		require.Equal(t, upsert.Unchanged, second.Outcome)
		require.Equal(t, first.Stored, second.Stored, "the existing row is returned")
	})
}

func TestLastWins(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[user], user) (upsert.Result[user], error)) {
		exec(t, pool, usersDDL)
		stmt := upsert.Into[user]("users").OnConflict("email").Set("name").SetIfNotNull("plan").LastWins().MustBuild()
		for i, s := range []struct {
			name string
			plan *string
			want upsert.Outcome
		}{
			{"Ann", ptr("pro"), upsert.Inserted},
			{"Bob", nil, upsert.Updated},
			{"Bob", nil, upsert.Unchanged},
			{"Bob", ptr("pro"), upsert.Unchanged},
			{"Ann", nil, upsert.Updated},
		} {
			res, err := run(stmt, user{Email: "a", Name: &s.name, Plan: s.plan})
			require.NoError(t, err)
			require.Equal(t, s.want, res.Outcome, i)
			require.Equal(t, s.name, *res.Stored.Name)
			require.Equal(t, "pro", *res.Stored.Plan)
		}
	})
}

func TestTombstone(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[user], user) (upsert.Result[user], error)) {
		exec(t, pool, usersDDL)
		stmt := upsert.Into[user]("users").OnConflict("email").Set("name",
			"plan").Tombstone("deleted_at").Version("v").MustBuild()
		step := func(row user, want upsert.Outcome, deleted bool, plan *string) upsert.Result[user] {
			t.Helper()
			res, err := run(stmt, row)
			require.NoError(t, err)
			require.Equal(t, want, res.Outcome)
			require.Equal(t, deleted, res.Stored.DeletedAt != nil)
			require.Equal(t, plan, res.Stored.Plan)
			return res
		}
		created := user{Email: "a", Name: ptr("Ann"), Plan: ptr("pro"), V: 1}
		deletion := user{Email: "a", DeletedAt: &noon, V: 5}
		step(created, upsert.Inserted, false, ptr("pro"))
		res := step(deletion, upsert.Updated, true, nil) // says nothing of the content
		require.Equal(t, "nobody", *res.Stored.Name, "the default, for it is NOT NULL")
		step(created, upsert.Stale, true, nil) // a late "created" does not bring the row back
		step(deletion, upsert.Unchanged, true, nil)
		step(user{Email: "a", Name: ptr("New"), V: 6}, upsert.Updated, false, nil) // a newer event does

		early := user{Email: "b", DeletedAt: &noon, V: 5} // the deletion arrives first
		res = step(early, upsert.Inserted, true, nil)
		require.Equal(t, "nobody", *res.Stored.Name, "the default")
		step(user{Email: "b", Name: ptr("Bob"), V: 1}, upsert.Stale, true, nil)
		require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM users"))

		// A default that is another each time does not make the deletion differ from itself; what it brings does.
		exec(t, pool, "ALTER TABLE users ALTER name SET DEFAULT gen_random_uuid()")
		for _, want := range []upsert.Outcome{upsert.Inserted, upsert.Unchanged} {
			step(user{Email: "c", DeletedAt: &noon, V: 5}, want, true, nil)
		}
		_, err := run(stmt, user{Email: "c", Name: ptr("Cid"), DeletedAt: &noon, V: 5})
		require.ErrorIs(t, err, upsert.ErrVersionConflict)
		step(user{Email: "c", Name: ptr("Cid"), Plan: ptr("pro"), DeletedAt: &noon, V: 6}, upsert.Updated, true, ptr("pro"))

		kept := upsert.Into[user]("users").OnConflict("email").SetIfNotNull("name",
			"plan").Tombstone("deleted_at").Version("v").MustBuild()
		res, err = run(kept, user{Email: "c", DeletedAt: &noon, V: 7})
		require.NoError(t, err)
		require.Equal(t, "Cid pro", *res.Stored.Name+" "+*res.Stored.Plan, "SetIfNotNull keeps what was deleted")
	})
}

func TestMaxSkew(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns)
		stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at",
			"rank").MaxSkew(time.Minute).MustBuild()
		now := get[time.Time](t, pool, "SELECT clock_timestamp()")
		res, err := run(stmt, order{"1", "new", now.Add(30 * time.Second), 1})
		require.NoError(t, err)
		require.Equal(t, upsert.Inserted, res.Outcome)
		for _, id := range []string{"1", "2"} {
			res, err = run(stmt, order{id, "new", now.Add(time.Hour), 1})
			require.ErrorIs(t, err, upsert.ErrVersionAhead)
			require.Zero(t, res.Outcome)
			require.Zero(t, res.Stored)
		}
		var row *upsert.RowError
		require.ErrorAs(t, err, &row)
		require.Equal(t, "at", row.Column)
		require.Equal(t, 1, get[int](t, pool, "SELECT count(*) FROM orders"))
	})
}

// An interval from a time.Duration, however long.
func TestDurations(t *testing.T) {
	t.Parallel()
	type wait struct {
		ID string        `db:"id"`
		D  time.Duration `db:"d"`
		V  int           `db:"v"`
	}
	stmt := upsert.Into[wait]("waits").OnConflict("id").Set("d").Version("v").MustBuild()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[wait], wait) (upsert.Result[wait], error)) {
		exec(t, pool, "CREATE TABLE waits (id text PRIMARY KEY, d interval, v int)")
		for i, d := range []time.Duration{
			0, time.Microsecond, -time.Hour - time.Second/2, 1000 * time.Hour, math.MaxInt64,
			math.MinInt64,
		} {
			row := wait{fmt.Sprint(i), d.Truncate(time.Microsecond), 1}
			for _, want := range []upsert.Outcome{upsert.Inserted, upsert.Unchanged} {
				res, err := run(stmt, row)
				require.NoError(t, err, d)
				require.Equal(t, want, res.Outcome, d)
				require.Equal(t, row, res.Stored)
			}
		}
	})
}

type loose struct {
	ID *string  `db:"id"`
	S  any      `db:"status"`
	At any      `db:"at"`
	R  *float64 `db:"rank"`
}

// failing is a Valuer that fails, or is NULL.
type failing struct{ err error }

func (f failing) Value() (v interface{}, err error) { return nil, f.err }

func TestRefusedRows(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[loose], loose) (upsert.Result[loose], error)) {
		exec(t, pool, "CREATE TABLE loose (id text PRIMARY KEY, status text, at timestamptz, rank float8)")
		stmt := upsert.Into[loose]("loose").OnConflict("id").Set("status").Version("at", "rank").MustBuild()
		id, rank := ptr("1"), ptr(1.0)
		for name, c := range map[string]struct {
			row    loose
			column string
		}{
			"NULL key":                  {loose{nil, "s", noon, rank}, "id"},
			"NULL version":              {loose{id, "s", nil, rank}, "at"},
			"NULL version by a Valuer":  {loose{id, "s", sql.NullTime{}, rank}, "at"},
			"NULL by a nil pointer":     {loose{id, "s", (*time.Time)(nil), rank}, "at"},
			"NULL by a Valuer's method": {loose{id, "s", failing{}, rank}, "at"},
			"zero time":                 {loose{id, "s", time.Time{}, rank}, "at"},
			"zero time by pointer":      {loose{id, "s", &time.Time{}, rank}, "at"},
			"infinite time": {loose{
				id, "s",
				pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
				rank,
			}, "at"},
			"NULL tie-breaker":          {loose{id, "s", noon, nil}, "rank"},
			"NaN tie-breaker":           {loose{id, "s", noon, ptr(math.NaN())}, "rank"},
			"infinite tie-breaker":      {loose{id, "s", noon, ptr(math.Inf(1))}, "rank"},
			"NUL":                       {loose{id, "a\x00b", noon, rank}, "status"},
			"not UTF-8":                 {loose{id, "a\xffb", noon, rank}, "status"},
			"a failing Valuer":          {loose{id, failing{errors.New("no")}, noon, rank}, "status"},
			"a type without a form":     {loose{id, make(chan int), noon, rank}, "status"},
			"a slice for a text column": {loose{id, []int{1}, noon, rank}, "status"},
		} {
			_, err := run(stmt, c.row)
			require.ErrorIs(t, err, upsert.ErrInvalidRow, name)
			var row *upsert.RowError
			require.ErrorAs(t, err, &row, name)
			require.Equal(t, c.column, row.Column, name)
			require.NotContains(t, err.Error(), "a\x00b")
		}
		_, err := run(stmt, loose{id, "s", "-infinity", rank})
		require.NoError(t, err, "older than everything is a version")
		require.Equal(t, 1, get[int](t, pool, "SELECT count(*) FROM loose"))
	})
}

func TestOtherConstraintSurfaces(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns+", CONSTRAINT one_per_status UNIQUE (status)")
		_, err := run(orders, order{"1", "taken", noon, 1})
		require.NoError(t, err)
		_, err = run(orders, order{"2", "free", noon, 1})
		require.NoError(t, err)
		for _, id := range []string{"2", "3"} {
			_, err = run(orders, order{id, "taken", noon.Add(time.Hour), 1})
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr)
			require.Equal(t, "23505", pgErr.Code)
			require.Equal(t, "one_per_status", pgErr.ConstraintName)
		}
		require.Equal(t, "1taken 2free", get[string](t, pool, "SELECT string_agg(id || status, ' ' ORDER BY id) FROM orders"))
	})
}

// A trigger that changes what an event brings makes it differ from itself: an error, and never a silent second write.
func TestTriggerChangesContent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns)
		exec(t, pool, "CREATE FUNCTION lowered() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.status = "+
			"lower(NEW.status); RETURN NEW; END'")
		exec(t, pool, "CREATE TRIGGER lowered BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION lowered()")
		last := upsert.Into[order]("orders").OnConflict("id").Set("status").LastWins().MustBuild()
		for stmt, want := range map[*upsert.Stmt[order]]error{orders: upsert.ErrVersionConflict, last: upsert.ErrUnsettled} {
			exec(t, pool, "TRUNCATE orders")
			res, err := run(stmt, order{"1", "New", noon, 1})
			require.NoError(t, err)
			require.Equal(t, upsert.Inserted, res.Outcome)
			require.Equal(t, "new", res.Stored.Status, "what is stored, not what was sent")
			_, err = run(stmt, order{"1", "New", noon, 1})
			require.ErrorIs(t, err, want)
			res, err = run(stmt, order{"1", "Paid", noon, 2})
			require.NoError(t, err)
			require.Equal(t, upsert.Updated, res.Outcome)
		}
	})
}

// A trigger that skips the row, and row security that hides it, are an error after a bounded number of tries.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, pool *pgxpool.Pool, run func(*upsert.Stmt[order], order) (upsert.Result[order], error)) {
		create(t, pool, "plain", "orders", orderColumns)
		exec(t, pool, "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
		exec(t, pool, "CREATE TRIGGER skip BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION skip()")
		res, err := run(orders, order{"1", "new", noon, 1})
		require.ErrorIs(t, err, upsert.ErrUnsettled)
		require.Zero(t, res.Outcome)
	})
}
