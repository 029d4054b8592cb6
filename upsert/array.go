package upsert

import (
	"errors"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// item is an element of an array: a value, NULL, or an array of its own.
type item struct {
	value
	array  bool
	nested []item
}

var errArray = errors.New("it is no array in a form that is known here")

// parseArray reads PostgreSQL's text form of an array. (Where its subscripts begin, "[2:3]=", is left out: Go's begin
// at 0.)
func parseArray(text string) ([]item, error) {
	if strings.HasPrefix(text, "[") {
		_, after, ok := strings.Cut(text, "=")
		if !ok {
			return nil, errArray
		}
		text = after
	}
	p := arrayParser{text}
	items, err := p.array()
	if err == nil && p.rest != "" {
		err = errArray
	}
	return items, err
}

type arrayParser struct{ rest string }

func (p *arrayParser) eat(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *arrayParser) array() (items []item, err error) {
	if !p.eat('{') {
		return nil, errArray
	}
	if p.eat('}') {
		return nil, nil
	}
	for {
		var it item
		switch {
		case strings.HasPrefix(p.rest, "{"):
			it.array = true
			it.nested, err = p.array()
		case p.eat('"'):
			it.text, err = p.quoted()
		default:
			end := strings.IndexAny(p.rest, ",}")
			if end <= 0 {
				return nil, errArray
			}
			it.text, p.rest = p.rest[:end], p.rest[end:]
			it.null = strings.EqualFold(it.text, "NULL")
		}
		if err != nil {
			return nil, err
		}
		items = append(items, it)
		switch {
		case p.eat(','):
		case p.eat('}'):
			return items, nil
		default:
			return nil, errArray
		}
	}
}

func (p *arrayParser) quoted() (string, error) {
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String(), nil
		case c == '\\' && i+1 < len(p.rest):
			i++
			b.WriteByte(p.rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", errArray
}

// array reads items into a slice or an array.
func (d decoder) array(dst reflect.Value, items []item) error {
	switch {
	case dst.Kind() == reflect.Pointer:
		dst.Set(reflect.New(dst.Type().Elem()))
		return d.array(dst.Elem(), items)
	case dst.Kind() == reflect.Slice:
		dst.Set(reflect.MakeSlice(dst.Type(), len(items), len(items)))
	case dst.Kind() != reflect.Array || dst.Len() != len(items):
		return errArray
	}
	for i, it := range items {
		at, err := dst.Index(i), error(nil)
		switch {
		case it.array:
			err = d.array(at, it.nested)
		case it.null:
			err = decoder{oid: d.elem, types: d.types}.null(at)
		default:
			err = decoder{oid: d.elem, types: d.types}.decode(at, it.text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setter reads an array into what takes it one item after the other, as a pgtype.Array does.
func (d decoder) setter(dst pgtype.ArraySetter, text string) error {
	items, err := parseArray(text)
	if err != nil {
		return err
	}
	var dims []pgtype.ArrayDimension
	for in := items; len(in) > 0; in = in[0].nested {
		dims = append(dims, pgtype.ArrayDimension{Length: int32(len(in)), LowerBound: 1})
	}
	if dims == nil {
		dims = []pgtype.ArrayDimension{} // nil would be NULL
	}
	if err := dst.SetDimensions(dims); err != nil {
		return err
	}
	n := 0
	return eachItem(items, func(it item) error {
		at := reflect.ValueOf(dst.ScanIndex(n))
		n++
		if at.Kind() != reflect.Pointer || at.IsNil() {
			return errArray
		}
		if it.null {
			return decoder{oid: d.elem, types: d.types}.null(at.Elem())
		}
		return decoder{oid: d.elem, types: d.types}.decode(at.Elem(), it.text)
	})
}

// eachItem calls do with each item that is no array.
func eachItem(items []item, do func(item) error) error {
	for _, it := range items {
		var err error
		if it.array {
			err = eachItem(it.nested, do)
		} else {
			err = do(it)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
