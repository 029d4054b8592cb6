package pg

import (
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5/pgconn"
)

// secretFields are those of a server's error, of any driver, in which it prints rows and parameters: the DETAIL has
// the key where a constraint is violated, the CONTEXT parameters where log_parameter_max_length_on_error says so, the
// internal query what a function put into its text.
var secretFields = []string{"Detail", "Where", "InternalQuery"}

// WithoutDetail drops from err what could print a key, a row or a parameter, wherever the server's error stands in
// it. It is kept out of reach, not only out of the message: callers log the struct, too. An error that has nothing of
// it is returned as it is; one that wraps such an error keeps its text and what errors.Is finds, and loses its type.
func WithoutDetail(err error) error {
	clean, _ := scrub(err, func(string) string { return "" })
	return clean
}

// WithoutContent is WithoutDetail, and gives an error whose own words may quote a value the text that other returns
// for its SQLSTATE, where that is not empty.
func WithoutContent(err error, other func(sqlState string) string) error {
	clean, _ := scrub(err, other)
	return clean
}

func scrub(err error, other func(sqlState string) string) (clean error, changed bool) {
	v := reflect.ValueOf(err)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return err, false
	}
	if _, ok := err.(*pgconn.ConnectError); ok {
		return err, false // there are no rows yet, and its type says where it came from
	}
	if s, ok := err.(interface{ SQLState() string }); ok && v.Kind() == reflect.Pointer &&
		v.Elem().Kind() == reflect.Struct {
		if clean, ok := emptied(v, other(s.SQLState())); ok {
			return clean, true
		}
	}
	var causes []error
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		causes = []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		causes = append(causes, e.Unwrap()...)
	}
	for i, cause := range causes {
		c, dirty := scrub(cause, other)
		causes[i], changed = c, changed || dirty
	}
	if !changed {
		return err, false
	}
	is := func(target error) bool {
		if reflect.TypeOf(target).Comparable() && err == target {
			return true
		}
		e, ok := err.(interface{ Is(error) bool })
		return ok && e.Is(target)
	}
	if other(sqlState(err)) != "" { // what wraps the server's words repeats them
		return &scrubbed{errors.Join(causes...).Error(), is, causes}, true
	}
	return &scrubbed{err.Error(), is, causes}, true
}

// emptied returns a copy of the struct that v points to, without the fields that may hold content; false where there
// is none. message, where not empty, takes the place of the server's words.
func emptied(v reflect.Value, message string) (clean error, changed bool) {
	c := reflect.New(v.Elem().Type())
	c.Elem().Set(v.Elem())
	set := func(name, text string) {
		if f := c.Elem().FieldByName(name); f.IsValid() && f.CanSet() && f.Kind() == reflect.String && f.String() != text {
			f.SetString(text)
			changed = true
		}
	}
	for _, name := range secretFields {
		set(name, "")
	}
	if message != "" {
		set("Message", message)
	}
	return c.Interface().(error), changed
}

// scrubbed stands for an error that wraps one which had content in it. It does not hold that one.
type scrubbed struct {
	text   string
	is     func(target error) bool
	causes []error
}

func (s *scrubbed) Error() string        { return s.text }
func (s *scrubbed) Unwrap() []error      { return s.causes }
func (s *scrubbed) Is(target error) bool { return s.is(target) }
