package idem_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

var byWeek = idem.Once{Table: dedup.Table{Layout: dedup.Weekly}}

// uuid7 returns a UUIDv7 of the time, told apart by n.
func uuid7(at time.Time, n int) string {
	h := fmt.Sprintf("%012x7%03x8%015x", at.UnixMilli(), n%4096, n)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

func ulid(at time.Time, n int) string {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	ms, b := at.UnixMilli(), []byte(fmt.Sprintf("%026d", n))
	for i := 9; i >= 0; i-- {
		b[i] = digits[ms%32]
		ms /= 32
	}
	return string(b)
}

func migrateWeekly(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	require.NoError(t, dedup.Migrate(t.Context(), pool, byWeek.Table))
	_, err := pool.Exec(t.Context(), conformance.Schema)
	require.NoError(t, err)
	return pool
}

// lastMonday is the beginning of this week, in UTC.
func lastMonday() time.Time {
	now := time.Now().UTC()
	return now.Truncate(24*time.Hour).AddDate(0, 0, -(int(now.Weekday())+6)%7)
}

// A message a second before midnight UTC of a week's boundary, and one a second after, under whatever time zone:
// retried with the same time each is a duplicate.
func TestWeeklyBoundary(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Config(t)
	migrateWeekly(t, pgtest.PoolConfig(t, dsn))
	boundary := lastMonday()
	kinds := map[string]func(at time.Time, n int) idem.Key{
		"UUIDv7":     func(at time.Time, n int) idem.Key { return stripe.Key("tenant", uuid7(at, n)) },
		"ULID":       func(at time.Time, n int) idem.Key { return stripe.Key(ulid(at, n)) },
		"OccurredAt": func(at time.Time, n int) idem.Key { return stripe.Key(fmt.Sprint("evt", n)).OccurredAt(at) },
	}
	zones := []string{"UTC", "Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kathmandu"}
	for i, zone := range zones {
		cfg := dsn.Copy()
		cfg.ConnConfig.RuntimeParams["timezone"] = zone
		cfg.ConnConfig.DefaultQueryExecMode = execModes[i]
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		defer pool.Close()
		for name, key := range kinds {
			for n, off := range []time.Duration{-time.Second, -time.Millisecond, 0, time.Second} {
				want := idem.Duplicate
				if i == 0 {
					want = idem.Executed
				}
				at := boundary.Add(off).In(time.FixedZone("", 3600*(i-2))) // the same moment
				out, err := byWeek.Run(t.Context(), pool, key(at, n), nothing)
				require.NoError(t, err)
				require.Equal(t, want, out, "%s %v in %s", name, off, zone)
				rec, err := byWeek.Lookup(t.Context(), pool, key(at, n))
				require.NoError(t, err)
				require.Equal(t, idem.Done, rec.State)
			}
		}
		if i == len(zones)-1 {
			var buckets int
			require.NoError(t, pool.QueryRow(t.Context(),
				`SELECT count(DISTINCT tableoid) FROM processed_events`).Scan(&buckets))
			require.Equal(t, 2, buckets)

			// What the documentation warns of: a time that changes is another event, beyond the boundary.
			out, err := byWeek.Run(t.Context(), pool, kinds["OccurredAt"](boundary, 0), nothing)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			out, err = byWeek.Run(t.Context(), pool, kinds["OccurredAt"](boundary.Add(time.Hour), 0), nothing)
			require.NoError(t, err)
			require.Equal(t, idem.Duplicate, out, "within the week it's the same")
		}
	}
}

// never is an fn that must not be called.
func never(t *testing.T) func(context.Context, pgx.Tx) error {
	return func(context.Context, pgx.Tx) error { t.Error("fn was called"); return nil }
}

func TestWeeklyWindow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrateWeekly(t, pgtest.Pool(t))
	at := time.Now().Add(-20 * 24 * time.Hour)
	key := stripe.Key(uuid7(at, 1))
	out, err := byWeek.Run(ctx, pool, key, nothing)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)

	// The window has moved on: the row is still there, then its partition is not.
	later := byWeek
	later.Table.Retention = 7 * 24 * time.Hour
	out, err = later.Run(ctx, pool, key, never(t))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
	var leaf string
	require.NoError(t, pool.QueryRow(ctx, `SELECT tableoid::regclass::text FROM processed_events`).Scan(&leaf))
	_, err = pool.Exec(ctx, `DROP TABLE `+leaf)
	require.NoError(t, err)
	_, err = later.Run(ctx, pool, key, never(t))
	require.ErrorIs(t, err, idem.ErrExpired)
	require.False(t, idem.Retryable(err))
	_, _, err = later.Reserve(ctx, pool, key, time.Minute)
	require.ErrorIs(t, err, idem.ErrExpired)
	_, err = later.Lookup(ctx, pool, key)
	require.ErrorIs(t, err, idem.ErrNotFound)

	// Inside of the window, a partition that is gone is for somebody to look at.
	_, err = byWeek.Run(ctx, pool, key, never(t))
	require.ErrorContains(t, err, "Maintain")
	require.Empty(t, pgerr.Code(err), "not 23514: nothing is wrong with the caller's data")
	require.False(t, idem.Retryable(err))
	_, _, err = byWeek.Reserve(ctx, pool, key, time.Minute)
	require.ErrorContains(t, err, "Maintain")
	require.Empty(t, pgerr.Code(err))

	// The future: clocks may differ by a day.
	for off, want := range map[time.Duration]error{
		23 * time.Hour: nil, 25 * time.Hour: idem.ErrFuture,
		80 * 365 * 24 * time.Hour: idem.ErrFuture,
	} {
		key := stripe.Key(ulid(time.Now().Add(off), 1))
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		fn := nothing
		if want != nil {
			fn = never(t)
		}
		_, err = byWeek.Do(ctx, tx, key, fn)
		require.ErrorIs(t, err, want)
		require.NoError(t, tx.Commit(ctx), "the transaction is usable")
		require.False(t, idem.Retryable(err))
		_, _, err = byWeek.Reserve(ctx, pool, stripe.Key(ulid(time.Now().Add(off), 2)), time.Minute)
		require.ErrorIs(t, err, want)
	}
}

