package upsert

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// packed is a row in the form in which many of them wait: each value as its length plus one (0 for NULL), then its text.
type packed struct {
	data string
	pos  int
}

func pack(buf []byte, values []value) []byte {
	for _, v := range values {
		if v.null {
			buf = append(buf, 0)
			continue
		}
		buf = binary.AppendUvarint(buf, uint64(len(v.text))+1)
		buf = append(buf, v.text...)
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
type order struct {
	columns []keyOrder
	sure    bool // of all columns, values that compare as different are different to the server
}

type keyOrder struct {
	at      int // position in a packed row
	compare func(a, b string) int
	sure    func(string) bool
}

func newOrder(p *plan, l *layout) order {
	o := order{sure: true}
	names := p.keyColumns()
	for _, i := range (writer{p: p, l: l}).lockOrder() {
		if p.keys[i].expr != "" {
			o.sure = false
			continue
		}
		c := l.byName[p.keys[i].column]
		k := keyOrder{at: slices.Index(names, c.Name), compare: strings.Compare}
		switch {
		case c.OID == pgtype.BPCharOID:
			k.compare = func(a, b string) int { return strings.Compare(strings.TrimRight(a, " "), strings.TrimRight(b, " ")) }
		case c.isText() && !c.Fuzzy:
			k.sure = func(string) bool { return true }
		case c.OID == pgtype.Int2OID || c.OID == pgtype.Int4OID || c.OID == pgtype.Int8OID:
			k.compare = compareDecimal
			k.sure = func(s string) bool { _, _, _, ok := decimal(s); return ok }
		case c.OID == pgtype.UUIDOID:
			k.sure = func(s string) bool {
				return len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-'
			}
		case c.OID == pgtype.NumericOID:
			k.compare = compareDecimal
		}
		o.sure = o.sure && k.sure != nil
		o.columns = append(o.columns, k)
	}
	return o
}

func (o order) compare(a, b packed) int {
	for _, k := range o.columns {
		if c := k.compare(nth(a.data, k.at), nth(b.data, k.at)); c != 0 {
			return c
		}
	}
	return 0
}

// distinct says that no two of the sorted rows have the same key, also to the server.
func (o order) distinct(rows []packed) bool {
	if !o.sure {
		return false
	}
	for i, r := range rows {
		if i > 0 && o.compare(rows[i-1], r) == 0 {
			return false
		}
		for _, k := range o.columns {
			if !k.sure(nth(r.data, k.at)) {
				return false
			}
		}
	}
	return true
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
