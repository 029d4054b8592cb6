package upsert_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// Types as programs have them.
type (
	namedString string
	namedInt    int32
	namedBytes  []byte
	namedTime   time.Time
	stamp       struct{ time.Time }

	// level has methods for text and none for databases.
	level struct{ n int }

	// grade is a Valuer and a Scanner that refuses NULL.
	grade string

	// oneWay writes what it cannot read.
	oneWay int
)

func (l level) MarshalText() ([]byte, error) { return []byte("level-" + fmt.Sprint(l.n)), nil }
func (l *level) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "level-%d", &l.n)
	return err
}

func (g grade) Value() (sqldriver.Value, error) { return "grade " + string(g), nil }
func (g *grade) Scan(src any) error {
	s, ok := src.(string)
	if !ok || !strings.HasPrefix(s, "grade ") {
		return fmt.Errorf("no grade: %T", src)
	}
	*g = grade(strings.TrimRight(strings.TrimPrefix(s, "grade "), " "))
	return nil
}

func (oneWay) MarshalText() ([]byte, error) { return []byte("active"), nil }

// sample is a Go value, and what is done with it.
type sample struct {
	name  string
	value any
	field reflect.Type
	stmt  func(table string) doer
}

// doer applies a value, alone or as a batch of one.
type doer func(db upsert.DB, id string, many bool) (stored any, out upsert.Outcome, err error)

