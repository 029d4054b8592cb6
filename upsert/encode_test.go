package upsert

import (
	"errors"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

func TestEncodeTime(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("", 2*3600)
	at := time.Date(2026, 3, 1, 0, 30, 0, 123_456_789, east)
	for oid, want := range map[uint32]string{
		pgtype.TimestamptzOID: "2026-02-28 22:30:00.123456+00",
		pgtype.TimestampOID:   "2026-03-01 00:30:00.123456", // what the clock shows
		pgtype.DateOID:        "2026-03-01",                 // the day that the value names
		pgtype.TimeOID:        "00:30:00.123456",
	} {
		require.Equal(t, want, encodeTime(at, oid))
	}
	require.Equal(t, "0044-03-15 00:00:00+00 BC",
		encodeTime(time.Date(-43, 3, 15, 0, 0, 0, 0, time.UTC), pgtype.TimestamptzOID))
	require.Equal(t, "10000-01-01 00:00:00+00",
		encodeTime(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), pgtype.TimestamptzOID))
	require.Equal(t, "0987-01-01 00:00:00+00",
		encodeTime(time.Date(987, 1, 1, 0, 0, 0, 0, time.UTC), pgtype.TimestamptzOID))
}

func TestEncodeValues(t *testing.T) {
	t.Parallel()
	var none *int
	n := 7
	for _, tt := range []struct {
		in        any
		oid, elem uint32
		want      string
		null      bool
	}{
		{&n, pgtype.Int4OID, 0, "7", false},
		{none, pgtype.Int4OID, 0, "", true},
		{uint64(1<<64 - 1), pgtype.NumericOID, 0, "18446744073709551615", false},
		{big.NewInt(-12), pgtype.NumericOID, 0, "-12", false},
		{float32(0.1), pgtype.Float4OID, 0, "0.1", false},
		{time.Duration(1_500_000_000), pgtype.IntervalOID, 0, "0:00:01.500000", false},
		{-100*time.Hour - 2*time.Minute - 3*time.Microsecond, pgtype.IntervalOID, 0, "-100:02:00.000003", false},
		{[]byte(nil), pgtype.ByteaOID, 0, "", true},
		{[]byte{}, pgtype.ByteaOID, 0, `\x`, false},
		{"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", pgtype.UUIDOID, 0, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", false},
		{map[string]int{"a": 1}, pgtype.JSONBOID, 0, `{"a":1}`, false},
		{map[string]int(nil), pgtype.JSONBOID, 0, "", true},
		{`{"a":1}`, pgtype.JSONOID, 0, `{"a":1}`, false},
		{[]string(nil), pgtype.TextArrayOID, pgtype.TextOID, "", true},
		{[]string{`a"b\c`, "", "NULL"}, pgtype.TextArrayOID, pgtype.TextOID, `{"a\"b\\c","","NULL"}`, false},
		{[][]int{{1}, {2}}, pgtype.Int4ArrayOID, pgtype.Int4OID, `{{"1"},{"2"}}`, false},
		{[][]byte{{1}, nil}, pgtype.ByteaArrayOID, pgtype.ByteaOID, `{"\\x01",NULL}`, false},
	} {
		text, null, err := encode(reflect.ValueOf(tt.in), tt.oid, tt.elem)
		require.NoError(t, err, "%v", tt.in)
		require.Equal(t, tt.want, text, "%v", tt.in)
		require.Equal(t, tt.null, null, "%v", tt.in)
	}
}

func TestCompareDecimal(t *testing.T) {
	t.Parallel()
	ordered := [][]string{
		{"-10", "-010.0"},
		{"-9.5"},
		{"-9"},
		{"-0.1"},
		{"0", "-0", "+0.00", "00"},
		{"0.05"},
		{"0.5", ".50"},
		{"1", "1.0", "01", "+1"},
		{"9"},
		{"10"},
		{"100.01"},
	}
	for i, as := range ordered {
		for j, bs := range ordered {
			for _, a := range as {
				for _, b := range bs {
					want := 0
					if i < j {
						want = -1
					} else if i > j {
						want = 1
					}
					got := compareDecimal(a, b)
					require.Equal(t, want, sign(got), "%s and %s", a, b)
				}
			}
		}
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// Rows of one key keep the order in which they came, also where they go into several statements.
func TestSortedKeepsArrival(t *testing.T) {
	t.Parallel()
	s := store{columns: 1}
	for i := range 5000 {
		s.add([]value{{text: strconv.Itoa(i * 7919 % 5)}}, i)
	}
	rows := s.sorted(order{columns: []keyOrder{{compare: strings.Compare}}})
	require.Len(t, rows, 5000)
	for n, i := range rows[1:] {
		a, b := s.row(rows[n]), s.row(i)
		require.True(t, a.cells[0] < b.cells[0] || a.cells[0] == b.cells[0] && a.pos < b.pos)
	}
}

func TestIdentifiers(t *testing.T) {
	t.Parallel()
	names, err := identifiers(`Lower(email) || "Odd ""Name""" = 'it''s; -- no $1' AND a_1 IS NULL`)
	require.NoError(t, err)
	require.Equal(t, []string{"lower", "email", `Odd "Name"`, "and", "a_1", "is", "null"}, names)
	for _, bad := range []string{"a; b", "a -- b", "a /* b", "$1", "$$a$$", "(a", "a)", "'a", `"a`, "a\x00", `E'\''`} {
		_, err := identifiers(bad)
		require.Error(t, err, bad)
	}
}

// FuzzElement reads back what writeElement has written, by PostgreSQL's rules for array literals.
func FuzzElement(f *testing.F) {
	for _, s := range []string{"", "a", `"`, `\`, `\"`, "{},NULL", "ü\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		writeElement(&b, s, false)
		got, err := unquote(b.String())
		require.NoError(t, err)
		require.Equal(t, s, got)
	})
}

func unquote(s string) (string, error) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", errors.New("not quoted")
	}
	var b strings.Builder
	for i := 1; i < len(s)-1; i++ {
		switch s[i] {
		case '"':
			return "", errors.New("closed before its end")
		case '\\':
			if i++; i == len(s)-1 {
				return "", errors.New("its end is escaped")
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), nil
}

// FuzzIdentifiers holds that what is let through cannot leave the parentheses that it is put into.
func FuzzIdentifiers(f *testing.F) {
	f.Add("lower(email)")
	f.Add(`a = 'x' AND ("b" IS NULL)`)
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := identifiers(s); err != nil {
			return
		}
		_, err := identifiers("(" + s + ")")
		require.NoError(t, err)
	})
}
