package upsert_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

var queryModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// driver is a way to the database.
type driver struct {
	name string
	db   upsert.DB
}

// drivers returns every way: pgx in all modes as a pool, a connection and a transaction, and both drivers of
// database/sql.
func drivers(t *testing.T, cfg *pgxpool.Config) []driver {
	t.Helper()
	var all []driver
	for _, mode := range queryModes {
		cfg := cfg.Copy()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		all = append(all, driver{"pgx " + mode.String(), pgtest.PoolConfig(t, cfg)})
	}
	for _, name := range []string{"pgx", "postgres"} {
		db, conn := standard(t, cfg, name)
		all = append(all, driver{name + " sql.DB", upsert.SQL(db)}, driver{name + " sql.Conn", upsert.SQL(conn)})
	}
	return all
}

func standard(t *testing.T, cfg *pgxpool.Config, name string) (*sql.DB, *sql.Conn) {
	t.Helper()
	db, err := sql.Open(name, cfg.ConnString())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	conn, err := db.Conn(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return db, conn
}

type mood string

// wide has a column of every type that has a way of its own to PostgreSQL.
type wide struct {
	ID   string           `db:"id"`
	I2   int16            `db:"i2"`
	I8   *uint32          `db:"i8"`
	F4   float32          `db:"f4"`
	F8   float64          `db:"f8"`
	N    pgtype.Numeric   `db:"n"`
	N2   string           `db:"n2"`
	B    bool             `db:"b"`
	By   []byte           `db:"by"`
	T    sql.NullString   `db:"t"`
	VC   string           `db:"vc"`
	C    string           `db:"c"`
	U    [16]byte         `db:"u"`
	J    json.RawMessage  `db:"j"`
	JB   map[string]any   `db:"jb"`
	D    time.Time        `db:"d"`
	TM   pgtype.Time      `db:"tm"`
	TS   time.Time        `db:"ts"`
	TZ0  *time.Time       `db:"tz0"`
	TZ   time.Time        `db:"tz"`
	IV   pgtype.Interval  `db:"iv"`
	TA   []string         `db:"ta"`
	IA   [][]int32        `db:"ia"`
	NA   []*string        `db:"na"`
	E    mood             `db:"e"`
	P    string           `db:"p"`
	IP   netip.Addr       `db:"ip"`
	Dom  *float64         `db:"dom"`
	None *string          `db:"none"`
	Any  sql.Null[string] `db:"any"`
	V    int64            `db:"v"`
}

const wideDDL = `
	CREATE TYPE mood AS ENUM ('calm', 'angry');
	CREATE DOMAIN amount AS numeric(8,2) NOT NULL CHECK (VALUE >= 0);
	CREATE TABLE wides (id text PRIMARY KEY, i2 int2, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(10,2), b bool, by bytea,
	  t text, vc varchar(5), c char(4), u uuid, j json, jb jsonb, d date, tm time(1), ts timestamp(3), tz0 timestamptz(0),
	  tz timestamptz, iv interval(0), ta text[], ia int[], na numeric(6,1)[], e mood, p point, ip inet, dom amount, none text,
	  "any" text, v bigint)`

var wides = upsert.Into[wide]("wides").OnConflict("id").
	Set("i2", "i8", "f4", "f8", "n", "n2", "b", "by", "t", "vc", "c", "u", "j", "jb", "d", "tm", "ts", "tz0", "tz", "iv",
		"ta", "ia", "na",
		"e", "p", "ip", "dom", "none", "any").
	Version("v").MustBuild()

func wideRow(id string) wide {
	at := time.Date(2026, 3, 1, 23, 59, 59, 987_654_999, time.FixedZone("", -5*3600))
	n8, dom := uint32(1<<32-1), 12.345
	var num pgtype.Numeric
	if err := num.Scan("123456789012345678901234567890.00010"); err != nil {
		panic(err)
	}
	one, bad := "1.25", `2`
	return wide{
		ID: id, I2: -3, I8: &n8, F4: 0.1, F8: 1e300, N: num, N2: "12.345", B: true, By: []byte{0, 255, '\\', '"'},
		T: sql.NullString{String: "it's \\ \"{}\", NULL, $1 ? ü", Valid: true}, VC: "abc", C: "ab",
		U: [16]byte{1, 2, 15: 255},
		J: json.RawMessage(`{"b": 1,  "a":2}`), JB: map[string]any{"k": []any{"v", nil, 1.5}}, D: at,
		TM: pgtype.Time{Microseconds: 61_260_000, Valid: true},
		TS: at, TZ0: &at, TZ: at, IV: pgtype.Interval{Microseconds: 3_600_400_000, Days: 2, Months: 1, Valid: true},
		TA: []string{"", "a\"b\\", "{x,y}", "NULL"}, IA: [][]int32{{1, 2}, {3, 4}}, NA: []*string{&one, nil, &bad},
		E: "angry", P: "(1,2.5)",
		IP: netip.MustParseAddr("10.0.0.1"), Dom: &dom, V: 1,
	}
}

// wideStored is what the table makes of wideRow.
func wideStored(id string) wide {
	w := wideRow(id)
	utc := w.TZ.UTC().Truncate(time.Microsecond)
	whole, milli := utc.Round(time.Second), utc.Round(time.Millisecond)
	dom, one, two := 12.35, "1.3", "2.0" // one: 1.25 is rounded away from zero
	w.N2, w.C, w.J = "12.35", "ab  ", json.RawMessage(`{"b": 1,  "a":2}`)
	w.D = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	w.TM.Microseconds = 61_300_000
	clock := w.TS // a timestamp keeps what the clock shows, as it does with the drivers alone
	w.TS = time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), clock.Second(),
		milli.Nanosecond(), time.UTC)
	w.TZ0, w.TZ = &whole, utc
	w.IV.Microseconds = 3_600_000_000
	w.NA, w.Dom = []*string{&one, nil, &two}, &dom
	return w
}

