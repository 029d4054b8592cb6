package upsert

import (
	"encoding/binary"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// packed is a row in the form in which many of them wait: each value as its length plus one (0 for NULL), then its text.
type packed struct {
	data string
	pos  int
}

func pack(buf []byte, args []any) []byte {
	for _, a := range args {
		text, ok := a.(string)
		if !ok {
			buf = append(buf, 0)
			continue
		}
		buf = binary.AppendUvarint(buf, uint64(len(text))+1)
		buf = append(buf, text...)
	}
	return buf
}

// unpack returns the first value of data and what follows it.
func unpack(data string) (text string, null bool, rest string) {
	var n uint64
	i := 0
	for shift := 0; ; shift += 7 {
		c := data[i]
		i++
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			break
		}
	}
	if n == 0 {
		return "", true, data[i:]
	}
	end := i + int(n) - 1
	return data[i:end], false, data[end:]
}

// order is the order of keys, by which rows are spread over several statements. It agrees with the order inside each of
// them for the types that it knows; otherwise two calls could meet in opposite orders.
type order []func(a, b string) int

func newOrder(p *plan, l *layout) order {
	var o order
	byKey := map[string]func(a, b string) int{}
	for i, name := range p.keyColumns() {
		c := l.byName[name]
		compare := strings.Compare
		switch c.OID {
		case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID, pgtype.OIDOID:
			compare = compareDecimal
		case pgtype.BPCharOID:
			compare = func(a, b string) int { return strings.Compare(strings.TrimRight(a, " "), strings.TrimRight(b, " ")) }
		}
		byKey[name] = func(a, b string) int { return compare(nth(a, i), nth(b, i)) }
	}
	w := writer{p: p, l: l}
	for _, i := range w.lockOrder() {
		if f := byKey[p.keys[i].column]; f != nil {
			o = append(o, f)
		}
	}
	return o
}

func (o order) compare(a, b packed) int {
	for _, f := range o {
		if c := f(a.data, b.data); c != 0 {
			return c
		}
	}
	return 0
}

// nth returns the i-th value of a packed row; keys come first, and are not NULL.
func nth(data string, i int) string {
	for {
		text, _, rest := unpack(data)
		if i == 0 {
			return text
		}
		data, i = rest, i-1
	}
}

// compareDecimal compares two numbers by value where both are plain decimals, else by their text.
func compareDecimal(a, b string) int {
	na, ia, fa, oka := decimal(a)
	nb, ib, fb, okb := decimal(b)
	switch {
	case !oka || !okb:
		return strings.Compare(a, b)
	case na != nb:
		if na {
			return -1
		}
		return 1
	}
	c := len(ia) - len(ib)
	if c == 0 {
		c = strings.Compare(ia, ib)
	}
	if c == 0 {
		c = strings.Compare(fa, fb)
	}
	if na {
		return -c
	}
	return c
}

// decimal splits a number into its sign, the digits before the point and those after it, without zeros that say nothing.
func decimal(s string) (negative bool, whole, fraction string, ok bool) {
	s, negative = strings.CutPrefix(s, "-")
	if !negative {
		s = strings.TrimPrefix(s, "+")
	}
	whole, fraction, _ = strings.Cut(s, ".")
	if strings.Trim(whole+fraction, "0123456789") != "" || whole+fraction == "" {
		return false, "", "", false
	}
	whole, fraction = strings.TrimLeft(whole, "0"), strings.TrimRight(fraction, "0")
	return negative && whole+fraction != "", whole, fraction, true
}
