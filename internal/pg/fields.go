package pg

import (
	"errors"
	"reflect"
)

// ErrorTable returns the table that an error of the server's names in the field for it, and never in its text; "" where
// there is none. Every driver has a struct of its own for that.
func ErrorTable(err error) string {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return ""
	}
	v := reflect.ValueOf(state)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return ""
	}
	for _, name := range []string{"TableName", "Table"} { // pgx, lib/pq
		if f := v.Elem().FieldByName(name); f.IsValid() && f.Kind() == reflect.String {
			return f.String()
		}
	}
	return ""
}