// The same event is Unchanged whichever way it comes, whatever precision the columns have, and every way reads the
// same row.
func TestSameEventByEveryDriver(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	_, err := pool.Exec(context.Background(), wideDDL, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	all := drivers(t, cfg)
	for _, first := range all {
		for bulk, name := range []string{"one by ", "many by "} {
			id := name + first.name
			res := apply(t, first.db, wideRow(id), bulk == 1)
			require.Equal(t, upsert.Inserted, res.Outcome, id)
			requireWide(t, wideStored(id), res.Stored, id)
			for _, second := range all {
				for _, bulk := range []bool{false, true} {
					res := apply(t, second.db, wideRow(id), bulk)
					require.NoError(t, res.Err, "%s, then %s", id, second.name)
					require.Equal(t, upsert.Unchanged, res.Outcome, "%s, then %s", id, second.name)
					requireWide(t, wideStored(id), res.Stored, id+", then "+second.name)
				}
			}
			next := wideRow(id)
			next.V, next.T.Valid, next.TA = 2, false, []string{}
			res = apply(t, first.db, next, bulk == 1)
			require.Equal(t, upsert.Updated, res.Outcome, id)
			require.False(t, res.Stored.T.Valid)
			require.Equal(t, []string{}, res.Stored.TA)
		}
	}
}

func requireWide(t *testing.T, want, got wide, msg string) {
	t.Helper()
	n, err := got.N.Value()
	require.NoError(t, err)
	wantN, err := want.N.Value()
	require.NoError(t, err)
	require.Equal(t, wantN, n, msg)
	got.N = want.N // the same number has several forms
	require.Equal(t, want, got, msg)
}

// apply applies one row alone or as a batch of one.
func apply[T any](t *testing.T, db upsert.DB, row T, bulk bool) (res upsert.Result[T]) {
	t.Helper()
	ctx := context.Background()
	stmt, ok := any(wides).(*upsert.Stmt[T])
	require.True(t, ok)
	var err error
	if bulk {
		_, err = stmt.ExecMany(ctx, db, slices.Values([]T{row}), func(_ int, r upsert.Result[T]) { res = r })
	} else {
		res, err = stmt.Exec(ctx, db, row)
	}
	require.NoError(t, err, "%+v", res.Stored)
	return res
}
