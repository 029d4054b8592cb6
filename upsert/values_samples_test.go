package upsert_test

import (
	"database/sql"
	"encoding/json"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// samples are those of usual types.
func samples() []sample {
	east := time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 2*3600))
	_, cidr, _ := net.ParseCIDR("10.1.0.0/16")
	uuid := [16]byte{1, 2, 3, 15: 255}
	return []sample{
		given("7"), given("abc"), given(""), given("calm"), given("2026-03-01 12:00:00.5"), given("10.0.0.1"), given("[1,3)"),
		given("-1 mon 2 days"), given(`{"a": 1}`), given("$12.30"), given("01020300-0000-0000-0000-0000000000ff"),
		given("101"),
		given("<a>b</a>"), given("(7,x)"), given("{1,NULL}"), given("12.50"), given("'\"\\,{}\n ü"),
		given(namedString("calm")), given(namedString("7")), given(ptr("abc")), given((*string)(nil)),
		given(7), given(int8(-7)), given(uint64(1 << 63)), given(namedInt(7)), given(ptr(int32(7))), given((*int)(nil)),
		given(true), given(ptr(false)), given(1.5), given(float32(0.1)), given(1e300), given(7.0),
		given([]byte("abc")), given([]byte{}), given([]byte(nil)), given([]byte{0, 1, 255}), given(uuid[:]), given(uuid),
		given([4]byte{1, 2, 3, 4}),
		given(namedBytes{0, 255}), given(json.RawMessage(`{"b": 1,  "a": 2}`)), given(map[string]any{"k": 1.5}),
		given([]any{"x", nil}),
		given(east), given(&east), given((*time.Time)(nil)), given(namedTime(east)), given(stamp{east}),
		given(time.Date(-43, 3, 15, 0, 0, 0, 0, time.UTC)), given(90 * time.Minute), given(-90 * time.Minute),
		given(*big.NewInt(-12)), given(big.NewInt(12)), given(*big.NewRat(3, 2)), given(big.NewRat(3, 1)),
		given(big.NewFloat(1.5)),
		given(level{3}), given(&level{3}), given(grade("a")), given(oneWay(1)),
		given(net.ParseIP("10.0.0.1")), given(net.IP(nil)), given(net.ParseIP("2001:db8::1")), given(*cidr),
		given(netip.MustParseAddr("10.0.0.1")),
		given(netip.MustParsePrefix("10.1.0.0/16")), given(netip.MustParsePrefix("10.0.0.1/32")),
		given([]string{"calm", "NULL", `a"b\`}), given([]string{}), given([]*string{ptr("x"), nil}),
		given([]namedString{"calm", "angry"}),
		given([]int{1, 2}), given([]namedInt{1}), given([][]int32{{1, 2}, {3, 4}}), given([2]int{1, 2}),
		given([]time.Time{east}), given([]float64{0.1, 1e300}),
		given([]bool{true}), given([][]byte{{0, 255}, nil}), given([]string(nil)),
		given([]sql.NullInt64{{Int64: 1, Valid: true}, {}}),
		given(sql.NullString{String: "abc", Valid: true}), given(sql.NullTime{Time: east, Valid: true}),
		given(sql.Null[int]{V: 7, Valid: true}),
		given(sql.NullBool{}), given(pgtype.Text{String: "abc", Valid: true}), given(pgtype.Int8{Int64: 7, Valid: true}),
		given(must(numeric("12.50"))), given(pgtype.Timestamptz{Time: east, Valid: true}),
		given(pgtype.Timestamp{Time: east, Valid: true}),
		given(pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}),
		given(pgtype.Date{Time: east, Valid: true}),
		given(pgtype.Interval{Months: -1, Days: 2, Microseconds: 3_600_000_000, Valid: true}),
		given(pgtype.UUID{Bytes: uuid, Valid: true}),
		given(pgtype.Time{Microseconds: 86_400_000_000, Valid: true}),
		given(pgtype.Bits{Bytes: []byte{0xA0}, Len: 3, Valid: true}),
		given(pgtype.Point{P: pgtype.Vec2{X: 0.1, Y: 1e300}, Valid: true}),
		given(pgtype.Range[pgtype.Timestamptz]{
			Lower: pgtype.Timestamptz{Time: east.Truncate(time.Microsecond), Valid: true}, LowerType: pgtype.Inclusive,
			UpperType: pgtype.Unbounded, Valid: true,
		}),
		given(pgtype.Range[pgtype.Int4]{
			Lower: pgtype.Int4{Int32: 1, Valid: true}, Upper: pgtype.Int4{Int32: 3, Valid: true}, LowerType: pgtype.Inclusive,
			UpperType: pgtype.Exclusive, Valid: true,
		}),
		given(struct{ A int }{1}), given[any](7), given[any]("abc"), given[any](east), given[any](nil),
	}
}

func numeric(s string) (n pgtype.Numeric, err error) { return n, n.Scan(s) }

// columnTypes are PostgreSQL's own, and what is made of them.
var columnTypes = []string{
	"text", "varchar(60)", "char(40)", "bpchar", "name", `"char"`, "int2", "int4", "int8", "oid", "numeric",
	"numeric(10,2)", "float4", "float8", "bool", "bytea", "uuid", "json", "jsonb",
	"date", "time", "time(0)", "timetz", "timestamp", "timestamptz", "timestamptz(3)", "interval", "interval(0)", "inet",
	"cidr", "macaddr", "macaddr8", "money", "xml", "bit(3)", "varbit",
	"point", "line", "lseg", "box", "path", "polygon", "circle", "jsonpath", "tsvector", "tsquery", "pg_lsn", "xid",
	"xid8", "tid", "regclass", "citext", "hstore",
	"int4range", "numrange", "daterange", "tsrange", "tstzrange", "floatrange", "int4multirange", "tsmultirange",
	"floatmultirange",
	"mood", "positive", "moment", "tags", "moments", "pair", "event", "nested", "visits",
	"text[]", "varchar(60)[]", "char(3)[]", "name[]", "int4[]", "int8[]", "numeric[]", "numeric(6,1)[]", "float4[]",
	"float8[]", "bool[]", "bytea[]", "uuid[]", "json[]", "jsonb[]", "date[]", "time[]",
	"timestamp[]", "timestamptz[]", "interval[]", "inet[]", "money[]", "xml[]", "point[]", "box[]", "mood[]",
	"positive[]", "moment[]", "pair[]", "event[]", "tstzrange[]", "floatrange[]", "citext[]", "hstore[]",
}

// commonTypes are those that every run tries.
var commonTypes = []string{"text", "numeric(10,2)", "bytea", "jsonb", "uuid", "timestamp", "interval", "text[]"}

// typicalTypes are those that every full run tries.
var typicalTypes = []string{
	"text", "int4", "numeric(10,2)", "float8", "bytea", "jsonb", "uuid", "timestamp", "timestamptz", "interval", "inet",
	"macaddr", "money",
	"tstzrange", "floatrange", "mood", "moments", "event", "nested", "text[]", "float8[]", "moment[]", "event[]", "hstore",
}

// valueTypes makes those that are not there from the beginning.
const valueTypes = `CREATE TYPE mood AS ENUM ('calm', 'angry');
	CREATE DOMAIN positive AS numeric(8,2) CHECK (VALUE > 0);
	CREATE DOMAIN moment AS timestamptz;
	CREATE DOMAIN tags AS text[];
	CREATE DOMAIN moments AS moment[];
	CREATE TYPE pair AS (a int, b text);
	CREATE TYPE event AS (at moment, f float8, b bytea, note text);
	CREATE TYPE nested AS (e event, all_of event[], r tstzrange);
	CREATE TYPE floatrange AS RANGE (subtype = float8, multirange_type_name = floatmultirange);
	CREATE DOMAIN visits AS event[]`
