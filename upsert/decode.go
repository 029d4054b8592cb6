package upsert

import (
	"database/sql"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// cell receives one column of a stored row. It is a sql.Scanner, the one interface that pgx in every mode, pgx/stdlib
// and lib/pq serve alike. Its Scan returns no error, as the row is stored already: what does not fit stays zero, and
// is noted.
type cell struct {
	dst   reflect.Value
	c     *column
	types *pgtype.Map
	bad   *misfit
}

// misfit is the first column of a row that its field could not take.
type misfit struct {
	column string
	err    error
}

// UseTypes tells what pgx has registered on the connection, before Scan.
func (c *cell) UseTypes(m *pgtype.Map) { c.types = m }

func (c *cell) Scan(src any) error {
	d := decoder{oid: c.c.OID, elem: c.c.Elem, types: c.types}
	var err error
	var text string
	switch v := src.(type) {
	case nil:
		err = d.null(c.dst)
	case string:
		text, err = c.c.text(v)
	case []byte:
		text, err = c.c.text(string(v))
	case bool:
		text = strconv.FormatBool(v)
	default:
		text = fmt.Sprint(v)
	}
	if src != nil && err == nil {
		err = d.decode(c.dst, text)
	}
	if err != nil && c.bad.err == nil {
		*c.bad = misfit{c.c.Name, err}
	}
	if err != nil {
		c.dst.SetZero()
	}
	return nil
}

// decoder reads the text form of a type, as column.text returns it.
type decoder struct {
	oid, elem uint32
	types     *pgtype.Map // of the connection, where pgx is the driver
}

var (
	errTime   = errors.New("a time.Time fits a column of a time only: make the column a timestamptz, or the field a string")
	errLength = errors.New("it has another length than the field")
)

// null leaves the zero value in a field that cannot hold NULL, a Scanner that refuses it among them.
func (d decoder) null(dst reflect.Value) error {
	if s, ok := dst.Addr().Interface().(sql.Scanner); ok && s.Scan(nil) == nil {
		return nil
	}
	dst.SetZero()
	return nil
}

func (d decoder) decode(dst reflect.Value, text string) error {
	if i, ok := dst.Addr().Interface().(pgtype.IntervalScanner); ok && d.infinite(text) {
		return i.ScanInterval(forever[text])
	}
	if s, ok := dst.Addr().Interface().(sql.Scanner); ok {
		return d.scan(dst, s, text)
	}
	if dst.Kind() == reflect.Pointer {
		dst.Set(reflect.New(dst.Type().Elem()))
		return d.decode(dst.Elem(), text)
	}
	if d.oid == pgtype.BPCharOID && dst.Kind() != reflect.String && !isBytes(dst.Type()) {
		text = strings.TrimRight(text, " ")
	}
	if isJSON(d.oid) {
		return decodeJSON(dst, text)
	}
	if t := timeIn(dst); t.IsValid() {
		v, err := d.time(text)
		if err == nil {
			t.Set(reflect.ValueOf(v).Convert(t.Type()))
		}
		return err
	}
	if isBytes(dst.Type()) && (d.oid == pgtype.ByteaOID || d.oid == pgtype.UUIDOID) {
		return d.bytes(dst, text)
	}
	if d.oid == pgtype.InetOID || d.oid == pgtype.CIDROID {
		// netip.Prefix reads no address without a mask, net.IPNet nothing at all.
		if pgtype.NewMap().Scan(d.oid, pgtype.TextFormatCode, []byte(text), dst.Addr().Interface()) == nil {
			return nil
		}
		dst.SetZero()
	}
	if u, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok {
		err := u.UnmarshalText([]byte(text))
		if short := d.short(text); err != nil && short != text {
			dst.SetZero()
			err = u.UnmarshalText([]byte(short)) // big.Int knows no 12.00
		}
		return err
	}
	return d.kind(dst, text)
}

// infinite says that text is an interval whose text pgx does not read.
func (d decoder) infinite(text string) bool {
	_, ok := forever[text]
	return ok && d.oid == pgtype.IntervalOID
}

// kind reads text by what dst is made of.
func (d decoder) kind(dst reflect.Value, text string) error {
	bits := func() int { return dst.Type().Bits() }
	switch dst.Kind() {
	case reflect.String:
		dst.SetString(text)
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n, err := strconv.ParseInt(d.short(text), 10, bits()); err == nil {
			dst.SetInt(n)
			return nil
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n, err := strconv.ParseUint(d.short(text), 10, bits()); err == nil {
			dst.SetUint(n)
			return nil
		}
	case reflect.Float32, reflect.Float64:
		if f, err := strconv.ParseFloat(text, bits()); err == nil {
			dst.SetFloat(f)
			return nil
		}
	case reflect.Bool:
		if b, err := strconv.ParseBool(text); err == nil {
			dst.SetBool(b)
			return nil
		}
	case reflect.Slice, reflect.Array:
		if d.elem != 0 {
			items, err := parseArray(text)
			if err != nil {
				return err
			}
			return d.array(dst, items)
		}
		if isBytes(dst.Type()) && dst.Kind() == reflect.Slice {
			dst.SetBytes([]byte(text))
			return nil
		}
	case reflect.Interface:
		if dst.NumMethod() > 0 {
			break
		}
		var v any
		switch {
		case d.infinite(text):
			v = forever[text]
		case pgtype.NewMap().Scan(d.oid, pgtype.TextFormatCode, []byte(text), &v) != nil:
			v = text
		}
		if t, ok := v.(time.Time); ok {
			v = t.UTC()
		}
		dst.Set(reflect.ValueOf(v))
		return nil
	}
	err := pgtype.NewMap().Scan(d.oid, pgtype.TextFormatCode, []byte(text), dst.Addr().Interface())
	if a, ok := dst.Addr().Interface().(pgtype.ArraySetter); ok && err != nil && d.elem != 0 {
		return d.setter(a, text) // pgx knows no array of a domain, nor the 1.00 of an integer
	}
	return err
}

// scan gives s what a driver would, and where it knows another driver's form only, that.
func (d decoder) scan(dst reflect.Value, s sql.Scanner, text string) error {
	first := error(nil)
	forms := append(d.native(text), text, []byte(text))
	if d.oid == pgtype.TimeOID {
		if t, err := d.time(text); err == nil {
			forms = append(forms, t)
		}
	}
	if short := d.short(text); short != text {
		forms = append(forms, short)
	}
	if d.oid == pgtype.BPCharOID {
		forms = append(forms, strings.TrimRight(text, " "))
	}
	for _, form := range forms {
		err := s.Scan(form)
		if err == nil {
			return nil
		}
		dst.SetZero()
		if first == nil {
			first = err
		}
	}
	return first
}

// native returns text as the driver.Value that drivers make of the type, where that is not a string.
func (d decoder) native(text string) []any {
	var v any
	err := errForm
	switch d.oid {
	case pgtype.BoolOID:
		v, err = strconv.ParseBool(text)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID:
		v, err = strconv.ParseInt(text, 10, 64)
	case pgtype.Float4OID, pgtype.Float8OID:
		v, err = strconv.ParseFloat(text, 64)
	case pgtype.ByteaOID:
		v, err = hex.DecodeString(strings.TrimPrefix(text, `\x`))
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		v, err = d.time(text)
	case pgtype.JSONOID, pgtype.JSONBOID:
		v, err = []byte(text), nil
	}
	if err != nil {
		return nil
	}
	return []any{v}
}

func (d decoder) time(text string) (time.Time, error) {
	switch d.oid {
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID, pgtype.TimeOID:
	default:
		return time.Time{}, errTime
	}
	var t time.Time
	if err := pgtype.NewMap().Scan(d.oid, pgtype.TextFormatCode, []byte(text), &t); err != nil {
		return t, err
	}
	return d.located(t.UTC()), nil
}

// located returns t where a codec that is registered with pgx wants it.
func (d decoder) located(t time.Time) time.Time {
	if d.types == nil {
		return t
	}
	typ, ok := d.types.TypeForOID(d.oid)
	if !ok {
		return t
	}
	switch codec := typ.Codec.(type) {
	case *pgtype.TimestamptzCodec:
		if codec.ScanLocation != nil {
			return t.In(codec.ScanLocation)
		}
	case *pgtype.TimestampCodec:
		// The column keeps a clock's reading, and the codec says whose.
		if codec.ScanLocation != nil {
			return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), codec.ScanLocation)
		}
	}
	return t
}

