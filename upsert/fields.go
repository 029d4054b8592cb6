package upsert

import (
	"database/sql/driver"
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
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
