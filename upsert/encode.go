package upsert

import (
	"database/sql/driver"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// Every value goes to PostgreSQL as text, with a cast in the SQL. One form for all drivers and query modes is what makes
// the same event, sent twice through different ones, equal to itself.

var (
	stringType = reflect.TypeFor[string]()
	intType    = reflect.TypeFor[int]()
	int64Type  = reflect.TypeFor[int64]()
	boolType   = reflect.TypeFor[bool]()
)

// encode returns the text form of v for a column of type oid, elem being the element's type of an array.
func encode(v reflect.Value, oid, elem uint32) (text string, null bool, err error) {
	// The usual types need no look at their methods, and but for strings none at what they have become.
	switch t := v.Type(); {
	case isJSON(oid):
		text, null, err = encodeAny(v, oid, elem)
	case t == stringType:
		text = encodeString(v.String(), oid)
	case t == timeType && v.CanAddr():
		return encodeTime(*v.Addr().Interface().(*time.Time), oid), false, nil
	case t == intType, t == int64Type:
		return strconv.FormatInt(v.Int(), 10), false, nil
	case t == boolType:
		return strconv.FormatBool(v.Bool()), false, nil
	default:
		text, null, err = encodeAny(v, oid, elem)
	}
	if err == nil && !null {
		switch {
		case strings.IndexByte(text, 0) >= 0:
			err = errors.New("it holds a NUL, which PostgreSQL cannot store")
		case !utf8.ValidString(text):
			err = errors.New("it is not UTF-8")
		}
	}
	return text, null, err
}

func encodeAny(v reflect.Value, oid, elem uint32) (string, bool, error) {
	if v.Kind() == reflect.Interface {
		if v.IsNil() {
			return "", true, nil
		}
		return encodeAny(v.Elem(), oid, elem)
	}
	if v.Type() == timeType {
		return encodeTime(v.Interface().(time.Time), oid), false, nil
	}
	if v.CanAddr() && v.Kind() != reflect.Pointer && !v.Type().Implements(valuerType) && !v.Type().Implements(textType) {
		// Methods with a pointer receiver count too (big.Int).
		if p := v.Addr(); p.Type().Implements(valuerType) || p.Type().Implements(textType) {
			return encodeAny(p, oid, elem)
		}
	}
	if v.Type().Implements(valuerType) {
		// As database/sql does: a nil pointer whose Value method has a value receiver is NULL, not a panic.
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return "", true, nil
		}
		val, err := v.Interface().(driver.Valuer).Value()
		if err != nil || val == nil {
			return "", true, err
		}
		if _, again := val.(driver.Valuer); again {
			return "", false, fmt.Errorf("%s.Value returns another driver.Valuer", v.Type())
		}
		return encodeAny(reflect.ValueOf(val), oid, elem)
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "", true, nil
		}
		if !v.Type().Implements(textType) || v.Elem().Type().Implements(textType) {
			return encodeAny(v.Elem(), oid, elem)
		}
	}
	if isJSON(oid) {
		return encodeJSON(v)
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		return string(text), false, err
	}
	return encodeKind(v, oid, elem)
}

func encodeKind(v reflect.Value, oid, elem uint32) (string, bool, error) {
	switch v.Kind() {
	case reflect.String:
		return encodeString(v.String(), oid), false, nil
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), false, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if d, ok := v.Interface().(time.Duration); ok && oid == pgtype.IntervalOID {
			return encodeDuration(d), false, nil
		}
		return strconv.FormatInt(v.Int(), 10), false, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10), false, nil
	case reflect.Float32:
		return encodeFloat(v.Float(), 32), false, nil
	case reflect.Float64:
		return encodeFloat(v.Float(), 64), false, nil
	case reflect.Slice, reflect.Array:
		return encodeSlice(v, oid, elem)
	}
	return "", false, fmt.Errorf("values of type %s cannot be sent; give it a Value method (driver.Valuer)", v.Type())
}

func encodeString(s string, oid uint32) string {
	if oid == pgtype.UUIDOID {
		// One spelling, so that sorting by text is sorting by value.
		return strings.ToLower(s)
	}
	return s
}

func encodeFloat(f float64, bits int) string {
	s := strconv.FormatFloat(f, 'g', -1, bits)
	return strings.TrimPrefix(strings.Replace(s, "Inf", "Infinity", 1), "+")
}