// A key without a time, or with two, is refused before any SQL, by every call.
func TestWeeklyNeedsTime(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrateWeekly(t, pgtest.Pool(t))
	now := time.Now()
	for name, key := range map[string]idem.Key{
		"no time":           stripe.Key("evt_1"),
		"UUIDv4":            stripe.Key("2ba9b1a3-7d3c-4c7e-9f0a-0123456789ab"),
		"without dashes":    stripe.Key(strings.ReplaceAll(uuid7(now, 1), "-", "")),
		"not the last part": stripe.Key(uuid7(now, 1), "line 1"),
		"escaped":           stripe.Key("a/" + uuid7(now, 1)),
		"hashed":            stripe.HashedKey(uuid7(now, 1)),
		"26 digits":         stripe.Key("00000000000000000000012345"),
		"another time":      stripe.Key(uuid7(now, 1)).OccurredAt(now.Add(time.Second)),
	} {
		var bad *idem.KeyError
		wantBad := func(err error) {
			require.ErrorAs(t, err, &bad, name)
			require.Equal(t, "time", bad.Role)
		}
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		_, err = byWeek.Do(ctx, tx, key, never(t))
		wantBad(err)
		wantBad(byWeek.Forget(ctx, tx, key))
		_, err = tx.Exec(ctx, `SELECT 1`)
		require.NoError(t, err, "nothing was sent")
		require.NoError(t, tx.Rollback(ctx))
		_, err = byWeek.Run(ctx, nil, key, never(t))
		wantBad(err)
		_, err = byWeek.Lookup(ctx, nil, key)
		wantBad(err)
		_, _, err = byWeek.Reserve(ctx, nil, key, time.Minute)
		wantBad(err)
	}
	// The same time twice is one.
	out, err := byWeek.Run(ctx, pool, stripe.Key(uuid7(now, 1)).OccurredAt(now), nothing)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
	out, err = byWeek.Run(ctx, pool, stripe.Key(uuid7(now, 1)), never(t))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
}

