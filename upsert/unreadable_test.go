package upsert_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// A stored value that its field cannot take is told with the outcome, for the row is settled, and a retry has the
// same answer.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string `db:"id"`
		N  int8   `db:"n"`
		V  int    `db:"v"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, "CREATE TABLE counts (id text PRIMARY KEY, n int, v int); INSERT INTO counts VALUES ('a', 300, 9)",
		pgx.QueryExecModeSimpleProtocol)
	s := upsert.Into[row]("counts").OnConflict("id").Set("n").Version("v").MustBuild()
	for _, d := range drivers(t, cfg) {
		res, err := s.Exec(ctx, d.db, row{"a", 1, 2})
		require.ErrorIs(t, err, upsert.ErrUnreadable, d.name)
		require.ErrorIs(t, res.Err, upsert.ErrUnreadable)
		require.Equal(t, upsert.Stale, res.Outcome, d.name)
		require.Equal(t, row{"a", 0, 9}, res.Stored, d.name)
		sum, err := s.ExecMany(ctx, d.db, slices.Values([]row{{"a", 1, 2}, {d.name, 1, 2}}),
			func(_ int, r upsert.Result[row]) { res = r })
		require.ErrorIs(t, err, upsert.ErrUnreadable, d.name)
		require.Equal(t, upsert.Summary{Inserted: 1, Stale: 1}, sum, d.name)
	}
}

// What can never be read back is refused before a row is written.
func TestFieldsThatNeverFit(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string    `db:"id"`
		At time.Time `db:"at"`
		V  int       `db:"v"`
	}
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE times (id text PRIMARY KEY, at text, v int)")
	s := upsert.Into[row]("times").OnConflict("id").Set("at").Version("v").MustBuild()
	var problems *upsert.VerifyError
	require.ErrorAs(t, upsert.Verify(ctx, pool, s), &problems)
	_, err := s.Exec(ctx, pool, row{"a", noon, 1})
	require.ErrorAs(t, err, &problems)
	_, err = s.ExecMany(ctx, pool, slices.Values([]row{{"a", noon, 1}}), nil)
	require.ErrorAs(t, err, &problems)
	require.Zero(t, get[int](t, pool, "SELECT count(*) FROM times"))
}

// NULL in an array is never the string "NULL": with array_nulls off the server says no.
func TestArrayNullsOff(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string    `db:"id"`
		T  *string   `db:"t"`
		A  []*string `db:"a"`
		V  int       `db:"v"`
	}
	ctx := context.Background()
	base := pgtest.Config(t)
	exec(t, pgtest.PoolConfig(t, base), "CREATE TABLE lists (id text PRIMARY KEY, t text, a text[], v int)")
	cfg := settled(base, map[string]string{"array_nulls": "off"})
	pool := pgtest.PoolConfig(t, cfg)
	s := upsert.Into[row]("lists").OnConflict("id").Set("t", "a").Version("v").MustBuild()
	for _, mode := range queryModes {
		cfg.ConnConfig.DefaultQueryExecMode = mode
		db := pgtest.PoolConfig(t, cfg)
		for range 2 {
			_, err := s.Exec(ctx, db, row{"a", nil, []*string{nil}, 1})
			require.Error(t, err, mode)
			_, err = s.ExecMany(ctx, db, slices.Values([]row{{"a", nil, []*string{}, 1}}), nil)
			require.Error(t, err, mode)
		}
	}
	require.Zero(t, get[int](t, pool, "SELECT count(*) FROM lists"))
}

// A codec that says whose clock a timestamp shows counts for what comes back, as it does for pgx itself.
func TestScanLocation(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string    `db:"id"`
		At time.Time `db:"at"`
		V  int       `db:"v"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	east := time.FixedZone("east", 2*3600)
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		codec := &pgtype.TimestampCodec{ScanLocation: east}
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamp", OID: pgtype.TimestampOID, Codec: codec})
		return nil
	}
	for _, mode := range queryModes {
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool := pgtest.PoolConfig(t, cfg)
		exec(t, pool, "DROP TABLE IF EXISTS clocks")
		exec(t, pool, "CREATE TABLE clocks (id text PRIMARY KEY, at timestamp, v int)")
		s := upsert.Into[row]("clocks").OnConflict("id").Set("at").Version("v").MustBuild()
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, east)
		res, err := s.Exec(ctx, pool, row{"one", at, 1})
		require.NoError(t, err)
		require.True(t, at.Equal(res.Stored.At), "%s: %s", mode, res.Stored.At)
		_, err = s.ExecMany(ctx, pool, slices.Values([]row{{"many", at, 1}}), func(_ int, r upsert.Result[row]) { res = r })
		require.NoError(t, err)
		require.True(t, at.Equal(res.Stored.At), "%s: %s", mode, res.Stored.At)
		require.Equal(t, "2026-03-01 12:00:00", get[string](t, pool, "SELECT string_agg(DISTINCT at::text, ' ') FROM clocks"))
	}
}
