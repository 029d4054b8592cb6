package upsert

import (
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// field is a struct field with a db tag.
type field struct {
	column string
	index  []int
	typ    reflect.Type
}

var (
	valuerType = reflect.TypeFor[driver.Valuer]()
	textType   = reflect.TypeFor[encoding.TextMarshaler]()
	timeType   = reflect.TypeFor[time.Time]()
)

// fieldsOf lists the tagged fields of a struct, those of embedded structs among them.
func fieldsOf(t reflect.Type) ([]field, error) {
	if t.Kind() != reflect.Struct || t == timeType {
		return nil, fmt.Errorf("rows are %s; use a struct whose fields have `db` tags", t)
	}
	var fields []field
	if err := addFields(&fields, t, nil); err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("%s has no field with a `db` tag", t)
	}
	seen := map[string]bool{}
	for _, f := range fields {
		if seen[f.column] {
			return nil, fmt.Errorf("%s has two fields tagged `db:%q`", t, f.column)
		}
		seen[f.column] = true
	}
	return fields, nil
}

func addFields(fields *[]field, t reflect.Type, at []int) error {
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(append([]int(nil), at...), i)
		tag, tagged := f.Tag.Lookup("db")
		tag, _, _ = strings.Cut(tag, ",")
		if tag == "-" {
			continue
		}
		if f.Anonymous && tag == "" {
			switch {
			case f.Type.Kind() == reflect.Struct:
				if err := addFields(fields, f.Type, index); err != nil {
					return err
				}
			case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
				return fmt.Errorf("%s embeds *%s; embed the struct itself", t, f.Type.Elem())
			}
			continue
		}
		if !tagged || tag == "" {
			continue
		}
		if !f.IsExported() {
			return fmt.Errorf("%s.%s has a `db` tag and is not exported", t, f.Name)
		}
		*fields = append(*fields, field{column: tag, index: index, typ: f.Type})
	}
	return nil
}

// mayBeNull says that a field of type t can bring NULL.
func mayBeNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return true
	}
	return t.Implements(valuerType) || reflect.PointerTo(t).Implements(valuerType)
}

// samples are values of types, in a form that fits whatever field can take any value of the type.
var samples = map[uint32]string{
	pgtype.BoolOID: "true", pgtype.Int2OID: "1", pgtype.Int4OID: "1", pgtype.Int8OID: "1", pgtype.OIDOID: "1",
	pgtype.Float4OID: "1", pgtype.Float8OID: "1", pgtype.NumericOID: "1",
	pgtype.UUIDOID: "00000000-0000-0000-0000-000000000001",
	pgtype.DateOID: "2000-01-02", pgtype.TimeOID: "01:02:03", pgtype.TimetzOID: "01:02:03+00",
	pgtype.TimestampOID: "2000-01-02 01:02:03", pgtype.TimestamptzOID: "2000-01-02 01:02:03+00",
	pgtype.IntervalOID: "00:00:01", pgtype.InetOID: "10.0.0.1", pgtype.CIDROID: "10.0.0.0/24",
	pgtype.TextOID: "1", pgtype.VarcharOID: "1", pgtype.BPCharOID: "1", pgtype.NameOID: "1",
	pgtype.MacaddrOID: "08:00:2b:01:02:03", pgtype.BitOID: "1", pgtype.VarbitOID: "1",
	pgtype.PointOID: "(1,2)", pgtype.LineOID: "{1,2,3}", pgtype.LsegOID: "[(1,2),(3,4)]", pgtype.BoxOID: "(3,4),(1,2)",
	pgtype.PathOID: "[(1,2),(3,4)]", pgtype.PolygonOID: "((1,2),(3,4))", pgtype.CircleOID: "<(1,2),3>",
	pgtype.DaterangeOID: "empty", pgtype.TsrangeOID: "empty", pgtype.TstzrangeOID: "empty",
	pgtype.Int4rangeOID: "empty", pgtype.Int8rangeOID: "empty", pgtype.NumrangeOID: "empty",
}

// fieldProblems finds fields that no value of their column fits, so that this is known before a row is written.
func (p *plan) fieldProblems(l *layout) []Problem {
	r := &report{table: p.table.String()}
	for _, m := range slices.Concat(p.written, p.read) {
		c := l.byName[m.column]
		if err := takes(m.typ, c); err != nil {
			r.add(KindFieldType, "change the field's type, or the column's", "column %s: %v", m.column, err)
		}
		if u := c.types.unknown(c.OID); u != 0 && c.types.varies(c.OID) {
			r.add(KindColumnType, "leave the column out, or make a column of each of its parts",
				"column %s: the text of type %s depends on the session, and it holds a type whose binary form is not known here",
				m.column, c.Exact)
		}
	}
	return r.problems
}