// Every other call finds the row by its time, too.
func TestWeeklyCalls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrateWeekly(t, pgtest.Pool(t))
	now := time.Now()
	ago := now.Add(-15 * 24 * time.Hour) // in another week than processed_at
	for i, make := range []func(n int) idem.Key{
		func(n int) idem.Key { return stripe.Key("a", uuid7(ago, n)) },
		func(n int) idem.Key { return stripe.Key(strings.ToLower(ulid(ago, n))) },
		func(n int) idem.Key { return stripe.Key(fmt.Sprint("evt_", n)).OccurredAt(ago) },
	} {
		n := 100 * i
		next := func() idem.Key { n++; return make(n) }
		reserve := func(key idem.Key, attempt int) idem.Reservation {
			r, out, err := byWeek.Reserve(ctx, pool, key, time.Minute)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			require.Equal(t, attempt, r.Attempt)
			return r
		}
		// Reserve, Extend, Release, take over, Confirm, Duplicate.
		key := next()
		r := reserve(key, 1)
		_, _, err := byWeek.Reserve(ctx, pool, key, time.Minute)
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.NoError(t, r.Extend(ctx, pool, time.Hour))
		require.NoError(t, r.Release(ctx, pool))
		_, err = byWeek.Lookup(ctx, pool, key)
		require.ErrorIs(t, err, idem.ErrNotFound)
		r = reserve(key, 1)
		_, err = pool.Exec(ctx, `UPDATE processed_events SET lease_until = clock_timestamp() WHERE key = $1`, key.ID())
		require.NoError(t, err)
		second := reserve(key, 2)
		require.ErrorIs(t, r.Extend(ctx, pool, time.Hour), idem.ErrLostLease)
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return second.Confirm(ctx, tx, []byte("v")) }))
		again, out, err := byWeek.Reserve(ctx, pool, key, time.Minute)
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
		require.Equal(t, "v", string(again.Value))
		// Fail, Void.
		key = next()
		require.NoError(t, reserve(key, 1).Fail(ctx, pool, []byte("declined")))
		var final *idem.FinalError
		_, err = byWeek.Run(ctx, pool, key, never(t))
		require.ErrorAs(t, err, &final)
		key = next()
		require.NoError(t, reserve(key, 1).Void(ctx, pool))
		// What Open lists can be reserved again, settled and forgotten.
		require.NoError(t, reserve(key, 1).Extend(ctx, pool, time.Microsecond))
		_, err = pool.Exec(ctx, `UPDATE processed_events SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL`)
		require.NoError(t, err)
		open, err := byWeek.Pending(ctx, pool, idem.Scope{}, 10)
		require.NoError(t, err)
		require.Len(t, open, 1)
		require.NoError(t, reserve(open[0].Key, 2).Fail(ctx, pool, nil))
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return byWeek.Forget(ctx, tx, open[0].Key) }))
		// Call and Returning.
		key = next()
		call := idem.Call[string]{
			Once: byWeek, Lease: time.Minute,
			Send: func(context.Context, string) (string, error) { return "sent", nil },
		}
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			v, out, err := call.Run(ctx, pool, key)
			require.NoError(t, err)
			require.Equal(t, want, out)
			require.Equal(t, "sent", v)
		}
		key = next()
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			v, out, err := idem.Returning[int]{Once: byWeek}.Run(ctx, pool, key,
				func(context.Context, pgx.Tx) (int, error) { return 7, nil })
			require.NoError(t, err)
			require.Equal(t, want, out)
			require.Equal(t, 7, v)
		}
	}
}

