package pg

import "reflect"

// Rewritten returns err with the named fields of the server's answer set to these texts, and everything else as it
// was. Every driver has a struct of its own for that answer. What wraps one is left as it is.
func Rewritten(err error, fields map[string]string) error {
	if _, ok := err.(interface{ SQLState() string }); !ok {
		return err
	}
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return err
	}
	// A copy: the driver may keep the original.
	clean := reflect.New(v.Elem().Type())
	clean.Elem().Set(v.Elem())
	for name, text := range fields {
		if f := clean.Elem().FieldByName(name); f.IsValid() && f.CanSet() && f.Kind() == reflect.String {
			f.SetString(text)
		}
	}
	return clean.Interface().(error)
}