// takes reports why no value of column c fits a field of type t, or nil. It cannot tell of types that read by a
// method of their own: what they take depends on the value.
func takes(t reflect.Type, c *column) (err error) {
	oid, text := c.OID, ""
	var known bool
	switch text, known = samples[oid]; {
	case isJSON(oid):
		return nil
	case c.Elem != 0:
		text = "{}"
		if s, ok := samples[c.Elem]; ok {
			text = "{" + elementOf(s) + "}"
		}
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Array {
			return nil // its length is the value's affair
		}
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Slice && !isBytes(t.Elem()) {
			return nil // dimensions, too
		}
	case !known:
		text = "x" // an enum, a composite type or one of an extension: its text
	}
	for e := t; ; e = e.Elem() {
		if selfRead(e) {
			return nil
		}
		if k := e.Kind(); k != reflect.Pointer && (k != reflect.Slice || c.Elem == 0) {
			break
		}
	}
	if oid == pgtype.ByteaOID {
		if t.Kind() == reflect.Array {
			return nil
		}
		text = `\x00`
	}
	if err := (decoder{oid: oid, elem: c.Elem}).decode(reflect.New(t).Elem(), text); err != nil {
		return fmt.Errorf("a field of type %s cannot take a value of type %s", t, c.Exact)
	}
	return nil
}

func elementOf(text string) string {
	var b strings.Builder
	writeElement(&b, text, false)
	return b.String()
}

// selfRead says that t reads values by its own method.
func selfRead(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t != timeType && (p.Implements(reflect.TypeFor[sql.Scanner]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[json.Unmarshaler]()))
}

// unread returns why a field cannot take back what it has just been encoded to, or nil. It is asked of types with
// methods, whose two ways may not fit each other, where the server's text of a value can be foretold.
func unread(m member, c *column, text string) error {
	told, ok := foretold(c, text)
	if !ok {
		return nil
	}
	return decoder{oid: c.OID, elem: c.Elem}.decode(reflect.New(m.typ).Elem(), told)
}

// foretold returns the text that the server will give back for text in the column c, where that is known.
func foretold(c *column, text string) (string, bool) {
	if c.Elem == 0 {
		return foretoldValue(c, c.OID, text)
	}
	items, err := parseArray(text)
	if err != nil {
		return "", false
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, it := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		value, ok := foretoldValue(c, c.Elem, it.text)
		if it.array || !ok && !it.null {
			return "", false
		}
		writeElement(&b, value, it.null)
	}
	b.WriteByte('}')
	return b.String(), true
}

func foretoldValue(c *column, oid uint32, text string) (string, bool) {
	bits := 64
	switch oid {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.UUIDOID,
		pgtype.BoolOID,
		pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return text, true
	case pgtype.ByteaOID:
		if !strings.Contains(text, `\`) {
			text = `\x` + hex.EncodeToString([]byte(text))
		}
		return text, true
	case pgtype.Float4OID:
		bits = 32
		fallthrough
	case pgtype.Float8OID:
		f, err := strconv.ParseFloat(text, bits)
		return floatText(f, bits), err == nil
	case moneyOID:
		return "$" + text, true
	case pgtype.IntervalOID, pgtype.DateOID, pgtype.TimeOID, pgtype.TimetzOID, pgtype.TimestampOID, pgtype.TimestamptzOID,
		pgtype.MacaddrOID:
		return samples[oid], true // not what was given, but its form
	}
	return text, c.Typtype == "e"
}

// loses says that a whole number of type t may lose digits in the column.
func loses(t reflect.Type, c *column) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	v := reflect.Zero(t)
	return (v.CanInt() || v.CanUint()) && (slices.Contains(floats, c.OID) || slices.Contains(floats, c.Elem))
}

var floats = []uint32{pgtype.Float4OID, pgtype.Float8OID}

// provesNothing says that a field that has read back one value of the column may still fail on another.
func provesNothing(t reflect.Type, c *column) bool {
	return t.Kind() == reflect.Array || slices.Contains(floats, c.OID) || slices.Contains(floats, c.Elem)
}

// twoWays says that a field has methods of its own, or a length, so that not every value of the column fits it.
func twoWays(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && !isBytes(t) && !implements(t, valuerType) &&
		!selfRead(t) {
		t = t.Elem()
	}
	return t != timeType && (implements(t, valuerType) || implements(t, textType) || selfRead(t) ||
		t.Kind() == reflect.Array)
}