// A CHECK that a row violates is the server's error, and not taken for a missing partition; its DETAIL, which prints
// the key, stays behind.
func TestWeeklyHidesDetail(t *testing.T) {
	t.Parallel()
	pool := migrateWeekly(t, pgtest.Pool(t))
	_, err := pool.Exec(t.Context(), `ALTER TABLE processed_events ADD CHECK (key <> 'secret')`)
	require.NoError(t, err)
	_, err = byWeek.Run(t.Context(), pool, stripe.Key("secret").OccurredAt(time.Now()), never(t))
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "23514", pgErr.Code)
	require.Empty(t, pgErr.Detail)
	require.NotContains(t, fmt.Sprintf("%+v", *pgErr), "secret")
	require.NotContains(t, err.Error(), "Maintain")
}

// Go and the CHECK of the table read the same times out of the same keys, and out of no others.
func TestWeeklyTimeInKey(t *testing.T) {
	t.Parallel()
	pool := migrateWeekly(t, pgtest.Pool(t))
	var check string
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint
		 WHERE conrelid = 'processed_events'::regclass AND conname = 'event_time_of_key'`).Scan(&check))
	sql := `SELECT coalesce(` + check + `, true)
		FROM (SELECT $1::text COLLATE "C", timestamptz 'epoch' + $2::int8 * interval '1 millisecond') AS row (key, event_time)`
	holds := func(t rapid.TB, id string, ms int64) (ok bool) {
		if err := pool.QueryRow(context.Background(), sql, id, ms).Scan(&ok); err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		return ok
	}
	// Every character of interest in every place, one after the other; in one statement, for there are thousands.
	var ids []string
	for _, id := range []string{uuid7(time.Now(), 1), ulid(time.Now(), 1)} {
		for i := range len(id) {
			for _, c := range "01234789abcdefgABCDEFGILOUZiluz-/ _" {
				ids = append(ids, id[:i]+string(c)+id[i+1:])
			}
		}
	}
	ms, inside := make([]int64, len(ids)), make([]bool, len(ids))
	found := 0
	for i, id := range ids {
		if ms[i], inside[i] = front.MillisOf(id); inside[i] {
			found++
		}
	}
	require.Greater(t, found, 500)
	require.Less(t, found, len(ids)-500)
	rows, err := pool.Query(t.Context(), `
		SELECT key FROM (SELECT k, ms, inside FROM unnest($1::text[], $2::int8[], $3::bool[]) AS all_of (k, ms, inside)) AS x,
		       LATERAL (SELECT k COLLATE "C", timestamptz 'epoch' + ms * interval '1 millisecond') AS row (key, event_time),
		       LATERAL (SELECT `+check+`) AS one (holds),
		       LATERAL (SELECT `+strings.ReplaceAll(check, "event_time", "(event_time + interval '1 millisecond')")+`) AS other (holds)
		 WHERE NOT one.holds OR other.holds <> (NOT inside)`, ids, ms, inside)
	require.NoError(t, err)
	differ, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, differ, "Go and the CHECK read another time out of these")

	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "ms"))
		n := rapid.IntRange(0, 1<<30).Draw(t, "n")
		id := rapid.SampledFrom([]string{uuid7(at, n), ulid(at, n)}).Draw(t, "id")
		b := []byte(id)
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-1).Draw(t,
				"place")] = rapid.SampledFrom([]byte("0123789abcdefABCDEFGIJLOUZuzil-/ _\n\x7f")).Draw(t, "char")
		}
		id = rapid.SampledFrom([]string{"", "", "/", "a/", "a%2F", "x", "\n"}).Draw(t, "before") + string(b) +
			rapid.SampledFrom([]string{"", "", "", "\n", "/", "0"}).Draw(t, "after")
		id = rapid.SampledFrom([]string{id, strings.ToUpper(id), strings.ToLower(id)}).Draw(t, "case")
		ms, inside := front.MillisOf(id)
		if inside {
			if !holds(t, id, ms) || holds(t, id, ms+1) {
				t.Fatalf("%q (%s): the CHECK reads another time than %d", id, hex.EncodeToString([]byte(id)), ms)
			}
		} else if !holds(t, id, 1) || !holds(t, id, 2) {
			t.Fatalf("%q (%s): the CHECK finds a time inside", id, hex.EncodeToString([]byte(id)))
		}
	})
}
