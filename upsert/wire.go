package upsert

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgonce/pgonce/internal/pg"
)

// The text of some types depends on the session (DateStyle, TimeZone, IntervalStyle, bytea_output,
// extra_float_digits, lc_monetary), and the form that a driver hands out depends on the driver. What comes back must
// depend on neither: the row is stored by then. So the server gives those types, and all that is made of them, in
// their binary form, as hexadecimal text, and the rest as text.

// wire returns expr, a value of c, in the form in which it comes back.
func (c *column) wire(expr string) string {
	switch {
	case c.OID == pgtype.ByteaOID:
		return "pg_catalog.encode(" + expr + ", 'hex'::pg_catalog.text)"
	case c.types.varies(c.OID):
		return "pg_catalog.encode(" + c.binary(expr) + ", 'hex'::pg_catalog.text)"
	case c.scalar():
		return expr
	}
	return expr + "::text"
}

// binary returns expr, a value of c, in its binary form.
func (c *column) binary(expr string) string {
	return pg.AsIs(c.types[c.OID].Send) + "(" + expr + ")"
}

// text returns what wire gave as PostgreSQL's text form in a session with the default settings, and UTC.
func (c *column) text(given string) (string, error) {
	if c.OID == pgtype.InetOID {
		return withoutHost(given), nil
	}
	if c.OID != pgtype.ByteaOID && !c.types.varies(c.OID) {
		return given, nil
	}
	b, err := hex.DecodeString(given)
	if err != nil {
		return "", errForm
	}
	r := reader{b: b, types: c.types}
	text := r.text(c.OID, len(b))
	return text, r.err
}

// withoutHost takes away the mask of a single address, which pgx writes out, and PostgreSQL does not.
func withoutHost(address string) string {
	host := "/32"
	if strings.ContainsRune(address, ':') {
		host = "/128"
	}
	return strings.TrimSuffix(address, host)
}

var errForm = errors.New("the server gave it in an unknown form")

// reader reads the binary form of a value, and of those that it is made of. After an error it reads zeros.
type reader struct {
	b     []byte
	types typeSet
	err   error
}

// text reads a value of n bytes.
func (r *reader) text(oid uint32, n int) string {
	part := reader{b: r.bytes(n), types: r.types, err: r.err}
	oid = r.types.base(oid)
	var text string
	switch t := r.types[oid]; {
	case part.err != nil:
	case t == nil:
		text, part.err = binaryText(oid, part.b)
	case t.Kind == "c":
		text = part.record()
	case t.Kind == "r":
		text = part.span(t.Span)
	case t.Kind == "m":
		text = part.spans(t.Span)
	case t.Elem != 0:
		text = part.array(t.Elem)
	case t.asText():
		text = string(part.b)
	case t.Infinite && infinityText(part.b) != "":
		text = infinityText(part.b)
	default:
		text, part.err = binaryText(oid, part.b)
	}
	if r.err == nil {
		r.err = part.err
	}
	return text
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.err, r.b = errForm, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) int32() int32 {
	if b := r.bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// value reads a length and a value of that length; -1 is NULL.
func (r *reader) value(oid uint32) (text string, null bool) {
	n := r.int32()
	if n == -1 || r.err != nil {
		return "", true
	}
	return r.text(oid, int(n)), false
}

// record reads a row.
func (r *reader) record() string {
	var b strings.Builder
	b.WriteByte('(')
	n := r.int32()
	for i := int32(0); i < n && r.err == nil; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		oid := uint32(r.int32())
		if text, null := r.value(oid); !null {
			writeDoubled(&b, text, `(),`)
		}
	}
	b.WriteByte(')')
	return b.String()
}

// spans reads a multirange of ranges of type oid.
func (r *reader) spans(oid uint32) string {
	var ranges []string
	for n := r.int32(); n > 0 && r.err == nil; n-- {
		text, _ := r.value(oid)
		ranges = append(ranges, text)
	}
	return "{" + strings.Join(ranges, ",") + "}"
}

// span reads a range whose bounds are of type oid.
func (r *reader) span(oid uint32) string {
	const empty, lowerIn, upperIn, lowerless, upperless = 1, 2, 4, 8, 16
	flags := byte(empty)
	if b := r.bytes(1); b != nil {
		flags = b[0]
	}
	if flags&empty != 0 {
		return "empty"
	}
	var b strings.Builder
	bound := func(without byte) {
		if flags&without == 0 {
			text, _ := r.value(oid)
			writeDoubled(&b, text, "()[],")
		}
	}
	b.WriteByte("(["[flags&lowerIn/lowerIn])
	bound(lowerless)
	b.WriteByte(',')
	bound(upperless)
	b.WriteByte(")]"[flags&upperIn/upperIn])
	return b.String()
}

// array reads an array whose elements are of type oid. (Where its subscripts begin is not kept: Go's begin at 0.)
func (r *reader) array(oid uint32) string {
	dims := r.int32()
	r.bytes(8) // whether there are NULLs, and the elements' type
	if dims == 0 || dims > 6 {
		return "{}"
	}
	sizes := make([]int32, dims)
	for i := range sizes {
		sizes[i] = r.int32()
		r.bytes(4)
	}
	var b strings.Builder
	r.level(&b, oid, sizes)
	return b.String()
}

func (r *reader) level(b *strings.Builder, oid uint32, sizes []int32) {
	b.WriteByte('{')
	for i := int32(0); i < sizes[0] && r.err == nil; i++ {
		if i > 0 {
			b.WriteString(r.delimiter(oid))
		}
		if len(sizes) > 1 {
			r.level(b, oid, sizes[1:])
			continue
		}
		text, null := r.value(oid)
		if null {
			b.WriteString("NULL")
			continue
		}
		writeItem(b, text, text == "" || strings.EqualFold(text, "NULL") || strings.ContainsAny(text,
			"\"\\{}"+blanks+r.delimiter(oid)))
	}
	b.WriteByte('}')
}
