package upsert_test

import (
	"database/sql"
	"encoding/json"
	"log/slog"
	"math"
	"math/big"
	"net"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// moreSamples are those of types that are less usual, and of values at the ends of what types hold.
func moreSamples() []sample {
	west := time.Date(2026, 7, 1, 23, 59, 59, 999_999_000, time.FixedZone("", -5*3600))
	_, cidr, _ := net.ParseCIDR("10.1.0.0/16")
	mac := must(net.ParseMAC("08:00:2b:01:02:03"))
	uuid := [16]byte{1, 2, 3, 15: 255}
	one, three := pgtype.Int4{Int32: 1, Valid: true}, pgtype.Int4{Int32: 3, Valid: true}
	span := pgtype.Range[pgtype.Int4]{
		Lower: one, Upper: three, LowerType: pgtype.Inclusive, UpperType: pgtype.Exclusive,
		Valid: true,
	}
	big18, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	vec := func(xy ...float64) (v []pgtype.Vec2) {
		for i := 0; i < len(xy); i += 2 {
			v = append(v, pgtype.Vec2{X: xy[i], Y: xy[i+1]})
		}
		return v
	}
	return []sample{
		given("NaN"), given("-Infinity"), given("infinity"), given("\\xdeadbeef"), given(`a\000b`), given("1e3"),
		given(" 7 "), given("t"), given("12:30:00"),
		given("12:30:00+02"), given("08:00:2b:01:02:03"), given(`"a"=>"1", "b"=>NULL`), given("{a,b}"), given(`{"(1,x)"}`),
		given("{[1,3),[5,7)}"),
		given(`("2026-03-01 12:00:00+02",0.1,"\\x00ff","a ""b""")`), given("[0.1,0.30000000000000004)"),
		given("$.a[*] ? (@ > 1)"), given("'fat' & 'cat'"),
		given("16/B374D848"), given("1,234.50"), given("(1,2),(3,4)"), given("2026-03-01T12:00:00Z"),
		given(`{"2026-03-01 12:00:00.123456+00",NULL}`),
		given(`{0.1,0.30000000000000004}`), given("   "), given("a  "),
		given(switched(true)), given(rate(0.1)), given(cents(1250)), given(ptr(namedString("calm"))), given(ptr(cents(7))),
		given(json.Number("12.50")), given(slog.LevelWarn),
		given(uint8(7)), given(int16(-7)), given(uint16(7)), given(uint32(1<<32 - 1)), given(int64(math.MaxInt64)),
		given(int64(math.MinInt64)), given(uint(7)), given(rune('x')),
		given(math.NaN()), given(math.Inf(-1)), given(math.Copysign(0, -1)), given(float32(16777216)), given(0.1 + 0.2),
		given(ptr(0.1 + 0.2)), given(math.MaxFloat64), given(5e-324),
		given(*big18), given(big18), given((*big.Int)(nil)), given(big.NewRat(1, 3)), given(*big.NewFloat(0.1)),
		given(dec("12.50")), given(ptr(dec("-0.01"))), given((*amount)(nil)),
		given(time.Time{}), given(west), given(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)),
		given(time.Date(99, 1, 2, 3, 4, 5, 0, time.UTC)), given([]time.Time{west, {}}), given([]*time.Time{&west, nil}),
		given(time.March), given(2*time.Hour + 3*time.Nanosecond), given([]time.Duration{time.Hour, -time.Minute}),
		given(ptr(time.Hour)), given([]namedTime{namedTime(west)}), given([]stamp{{west}}),
		given(mac), given([]net.HardwareAddr{mac}), given(cidr), given(ptr(net.ParseIP("10.0.0.1"))),
		given([]net.IP{net.ParseIP("10.0.0.1")}), given([]netip.Addr{netip.MustParseAddr("10.0.0.1")}),
		given(netip.Addr{}), given(netip.MustParseAddr("fe80::1%eth0")), given(netip.Prefix{}), given(id128(uuid)),
		given(ptr(id128(uuid))), given([]id128{uuid}), given([][16]byte{uuid}), given(ptr(uuid)),
		given([3]byte{1, 2, 3}), given(ptr([]byte{0, 255})), given(sql.RawBytes("abc")), given([]namedBytes{{0}, nil}),
		given([][]string{{"a"}, {"b"}}), given(ragged), given([][]string{}),
		given([]switched{true}), given([]float32{0.1}), given([]rate{0.1}), given([]any{1, "x", nil}),
		given([]*int{ptr(1), nil}), given(ptr([]string{"a"})), given([]sql.NullString{{String: "a", Valid: true}, {}}),
		given([]sql.NullTime{{Time: west, Valid: true}, {}}), given([]amount{dec("1.5")}),
		given([]json.RawMessage{[]byte(`{"a":1}`)}), given([]*big.Int{big18}), given([]big.Int{*big18}),
		given([]level{{3}}), given([]grade{"a"}),
		given([]map[string]any{{"a": 1.0}}), given(map[string]string{"a": "1"}),
		given(map[string]*string{"a": nil, "b": ptr("x")}), given(map[string]any(nil)), given(doc{A: 1}),
		given(&doc{B: []string{"x"}}), given((*doc)(nil)), given([]doc{{A: 1}}),
		given(json.RawMessage(nil)), given(json.RawMessage("null")), given(ptr(json.RawMessage(`[1]`))),
		given([]float64{math.NaN(), math.Inf(1), 0.1 + 0.2}),
		given(sql.NullInt16{Int16: 7, Valid: true}), given(sql.NullInt32{Int32: 7, Valid: true}),
		given(sql.NullInt64{Int64: 7, Valid: true}), given(sql.NullFloat64{Float64: 0.1, Valid: true}),
		given(sql.NullByte{Byte: 7, Valid: true}),
		given(sql.NullBool{Bool: true, Valid: true}), given(sql.NullString{}),
		given(sql.Null[time.Time]{V: west, Valid: true}), given(sql.Null[[]byte]{V: []byte{0, 255}, Valid: true}),
		given(sql.Null[namedString]{V: "calm", Valid: true}),
		given(pgtype.Bool{Bool: true, Valid: true}), given(pgtype.Int2{Int16: 7, Valid: true}),
		given(pgtype.Int4{Int32: 7, Valid: true}), given(pgtype.Float4{Float32: 0.1, Valid: true}),
		given(pgtype.Float8{Float64: 0.1, Valid: true}),
		given(pgtype.Text{}), given(&pgtype.Text{String: "abc", Valid: true}), given(pgtype.Int8{}),
		given(pgtype.Timestamptz{}), given(pgtype.Interval{}), given(pgtype.Numeric{NaN: true, Valid: true}),
		given(pgtype.Numeric{InfinityModifier: pgtype.Infinity, Valid: true}), given(must(numeric("0.001"))),
		given(must(numeric("123456789012345678901234567890.5"))), given(pgtype.Numeric{}),
		given([]pgtype.Numeric{must(numeric("1.50"))}),
		given(pgtype.Date{InfinityModifier: pgtype.NegativeInfinity, Valid: true}),
		given(pgtype.Timestamp{InfinityModifier: pgtype.Infinity, Valid: true}),
		given([]pgtype.Timestamptz{{Time: west, Valid: true}, {}}), given([]pgtype.Date{{Time: west, Valid: true}}),
		given([]pgtype.Interval{{Months: -1, Days: 2, Microseconds: -1, Valid: true}}),
		given(pgtype.Interval{Months: 14, Days: -3, Microseconds: 1, Valid: true}),
		given(pgtype.Interval{Months: math.MaxInt32, Days: math.MaxInt32, Microseconds: math.MaxInt64, Valid: true}),
		given([]pgtype.Text{{String: "a", Valid: true}, {}}),
		given(pgtype.Hstore{"a": ptr("1"), "b": nil}), given(pgtype.Uint32{Uint32: 7, Valid: true}),
		given(pgtype.Uint64{Uint64: 7, Valid: true}), given(pgtype.TID{BlockNumber: 1, OffsetNumber: 2, Valid: true}),
		given(pgtype.Line{A: 1, B: 2, C: 0.1, Valid: true}),
		given(pgtype.Lseg{P: [2]pgtype.Vec2{{X: 1, Y: 2}, {X: 3, Y: 0.1}}, Valid: true}),
		given(pgtype.Box{P: [2]pgtype.Vec2{{X: 3, Y: 4}, {X: 1, Y: 0.1}}, Valid: true}),
		given(pgtype.Path{P: vec(1, 2, 3, 0.1), Closed: true, Valid: true}),
		given(pgtype.Polygon{P: vec(1, 2, 3, 4, 5, 0.1), Valid: true}),
		given(pgtype.Circle{P: pgtype.Vec2{X: 1, Y: 2}, R: 0.1, Valid: true}),
		given([]pgtype.Point{{P: pgtype.Vec2{X: 0.1, Y: 2}, Valid: true}, {}}), given([]pgtype.Range[pgtype.Int4]{span}),
		given(pgtype.Multirange[pgtype.Range[pgtype.Int4]]{span}), given(pgtype.FlatArray[string]{"a", "b"}),
		given(pgtype.Array[int32]{
			Elements: []int32{1, 2}, Dims: []pgtype.ArrayDimension{{Length: 2, LowerBound: 1}},
			Valid: true,
		}), given([]pgtype.UUID{{Bytes: uuid, Valid: true}, {}}),
		given(pgtype.TSVector{Lexemes: []pgtype.TSVectorLexeme{{Word: "cat"}}, Valid: true}),
		given(pgtype.Range[pgtype.Float8]{
			Lower: pgtype.Float8{Float64: 0.1, Valid: true}, LowerType: pgtype.Inclusive,
			UpperType: pgtype.Unbounded, Valid: true,
		}),
		given(complex(1, 2)), given(func() {}), given(struct{}{}), given[any](1.5), given[any](true), given[any]([]byte{1}),
		given[any]([]int{1}), given[any](map[string]any{"a": 1.0}), given[*any](nil), given[error](nil),
	}
}

var ragged = [][]string{{"a"}, {"b", "c"}}