// given makes a sample of a value whose field has its type.
func given[F any](v F) sample {
	type row struct {
		ID string `db:"id"`
		V  F      `db:"v"`
		N  int    `db:"n"`
	}
	return sample{
		name: fmt.Sprintf("%T %v", v, v), value: v, field: reflect.TypeFor[F](),
		stmt: func(table string) doer {
			s := upsert.Into[row](table).OnConflict("id").Set("v").Version("n").MustBuild()
			return func(db upsert.DB, id string, many bool) (any, upsert.Outcome, error) {
				ctx := context.Background()
				if !many {
					res, err := s.Exec(ctx, db, row{id, v, 1})
					return res.Stored.V, res.Outcome, err
				}
				var res upsert.Result[row]
				_, err := s.ExecMany(ctx, db, slices.Values([]row{{id, v, 1}}), func(_ int, r upsert.Result[row]) { res = r })
				return res.Stored.V, res.Outcome, err
			}
		},
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

func samples() []sample {
	east := time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 2*3600))
	_, cidr, _ := net.ParseCIDR("10.1.0.0/16")
	uuid := [16]byte{1, 2, 3, 15: 255}
	return []sample{
		given("7"), given("abc"), given(""), given("calm"), given("2026-03-01 12:00:00.5"), given("10.0.0.1"), given("[1,3)"),
		given("-1 mon 2 days"), given(`{"a": 1}`), given("$12.30"), given("01020300-0000-0000-0000-0000000000ff"), given("101"),
		given("<a>b</a>"), given("(7,x)"), given("{1,NULL}"), given("12.50"), given("'\"\\,{}\n ü"),
		given(namedString("calm")), given(namedString("7")), given(ptr("abc")), given((*string)(nil)),
		given(7), given(int8(-7)), given(uint64(1 << 63)), given(namedInt(7)), given(ptr(int32(7))), given((*int)(nil)),
		given(true), given(ptr(false)), given(1.5), given(float32(0.1)), given(1e300), given(7.0),
		given([]byte("abc")), given([]byte{}), given([]byte(nil)), given([]byte{0, 1, 255}), given(uuid[:]), given(uuid), given([4]byte{1, 2, 3, 4}),
		given(namedBytes{0, 255}), given(json.RawMessage(`{"b": 1,  "a": 2}`)), given(map[string]any{"k": 1.5}), given([]any{"x", nil}),
		given(east), given(&east), given((*time.Time)(nil)), given(namedTime(east)), given(stamp{east}),
		given(time.Date(-43, 3, 15, 0, 0, 0, 0, time.UTC)), given(90 * time.Minute), given(-90 * time.Minute),
		given(*big.NewInt(-12)), given(big.NewInt(12)), given(*big.NewRat(3, 2)), given(big.NewRat(3, 1)), given(big.NewFloat(1.5)),
		given(level{3}), given(&level{3}), given(grade("a")), given(oneWay(1)),
		given(net.ParseIP("10.0.0.1")), given(net.IP(nil)), given(net.ParseIP("2001:db8::1")), given(*cidr), given(netip.MustParseAddr("10.0.0.1")),
		given(netip.MustParsePrefix("10.1.0.0/16")), given(netip.MustParsePrefix("10.0.0.1/32")),
		given([]string{"calm", "NULL", `a"b\`}), given([]string{}), given([]*string{ptr("x"), nil}), given([]namedString{"calm", "angry"}),
		given([]int{1, 2}), given([]namedInt{1}), given([][]int32{{1, 2}, {3, 4}}), given([2]int{1, 2}), given([]time.Time{east}), given([]float64{0.1, 1e300}),
		given([]bool{true}), given([][]byte{{0, 255}, nil}), given([]string(nil)), given([]sql.NullInt64{{Int64: 1, Valid: true}, {}}),
		given(sql.NullString{String: "abc", Valid: true}), given(sql.NullTime{Time: east, Valid: true}), given(sql.Null[int]{V: 7, Valid: true}),
		given(sql.NullBool{}), given(pgtype.Text{String: "abc", Valid: true}), given(pgtype.Int8{Int64: 7, Valid: true}),
		given(must(numeric("12.50"))), given(pgtype.Timestamptz{Time: east, Valid: true}), given(pgtype.Timestamp{Time: east, Valid: true}),
		given(pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}), given(pgtype.Date{Time: east, Valid: true}),
		given(pgtype.Interval{Months: -1, Days: 2, Microseconds: 3_600_000_000, Valid: true}), given(pgtype.UUID{Bytes: uuid, Valid: true}),
		given(pgtype.Time{Microseconds: 86_400_000_000, Valid: true}), given(pgtype.Bits{Bytes: []byte{0xA0}, Len: 3, Valid: true}),
		given(pgtype.Point{P: pgtype.Vec2{X: 0.1, Y: 1e300}, Valid: true}),
		given(pgtype.Range[pgtype.Timestamptz]{
			Lower: pgtype.Timestamptz{Time: east.Truncate(time.Microsecond), Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Unbounded, Valid: true,
		}),
		given(pgtype.Range[pgtype.Int4]{
			Lower: pgtype.Int4{Int32: 1, Valid: true}, Upper: pgtype.Int4{Int32: 3, Valid: true}, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive, Valid: true,
		}),
		given(struct{ A int }{1}), given[any](7), given[any]("abc"), given[any](east), given[any](nil),
	}
}

func numeric(s string) (n pgtype.Numeric, err error) { return n, n.Scan(s) }

var columnTypes = []string{
	"text", "varchar(60)", "char(40)", "int2", "int4", "int8", "numeric", "numeric(10,2)", "float4", "float8", "bool", "bytea", "uuid", "json", "jsonb",
	"date", "time", "timetz", "timestamp", "timestamptz", "timestamptz(3)", "interval", "inet", "cidr", "money", "xml", "bit(3)", "varbit", "point",
	"mood", "positive", "pair", "int4range", "tstzrange", "tsmultirange", "text[]", "int4[]", "float8[]", "bytea[]", "timestamptz[]", "bool[]", "mood[]", "box",
}

// stored is how many of the samples a column of a type takes, at least.
var stored = map[string]int{
	"box": 5, "mood[]": 8, "text": 62, "bool[]": 8, "timestamptz[]": 7, "bytea[]": 12, "float8[]": 14,
	"int4[]": 13, "tsmultirange": 5, "text[]": 18, "tstzrange": 6, "int4range": 7, "pair": 6, "mood": 7,
	"positive": 23, "point": 6, "varbit": 10, "bit(3)": 8, "xml": 27, "money": 12, "inet": 12, "cidr": 16,
	"interval": 14, "timestamptz(3)": 16, "timestamptz": 16, "timestamp": 15, "timetz": 6, "time": 15, "date": 15,
	"jsonb": 68, "json": 68, "uuid": 9, "bool": 7, "bytea": 36, "float8": 29, "float4": 28, "numeric(10,2)": 25,
	"numeric": 29, "int8": 22, "int4": 20, "int2": 20, "char(40)": 60, "varchar(60)": 60,
}

const valueTypes = `CREATE TYPE mood AS ENUM ('calm', 'angry'); CREATE DOMAIN positive AS numeric(8,2) CHECK (VALUE > 0); CREATE TYPE pair AS (a int, b text)`

// hostile are settings under which values read and write otherwise.
var hostile = map[string]string{
	"DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kolkata", "extra_float_digits": "-15", "bytea_output": "escape",
	"xmloption": "document",
}

// bare is a driver by itself.
type bare struct {
	name string
	do   func(query string, args ...any) error
}

func bareDrivers(t *testing.T, cfg *pgxpool.Config) []bare {
	var all []bare
	for _, mode := range queryModes {
		cfg := cfg.Copy()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool := pgtest.PoolConfig(t, cfg)
		all = append(all, bare{"pgx " + mode.String(), func(query string, args ...any) error {
			_, err := pool.Exec(context.Background(), query, args...)
			return err
		}})
	}
	for _, name := range []string{"postgres", "pgx"} {
		db := must(sql.Open(name, cfg.ConnString()))
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		all = append(all, bare{name, func(query string, args ...any) error {
			_, err := db.Exec(query, args...)
			return err
		}})
	}
	return all
}

// settled sets what a session begins with.
func settled(cfg *pgxpool.Config, settings map[string]string) *pgxpool.Config {
	cfg = cfg.Copy()
	for k, v := range settings {
		cfg.ConnConfig.RuntimeParams[k] = v
	}
	return cfg
}

// What is stored is what a driver by itself stores for the same value, or the value is refused before anything is
// written. What comes back is the value, in whatever session. The order of the drivers is that of their word: where
// they differ, pgx in its default mode is right.
func TestStoresWhatTheDriverStores(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, valueTypes, pgx.QueryExecModeSimpleProtocol)
	bares := bareDrivers(t, cfg)
	ways := slices.DeleteFunc(drivers(t, cfg), func(d driver) bool { return strings.HasSuffix(d.name, "sql.Conn") })
	ways = pgtest.Matrix(ways, func(d driver) string { return d.name }, "pgx cache statement", "pgx simple protocol", "postgres sql.DB")
	strange := pgtest.PoolConfig(t, settled(cfg, hostile))
	for n, typ := range columnTypes {
		bareTable, table := fmt.Sprintf("bare_%d", n), fmt.Sprintf("ours_%d", n)
		for _, name := range []string{bareTable, table} {
			exec(t, pool, "CREATE TABLE "+name+" (id text PRIMARY KEY, v "+typ+", n int)")
		}
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			c := valueTest{pool, bareTable, table, bares, ways, strange}
			for i, s := range samples() {
				c.run(t, fmt.Sprint(i), typ, s)
			}
			// Refusing everything would pass as well.
			n := get[int](t, pool, "SELECT count(DISTINCT id) FROM "+table+" WHERE id LIKE '%"+ways[0].name+"%'") / 2
			require.GreaterOrEqual(t, n, stored[typ], "of the samples so many are stored in a column of type %s", typ)
		})
	}
}

// valueTest is one column type.
type valueTest struct {
	pool        *pgxpool.Pool
	bare, table string
	bares       []bare
	ways        []driver
	strange     *pgxpool.Pool
}

func (c valueTest) run(t *testing.T, id, typ string, s sample) {
	t.Helper()
	stored := func(table, id string) *string {
		return get[*string](t, c.pool, "SELECT CASE WHEN v IS NOT NULL THEN pg_catalog.concat(v) END FROM "+table+" WHERE id = $1", id)
	}
	kept := map[string]bool{}
	var right *string
	for _, d := range c.bares {
		at := id + d.name
		if d.do("INSERT INTO "+c.bare+" (id, v) VALUES ($1, $2)", at, s.value) != nil {
			continue
		}
		text := stored(c.bare, at)
		if len(kept) == 0 {
			right = text
		}
		kept[form(text)] = true
		if d.name == c.bares[0].name {
			break
		}
	}
	do, first := s.stmt(c.table), true
	for _, w := range slices.Concat(c.ways, []driver{{"strange settings", c.strange}}) {
		for _, many := range []bool{false, true} {
			at := fmt.Sprint(id, w.name, many)
			fail := func(format string, args ...any) {
				t.Errorf("%s into %s, %s, many %v: %s", s.name, typ, w.name, many, fmt.Sprintf(format, args...))
			}
			back, out, err := do(w.db, at, many)
			if err != nil && typ == "xml" && w.db == c.strange {
				return // no document, and the driver itself says the same
			}
			if err != nil {
				if out != 0 || get[int](t, c.pool, "SELECT count(*) FROM "+c.table+" WHERE id = $1", at) != 0 {
					fail("an error, and the row is written: %v", err)
				}
				if !first {
					fail("%v, and not in the first way", err)
				}
				if !many {
					continue
				}
				if _, _, one := do(c.ways[0].db, at, false); one == nil {
					fail("refused in a batch only: %v", err)
				}
				return
			}
			first = false
			text := stored(c.table, at)
			if kept[`"{}"`] && strings.HasPrefix(typ, "json") {
				continue // pgx by itself stores nothing of a big.Rat, and of a big.Int that is no pointer
			}
			if len(kept) > 0 && !kept[form(text)] && !(w.db == c.strange && c.strangely(t, at, s) == form(text)) {
				fail("%s is stored, and by the driver itself %s", form(text), form(right))
			}
			// Strings of bytes come back in the server's digits, as in a bytea.
			digits := typ == "bytea[]" && strings.Contains(s.field.String(), "tring")
			if want := c.want(t, at, s, text); !digits && s.field.Kind() != reflect.Interface && form(back) != form(want) {
				fail("%s comes back, not %s; %s is stored", form(back), form(want), form(text))
			}
			if _, out, err := do(w.db, at, many); out != upsert.Unchanged || err != nil {
				fail("again it is %s, %v", out, err)
			}
		}
	}
}

// strangely is what the driver by itself stores in the strange session, for a string: that one may depend on it.
func (c valueTest) strangely(t *testing.T, id string, s sample) string {
	t.Helper()
	if r := reflect.Indirect(reflect.ValueOf(s.value)); r.Kind() != reflect.String {
		return "none"
	}
	exec(t, c.strange, "INSERT INTO "+c.bare+" (id, v) VALUES ($1, $2)", "strange "+id, s.value)
	return form(get[*string](t, c.pool, "SELECT pg_catalog.concat(v) FROM "+c.bare+" WHERE id = $1", "strange "+id))
}

// want is what pgx reads from the row, or where it cannot, the text or the value as it was given.
func (c valueTest) want(t *testing.T, id string, s sample, text *string) any {
	t.Helper()
	read := func(dst any) bool {
		return c.pool.QueryRow(context.Background(), "SELECT v FROM "+c.table+" WHERE id = $1", id).Scan(dst) == nil
	}
	var at time.Time
	switch s.value.(type) {
	case namedTime:
		if read(&at) {
			return namedTime(at)
		}
	case stamp:
		if read(&at) {
			return stamp{at}
		}
	case sql.NullTime:
		if read(&at) {
			return sql.NullTime{Time: at, Valid: true}
		}
	}
	switch dst := reflect.New(s.field); {
	case s.field.Kind() == reflect.String || s.field == reflect.TypeFor[*string]():
		if s.field == reflect.TypeFor[grade]() {
			return s.value
		}
		return text
	case read(dst.Interface()):
		return dst.Elem().Interface()
	}
	return s.value
}

// form writes a value in a form in which equal ones are equal.
func form(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case time.Time:
		return v.UTC().Truncate(time.Microsecond).Format("2006-01-02T15:04:05.999999")
	case namedTime:
		return form(time.Time(v))
	case fmt.Stringer:
		if r := reflect.ValueOf(v); r.Kind() != reflect.Pointer || !r.IsNil() {
			return v.String()
		}
	case pgtype.Numeric:
		f, _ := v.Float64Value()
		return fmt.Sprint(f.Float64)
	case big.Int:
		return v.String()
	case big.Rat:
		return v.String()
	case json.RawMessage:
		return string(v)
	}
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.Pointer:
		if r.IsNil() {
			return "nil"
		}
		return form(r.Elem().Interface())
	case r.Kind() == reflect.String:
		return fmt.Sprintf("%q", r.String())
	case r.Kind() == reflect.Slice && r.IsNil():
		return "nil"
	case r.Kind() == reflect.Slice || r.Kind() == reflect.Array:
		var parts []string
		for i := range r.Len() {
			parts = append(parts, form(r.Index(i).Interface()))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case r.Kind() == reflect.Struct && r.NumField() > 0:
		var parts []string
		for i := range r.NumField() {
			if r.Type().Field(i).IsExported() {
				parts = append(parts, form(r.Field(i).Interface()))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	}
	return fmt.Sprintf("%v", v)
}
