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

// Every value goes to PostgreSQL as text, with a cast in the SQL. One form for all drivers and query modes is what
// makes the same event, sent twice through different ones, equal to itself.

var (
	stringType = reflect.TypeFor[string]()
	intType    = reflect.TypeFor[int]()
	int64Type  = reflect.TypeFor[int64]()
	boolType   = reflect.TypeFor[bool]()
	rawType    = reflect.TypeFor[json.RawMessage]()
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
		text, err = encodeMoment(*v.Addr().Interface().(*time.Time), oid)
		return text, false, err
	case (t == intType || t == int64Type) && takesNumbers(oid):
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
	if text, null, done, err := encodeKnown(v, oid); done {
		return text, null, err
	}
	if t := timeIn(v); t.IsValid() && !isJSON(oid) && !implements(v.Type(), valuerType) {
		text, err := encodeMoment(t.Convert(timeType).Interface().(time.Time), oid)
		return text, false, err
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
		if b, ok := val.([]byte); ok && oid != pgtype.ByteaOID && (oid != pgtype.UUIDOID || len(b) != 16) {
			return encodeString(string(b), oid), b == nil, nil // text, by the convention of database/sql
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
	if v.Kind() == reflect.Slice && v.IsNil() {
		return "", true, nil
	}
	if isBytes(v.Type()) && oid == pgtype.ByteaOID {
		return encodeBytes(v, oid)
	}
	text, null, err := "", false, error(nil)
	if m, ok := v.Interface().(encoding.TextMarshaler); ok && oid == pgtype.ByteaOID {
		return "", false, fmt.Errorf("a %T fits no bytea: give it a Value method (driver.Valuer) that returns bytes", m)
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		var b []byte
		b, err = m.MarshalText()
		text = string(b)
	} else {
		text, null, err = encodeKind(v, oid, elem)
	}
	if s, ok := v.Interface().(fmt.Stringer); ok && err == nil && isTextOID(oid) && v.Kind() != reflect.String &&
		s.String() != text {
		err = fmt.Errorf("%s has a String method, whose text pgx would store; give it a Value method (driver.Valuer)",
			v.Type())
	}
	return text, null, err
}

func encodeKind(v reflect.Value, oid, elem uint32) (string, bool, error) {
	if v.CanInt() || v.CanUint() || v.CanFloat() {
		if _, ok := v.Interface().(time.Duration); !takesNumbers(oid) && !(ok && oid == pgtype.IntervalOID) {
			return "", false, errNumber
		}
	}
	switch v.Kind() {
	case reflect.String:
		return encodeString(v.String(), oid), false, nil
	case reflect.Bool:
		if oid == pgtype.ByteaOID {
			return "", false, errors.New("a bool fits no bytea")
		}
		return strconv.FormatBool(v.Bool()), false, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if d, ok := v.Interface().(time.Duration); ok && oid == pgtype.IntervalOID {
			return encodeDuration(d), false, nil
		}
		return strconv.FormatInt(v.Int(), 10), false, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10), false, nil
	case reflect.Float32, reflect.Float64:
		if isTextOID(oid) {
			return strconv.FormatFloat(v.Float(), 'f', -1, v.Type().Bits()), false, nil
		}
		if oid != pgtype.Float4OID {
			return encodeFloat(v.Float(), 64), false, nil // a float32 as all of what it is, for it may be compared
		}
		return encodeFloat(v.Float(), v.Type().Bits()), false, nil
	case reflect.Slice, reflect.Array:
		return encodeSlice(v, oid, elem)
	}
	// What pgx itself knows, such as its ranges.
	b, err := pgtype.NewMap().Encode(oid, pgtype.TextFormatCode, v.Interface(), nil)
	if err != nil {
		return "", false, fmt.Errorf("values of type %s cannot be sent; give it a Value method (driver.Valuer)", v.Type())
	}
	return string(b), b == nil, nil
}

func implements(t, method reflect.Type) bool {
	return t.Implements(method) || reflect.PointerTo(t).Implements(method)
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

func isJSON(oid uint32) bool { return oid == pgtype.JSONOID || oid == pgtype.JSONBOID }

// encodeJSON takes strings and bytes for JSON as it stands, save those that marshal themselves, and marshals
// everything else.
func encodeJSON(v reflect.Value) (string, bool, error) {
	_, own := v.Interface().(json.Marshaler)
	own = own && v.Type() != rawType
	switch {
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.IsNil():
		return "", true, nil
	case v.Kind() == reflect.String && !own:
		return v.String(), false, nil
	case v.Kind() == reflect.Slice && isBytes(v.Type()) && !own:
		return string(v.Bytes()), false, nil
	}
	b, err := json.Marshal(v.Interface())
	return string(b), false, err
}

func encodeSlice(v reflect.Value, oid, elem uint32) (string, bool, error) {
	if v.Kind() == reflect.Slice && v.IsNil() {
		return "", true, nil
	}
	if isBytes(v.Type()) && elem == 0 {
		return encodeBytes(v, oid)
	}
	if isBytes(v.Type()) {
		return "", false, errors.New("bytes fit no array column; use a slice of int16, or of []byte")
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
		nested := (item.Kind() == reflect.Slice || item.Kind() == reflect.Array) && !isBytes(item.Type()) &&
			!item.Type().Implements(valuerType)
		if item.Kind() == reflect.Bool && isTextOID(elem) {
			return "", false, errors.New("drivers write a bool among strings in different ways; use strings")
		}
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

// encodeBytes writes bytes as what they are: content, a uuid's or a bytea's. In a column of numbers or times one
// driver takes them for text and another for the binary form, so they are refused there.
func encodeBytes(v reflect.Value, oid uint32) (string, bool, error) {
	b := make([]byte, v.Len())
	reflect.Copy(reflect.ValueOf(b), v)
	switch oid {
	case pgtype.ByteaOID:
		return `\x` + hex.EncodeToString(b), false, nil
	case pgtype.UUIDOID:
		if len(b) != 16 {
			return "", false, fmt.Errorf("a uuid has 16 bytes; give its text as a string")
		}
		h := hex.EncodeToString(b)
		return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], false, nil
	case pgtype.BoolOID, pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID, pgtype.Float4OID, pgtype.Float8OID,
		pgtype.NumericOID, pgtype.DateOID, pgtype.TimeOID, pgtype.TimetzOID, pgtype.TimestampOID, pgtype.TimestamptzOID,
		pgtype.IntervalOID, pgtype.InetOID, pgtype.CIDROID:
		return "", false, fmt.Errorf("bytes do not fit this column's type; give the text as a string")
	}
	if v.Kind() == reflect.Array {
		return "", false, fmt.Errorf("a %s fits a bytea, or a uuid where it has 16 bytes", v.Type())
	}
	return string(b), false, nil
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
