package upsert

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// binaryText turns the binary form of a value into its text.
func binaryText(oid uint32, b []byte) (string, error) {
	m := pgtype.NewMap()
	switch oid {
	case pgtype.ByteaOID:
		return `\x` + hex.EncodeToString(b), nil
	case pgtype.Float4OID:
		if len(b) == 4 {
			return floatText(float64(math.Float32frombits(binary.BigEndian.Uint32(b))), 32), nil
		}
	case pgtype.Float8OID:
		if len(b) == 8 {
			return floatText(math.Float64frombits(binary.BigEndian.Uint64(b)), 64), nil
		}
	case pgtype.DateOID:
		var d pgtype.Date
		err := m.Scan(oid, pgtype.BinaryFormatCode, b, &d)
		if d.InfinityModifier != pgtype.Finite {
			return d.InfinityModifier.String(), err
		}
		return encodeTime(d.Time, oid), err
	case pgtype.TimestampOID:
		var t pgtype.Timestamp
		err := m.Scan(oid, pgtype.BinaryFormatCode, b, &t)
		if t.InfinityModifier != pgtype.Finite {
			return t.InfinityModifier.String(), err
		}
		return shorter(encodeTime(t.Time, oid)), err
	case pgtype.TimestamptzOID:
		var t pgtype.Timestamptz
		err := m.Scan(oid, pgtype.BinaryFormatCode, b, &t)
		if t.InfinityModifier != pgtype.Finite {
			return t.InfinityModifier.String(), err
		}
		return shorter(encodeTime(t.Time, oid)), err
	case pgtype.IntervalOID:
		var i pgtype.Interval
		err := m.Scan(oid, pgtype.BinaryFormatCode, b, &i)
		return intervalText(i), err
	case pgtype.TimetzOID:
		return timetzText(b)
	case pgtype.QCharOID:
		return strings.TrimSuffix(string(b), "\x00"), nil
	case pgtype.JSONBOID:
		if len(b) > 0 {
			return string(b[1:]), nil // behind the number of its version
		}
	case pgtype.PointOID, pgtype.LineOID, pgtype.LsegOID, pgtype.BoxOID, pgtype.PathOID, pgtype.PolygonOID,
		pgtype.CircleOID:
		return shapeText(oid, b)
	case moneyOID:
		if len(b) == 8 {
			return moneyText(int64(binary.BigEndian.Uint64(b))), nil
		}
	}
	if t, ok := m.TypeForOID(oid); ok {
		v, err := t.Codec.DecodeDatabaseSQLValue(m, oid, pgtype.BinaryFormatCode, b)
		switch v := v.(type) {
		case string:
			switch oid {
			case pgtype.TimeOID:
				v = shorter(v)
			case pgtype.InetOID:
				v = withoutHost(v)
			}
			return v, err
		case []byte:
			return string(v), err
		case int64:
			return strconv.FormatInt(v, 10), err
		case bool:
			return strconv.FormatBool(v)[:1], err
		}
	}
	return "", errForm
}

// shorter leaves out the zeros behind the digits of a second, as PostgreSQL does.
func shorter(text string) string {
	whole, rest, ok := strings.Cut(text, ".")
	if !ok {
		return text
	}
	digits := rest[:6]
	return whole + strings.TrimRight(strings.TrimRight("."+digits, "0"), ".") + rest[6:]
}

// infiniteIntervals is the server_version_num from which an interval can be infinite. Before, the same bytes are the
// least and the greatest of them.
const infiniteIntervals = 170000

// forever is the binary form of an infinite interval, as pgx reads it.
var forever = map[string]pgtype.Interval{
	"infinity":  {Microseconds: math.MaxInt64, Days: math.MaxInt32, Months: math.MaxInt32, Valid: true},
	"-infinity": {Microseconds: math.MinInt64, Days: math.MinInt32, Months: math.MinInt32, Valid: true},
}

// infinityText writes an interval that is infinite, and nothing for the others.
func infinityText(b []byte) string {
	var i pgtype.Interval
	if pgtype.NewMap().Scan(pgtype.IntervalOID, pgtype.BinaryFormatCode, b, &i) == nil {
		for text, infinite := range forever {
			if i == infinite {
				return text
			}
		}
	}
	return ""
}