// encodeDuration writes d as an interval. Not as a number of microseconds: PostgreSQL 14 takes no more than 35 minutes of them.
func encodeDuration(d time.Duration) string {
	us, sign := d.Microseconds(), ""
	if us < 0 {
		us, sign = -us, "-"
	}
	return fmt.Sprintf("%s%d:%02d:%02d.%06d", sign, us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
}

const (
	day    = "-01-02"
	moment = "-01-02 15:04:05.999999"
)

// encodeTime cuts to the microsecond that PostgreSQL keeps: pgx cuts as well, lib/pq lets the server round, and the same
// event through both would conflict with itself.
func encodeTime(t time.Time, oid uint32) string {
	switch oid {
	case pgtype.DateOID: // a day is meant, so the zone that the value carries counts
		return yearly(t, day, "")
	case pgtype.TimeOID:
		return t.Truncate(time.Microsecond).Format("15:04:05.999999")
	case pgtype.TimetzOID:
		return t.Truncate(time.Microsecond).Format("15:04:05.999999Z07:00")
	case pgtype.TimestampOID:
		return yearly(t.UTC().Truncate(time.Microsecond), moment, "")
	}
	return yearly(t.UTC().Truncate(time.Microsecond), moment, "+00")
}

// yearly formats t, in front of zone, with a year as PostgreSQL reads it: there is no year 0, and years before it are BC. layout
// begins after the year.
func yearly(t time.Time, layout, zone string) string {
	year, month, dom := t.Date()
	if year < 1000 || year > 9999 {
		era := ""
		if year <= 0 {
			year, era = 1-year, " BC"
		}
		return fmt.Sprintf("%04d", year) + t.Format(layout) + zone + era
	}
	// By hand, as it is a quarter of the work for a row that has one.
	var buf [40]byte
	two := func(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }
	b := two(two(buf[:0], year/100), year%100)
	b = two(append(two(append(b, '-'), int(month)), '-'), dom)
	if layout == moment {
		hour, minute, second := t.Clock()
		b = two(append(two(append(two(append(b, ' '), hour), ':'), minute), ':'), second)
		if us := t.Nanosecond() / 1000; us > 0 {
			b = two(two(two(append(b, '.'), us/10000), us/100%100), us%100)
		}
	}
	return string(append(b, zone...))
}

func isJSON(oid uint32) bool { return oid == pgtype.JSONOID || oid == pgtype.JSONBOID }

// encodeJSON takes strings and bytes for JSON as it stands, and marshals everything else.
func encodeJSON(v reflect.Value) (string, bool, error) {
	switch {
	case v.Kind() == reflect.String:
		return v.String(), false, nil
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.IsNil():
		return "", true, nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return string(v.Bytes()), false, nil
	}
	b, err := json.Marshal(v.Interface())
	return string(b), false, err
}

func encodeSlice(v reflect.Value, oid, elem uint32) (string, bool, error) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		return "", true, nil
	}
	if v.Type().Elem().Kind() == reflect.Uint8 && elem == 0 {
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		switch {
		case oid == pgtype.ByteaOID:
			return `\x` + hex.EncodeToString(b), false, nil
		case oid == pgtype.UUIDOID && len(b) == 16:
			h := hex.EncodeToString(b)
			return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], false, nil
		}
		return string(b), false, nil
	}
	if elem == 0 {
		return "", false, fmt.Errorf("a %s fits an array column only", v.Type())
	}
	var b strings.Builder
	b.WriteByte('{')
	for i := range v.Len() {
		if i > 0 {
			b.WriteByte(',')
		}
		item := v.Index(i)
		nested := item.Kind() == reflect.Slice && item.Type().Elem().Kind() != reflect.Uint8 && !item.Type().Implements(valuerType)
		inner := uint32(0)
		if nested {
			inner = elem
		}
		text, null, err := encodeAny(item, elem, inner)
		switch {
		case err != nil:
			return "", false, err
		case nested && !null:
			b.WriteString(text)
		default:
			writeElement(&b, text, null)
		}
	}
	b.WriteByte('}')
	return b.String(), false, nil
}

// writeElement writes one element of an array literal.
func writeElement(b *strings.Builder, text string, null bool) {
	if null {
		b.WriteString("NULL")
		return
	}
	b.WriteByte('"')
	for {
		i := 0
		for i < len(text) && text[i] != '"' && text[i] != '\\' {
			i++
		}
		if i == len(text) {
			break
		}
		b.WriteString(text[:i])
		b.WriteByte('\\')
		b.WriteByte(text[i])
		text = text[i+1:]
	}
	b.WriteString(text)
	b.WriteByte('"')
}
