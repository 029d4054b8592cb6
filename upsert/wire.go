package upsert

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// The text of some types depends on the session (DateStyle, TimeZone, IntervalStyle, bytea_output,
// extra_float_digits), and the form that a driver hands out depends on the driver. What comes back must depend on
// neither: the row is stored by then. So the server gives those types in their binary form, as hexadecimal text, and
// the rest as text.

// senders are the functions that give the binary form of a type.
var senders = map[uint32]string{
	pgtype.Float4OID: "float4send", pgtype.Float8OID: "float8send", pgtype.DateOID: "date_send",
	pgtype.TimestampOID: "timestamp_send", pgtype.TimestamptzOID: "timestamptz_send", pgtype.IntervalOID: "interval_send",
	pgtype.PointOID: "point_send", pgtype.LineOID: "line_send", pgtype.LsegOID: "lseg_send", pgtype.BoxOID: "box_send",
	pgtype.PathOID: "path_send", pgtype.PolygonOID: "poly_send", pgtype.CircleOID: "circle_send",
	pgtype.DaterangeOID: "range_send", pgtype.TsrangeOID: "range_send", pgtype.TstzrangeOID: "range_send",
	pgtype.DatemultirangeOID: "multirange_send", pgtype.TsmultirangeOID: "multirange_send", pgtype.TstzmultirangeOID: "multirange_send",
}

// parts are the types inside of ranges and multiranges.
var parts = map[uint32]uint32{
	pgtype.DaterangeOID: pgtype.DateOID, pgtype.TsrangeOID: pgtype.TimestampOID, pgtype.TstzrangeOID: pgtype.TimestamptzOID,
	pgtype.DatemultirangeOID: pgtype.DaterangeOID, pgtype.TsmultirangeOID: pgtype.TsrangeOID, pgtype.TstzmultirangeOID: pgtype.TstzrangeOID,
}

// sender returns the function that gives the binary form of c, "" where its text is the same in every session.
func (c *column) sender() string {
	switch {
	case c.Elem == 0:
		return senders[c.OID]
	case c.Elem == pgtype.ByteaOID || senders[c.Elem] != "":
		return "array_send"
	}
	return ""
}

// wire returns expr, a value of c, in the form in which it comes back.
func (c *column) wire(expr string) string {
	switch f := c.sender(); {
	case c.OID == pgtype.ByteaOID:
		return "pg_catalog.encode(" + expr + ", 'hex'::pg_catalog.text)"
	case f != "":
		return "pg_catalog.encode(pg_catalog." + f + "(" + expr + "), 'hex'::pg_catalog.text)"
	case c.scalar():
		return expr
	}
	return expr + "::text"
}

// text returns what wire gave as PostgreSQL's text form in a session with the default settings, and UTC.
func (c *column) text(given string) (string, error) {
	if c.OID == pgtype.InetOID {
		// pgx writes out the mask of a single address, and PostgreSQL does not.
		host := "/32"
		if strings.ContainsRune(given, ':') {
			host = "/128"
		}
		return strings.TrimSuffix(given, host), nil
	}
	if c.OID != pgtype.ByteaOID && c.sender() == "" {
		return given, nil
	}
	b, err := hex.DecodeString(given)
	if err != nil {
		return "", errForm
	}
	if c.Elem != 0 {
		r := reader{b: b}
		text := r.array(c.Elem)
		return text, r.err
	}
	return binaryText(c.OID, b)
}

var errForm = errors.New("the server gave it in an unknown form")

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
	case pgtype.DaterangeOID, pgtype.TsrangeOID, pgtype.TstzrangeOID:
		r := reader{b: b}
		return r.span(parts[oid]), r.err
	case pgtype.DatemultirangeOID, pgtype.TsmultirangeOID, pgtype.TstzmultirangeOID:
		r := reader{b: b}
		ranges := make([]string, 0, 4)
		for n := r.int32(); n > 0 && r.err == nil; n-- {
			text, _ := r.value(parts[oid])
			ranges = append(ranges, text)
		}
		return "{" + strings.Join(ranges, ",") + "}", r.err
	}
	if t, ok := m.TypeForOID(oid); ok {
		v, err := t.Codec.DecodeDatabaseSQLValue(m, oid, pgtype.BinaryFormatCode, b)
		if text, ok := v.(string); ok {
			return text, err
		}
	}
	return "", errForm
}

// reader reads the binary form of what is made of other values. After an error it reads zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.err, r.b = errForm, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) int32() int32 {
	if b := r.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// value reads a length and a value of that length; -1 is NULL.
func (r *reader) value(oid uint32) (text string, null bool) {
	n := r.int32()
	if n == -1 || r.err != nil {
		return "", true
	}
	text, err := binaryText(oid, r.bytes(int(n)))
	if err != nil && r.err == nil {
		r.err = err
	}
	return text, false
}

// span reads a range whose bounds are of type oid.
func (r *reader) span(oid uint32) string {
	const empty, lowerIn, upperIn, lowerless, upperless = 1, 2, 4, 8, 16
	flags := byte(empty)
	if b := r.bytes(1); b != nil {
		flags = b[0]
	}
	if flags&empty != 0 {
		return "empty"
	}
	var b strings.Builder
	bound := func(without byte) {
		if flags&without == 0 {
			text, _ := r.value(oid)
			writeItem(&b, text, text == "" || strings.ContainsAny(text, `"\()[], `))
		}
	}
	b.WriteByte("(["[flags&lowerIn/lowerIn])
	bound(lowerless)
	b.WriteByte(',')
	bound(upperless)
	b.WriteByte(")]"[flags&upperIn/upperIn])
	return b.String()
}

// array reads an array whose elements are of type oid. (Where its subscripts begin is not kept: Go's begin at 0.)
func (r *reader) array(oid uint32) string {
	dims := r.int32()
	r.bytes(8) // whether there are NULLs, and the elements' type
	if dims == 0 || dims > 6 {
		return "{}"
	}
	sizes := make([]int32, dims)
	for i := range sizes {
		sizes[i] = r.int32()
		r.bytes(4)
	}
	var b strings.Builder
	r.level(&b, oid, sizes)
	return b.String()
}

func (r *reader) level(b *strings.Builder, oid uint32, sizes []int32) {
	b.WriteByte('{')
	for i := int32(0); i < sizes[0] && r.err == nil; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		if len(sizes) > 1 {
			r.level(b, oid, sizes[1:])
			continue
		}
		text, null := r.value(oid)
		if null {
			b.WriteString("NULL")
			continue
		}
		writeItem(b, text, text == "" || strings.EqualFold(text, "NULL") || strings.ContainsAny(text, "\"\\{}, \t\n\r\v\f"))
	}
	b.WriteByte('}')
}

// shorter leaves out the zeros behind the digits of a second, as PostgreSQL does.
func shorter(text string) string {
	whole, rest, ok := strings.Cut(text, ".")
	if !ok {
		return text
	}
	digits := rest[:6]
	return whole + strings.TrimRight("."+digits, "0") + rest[6:]
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

// writeItem writes a part of an array or a range, in quotes where PostgreSQL puts them.
func writeItem(b *strings.Builder, text string, quoted bool) {
	if quoted {
		writeElement(b, text, false)
		return
	}
	b.WriteString(text)
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