// intervalText writes i as PostgreSQL does by default.
func intervalText(i pgtype.Interval) string {
	var b strings.Builder
	negative := false // whether the part before was, so that a positive one needs its sign
	sign := func(minus bool) string {
		plus := negative
		negative = minus
		switch {
		case minus:
			return "-"
		case plus:
			return "+"
		}
		return ""
	}
	part := func(n int32, unit string) {
		if n == 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(sign(n < 0))
		fmt.Fprintf(&b, "%d %s", max(int64(n), -int64(n)), unit)
		if n != 1 {
			b.WriteByte('s')
		}
	}
	part(i.Months/12, "year")
	part(i.Months%12, "mon")
	part(i.Days, "day")
	if us := i.Microseconds; us != 0 || b.Len() == 0 {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(sign(us < 0))
		left := uint64(us)
		if us < 0 {
			left = -left
		}
		clock := fmt.Sprintf("%02d:%02d:%02d", left/3_600_000_000, left/60_000_000%60, left/1_000_000%60)
		if us := left % 1_000_000; us > 0 {
			clock = shorter(fmt.Sprintf("%s.%06d", clock, us))
		}
		b.WriteString(clock)
	}
	return b.String()
}

// blanks are what PostgreSQL takes for white space.
const blanks = " \t\n\r\v\f"

// delimiter is what stands between the elements of an array.
func (r *reader) delimiter(elem uint32) string {
	if elem == pgtype.BoxOID {
		return ";"
	}
	return ","
}

// writeItem writes a part of an array, in quotes where PostgreSQL puts them.
func writeItem(b *strings.Builder, text string, quoted bool) {
	if quoted {
		writeElement(b, text, false)
		return
	}
	b.WriteString(text)
}

// writeDoubled writes a part of a row or a range, in quotes where it is empty or holds one of special, and with what
// has a meaning there doubled.
func writeDoubled(b *strings.Builder, text, special string) {
	if text != "" && !strings.ContainsAny(text, `"\`+blanks+special) {
		b.WriteString(text)
		return
	}
	b.WriteString(`"` + strings.NewReplacer(`"`, `""`, `\`, `\\`).Replace(text) + `"`)
}

// floatText writes f as PostgreSQL does.
func floatText(f float64, bits int) string {
	text := strconv.FormatFloat(f, 'e', -1, bits)
	_, exponent, ok := strings.Cut(text, "e")
	if !ok {
		return encodeFloat(f, bits)
	}
	digits := 15
	if bits == 32 {
		digits = 6
	}
	if n, _ := strconv.Atoi(exponent); n >= -4 && n < digits {
		return strconv.FormatFloat(f, 'f', -1, bits)
	}
	return text
}

// moneyText writes an amount as PostgreSQL does where lc_monetary is C.
func moneyText(cents int64) string {
	n, sign := uint64(cents), ""
	if cents < 0 {
		n, sign = -n, "-"
	}
	whole := strconv.FormatUint(n/100, 10)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return fmt.Sprintf("%s$%s.%02d", sign, whole, n%100)
}

// timetzText writes a time of day with its zone.
func timetzText(b []byte) (string, error) {
	if len(b) != 12 {
		return "", errForm
	}
	var t pgtype.Time
	err := pgtype.NewMap().Scan(pgtype.TimeOID, pgtype.BinaryFormatCode, b[:8], &t)
	us := t.Microseconds
	clock := shorter(fmt.Sprintf("%02d:%02d:%02d.%06d", us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000))
	west := int32(binary.BigEndian.Uint32(b[8:]))
	sign, east := "+", -west
	if west > 0 {
		sign, east = "-", west
	}
	zone := fmt.Sprintf("%s%02d", sign, east/3600)
	if east%3600 != 0 {
		zone += fmt.Sprintf(":%02d", east/60%60)
	}
	if east%60 != 0 {
		zone += fmt.Sprintf(":%02d", east%60)
	}
	return clock + zone, err
}

// shapeText writes a geometric type.
func shapeText(oid uint32, b []byte) (string, error) {
	open, end := "(", ")"
	switch {
	case oid == pgtype.PathOID && len(b) > 5:
		if b[0] == 0 {
			open, end = "[", "]"
		}
		b = b[5:]
	case oid == pgtype.PolygonOID && len(b) > 4:
		b = b[4:]
	}
	if len(b)%8 != 0 {
		return "", errForm
	}
	var n, points []string
	for i := 0; i < len(b); i += 8 {
		n = append(n, floatText(math.Float64frombits(binary.BigEndian.Uint64(b[i:])), 64))
		if len(n)%2 == 0 {
			points = append(points, "("+n[len(n)-2]+","+n[len(n)-1]+")")
		}
	}
	all := strings.Join(points, ",")
	switch {
	case oid == pgtype.LineOID && len(n) == 3:
		return "{" + strings.Join(n, ",") + "}", nil
	case oid == pgtype.CircleOID && len(n) == 3:
		return "<" + all + "," + n[2] + ">", nil
	case oid == pgtype.LsegOID && len(n) == 4:
		return "[" + all + "]", nil
	case oid == pgtype.BoxOID && len(n) == 4, oid == pgtype.PointOID && len(n) == 2:
		return all, nil
	case oid == pgtype.PathOID || oid == pgtype.PolygonOID:
		return open + all + end, nil
	}
	return "", errForm
}