// bytes reads a bytea or a uuid.
func (d decoder) bytes(dst reflect.Value, text string) error {
	if d.oid == pgtype.UUIDOID {
		text = strings.ReplaceAll(text, "-", "")
	}
	b, err := hex.DecodeString(strings.TrimPrefix(text, `\x`))
	switch {
	case err != nil:
		return errForm
	case dst.Kind() == reflect.Slice:
		dst.SetBytes(b)
		return nil
	case dst.Len() != len(b):
		return errLength
	}
	for i, c := range b {
		dst.Index(i).SetUint(uint64(c))
	}
	return nil
}

// short returns a whole number as its digits alone.
func (d decoder) short(text string) string {
	switch d.oid {
	case pgtype.NumericOID:
		if strings.ContainsRune(text, '.') {
			return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
		}
	case pgtype.Float4OID, pgtype.Float8OID:
		bits := 64
		if d.oid == pgtype.Float4OID {
			bits = 32
		}
		if f, err := strconv.ParseFloat(text, bits); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<64 {
			return strconv.FormatFloat(f, 'f', 0, 64)
		}
	}
	return text
}

// decodeJSON is the way back from encodeJSON.
func decodeJSON(dst reflect.Value, text string) error {
	switch _, own := dst.Addr().Interface().(json.Unmarshaler); {
	case own && dst.Type() != rawType:
	case dst.Kind() == reflect.String:
		dst.SetString(text)
		return nil
	case dst.Kind() == reflect.Slice && isBytes(dst.Type()):
		dst.SetBytes([]byte(text))
		return nil
	}
	return json.Unmarshal([]byte(text), dst.Addr().Interface())
}

func isBytes(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() == reflect.Uint8
}

// timeIn returns the time.Time that v is: by itself, under another name, or alone in a struct that embeds it.
func timeIn(v reflect.Value) reflect.Value {
	t := v.Type()
	switch {
	case t == timeType || t.Kind() == reflect.Struct && t.ConvertibleTo(timeType):
		return v
	case t.Kind() == reflect.Struct && t.NumField() == 1 && t.Field(0).Anonymous && t.Field(0).Type == timeType:
		return v.Field(0)
	}
	return reflect.Value{}
}
