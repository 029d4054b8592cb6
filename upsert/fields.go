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
	pgtype.Float4OID: "1", pgtype.Float8OID: "1", pgtype.NumericOID: "1", pgtype.UUIDOID: "00000000-0000-0000-0000-000000000001",
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
		if err := takes(m.typ, l.byName[m.column]); err != nil {
			r.add("change the field's type, or the column's", "column %s: %v", m.column, err)
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
	return t != timeType && (p.Implements(reflect.TypeFor[sql.Scanner]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[json.Unmarshaler]()))
}

// unread returns why a field cannot take back what it has just been encoded to, or nil. It is asked where the server
// keeps text as it was given, and of types with methods, whose two ways may not fit each other.
func unread(m member, c *column, text string) error {
	if c.OID == pgtype.ByteaOID && !strings.Contains(text, `\`) {
		text = `\x` + hex.EncodeToString([]byte(text)) // as it will be written out
	}
	switch {
	case c.isText() || c.Typtype == "e" || isJSON(c.OID) || c.OID == pgtype.UUIDOID || c.OID == pgtype.ByteaOID,
		c.OID == pgtype.Int2OID, c.OID == pgtype.Int4OID, c.OID == pgtype.Int8OID, c.OID == pgtype.BoolOID:
		return decoder{oid: c.OID, elem: c.Elem}.decode(reflect.New(m.typ).Elem(), text)
	}
	return nil
}

// twoWays says that a field has methods of its own, or a length, so that not every value of the column fits it.
func twoWays(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t != timeType && (implements(t, valuerType) || implements(t, textType) || selfRead(t) || t.Kind() == reflect.Array)
}
