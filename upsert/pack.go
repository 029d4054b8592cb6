package upsert

import (
	"cmp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// packed is a row in the form in which many of them wait. A string in it is the row's own, not a copy.
type packed struct {
	cells []string
	pos   int
}

// null stands for NULL: a value cannot hold it.
const null = "\x00"

// store holds all rows of a call, in slabs that never move: there may be many, and what a growing slice leaves behind
// would be more than the rows.
type store struct {
	columns int
	slabs   []slab
	n       int
}

type slab struct {
	cells []string
	pos   []uint32
}

const slabRows = 1024

func (s *store) add(values []value, pos int) {
	if s.n%slabRows == 0 {
		s.slabs = append(s.slabs, slab{make([]string, slabRows*s.columns), make([]uint32, slabRows)})
	}
	r := s.row(uint32(s.n))
	for i, v := range values {
		if r.cells[i] = v.text; v.null {
			r.cells[i] = null
		}
	}
	s.slabs[s.n/slabRows].pos[s.n%slabRows] = uint32(pos)
	s.n++
}

func (s *store) row(i uint32) packed {
	b, at := &s.slabs[i/slabRows], int(i%slabRows)
	return packed{b.cells[at*s.columns : (at+1)*s.columns : (at+1)*s.columns], int(b.pos[at])}
}

// sorted returns the rows' numbers in the order of their keys, and of their arrival where keys are equal.
func (s *store) sorted(o order) []uint32 {
	// The first column is held beside the number: most comparisons need no more, and looking it up is most of their time.
	type entry struct {
		first string
		i     uint32
	}
	entries := make([]entry, s.n)
	for i := range entries {
		entries[i].i = uint32(i)
		if len(o.columns) > 0 {
			entries[i].first = s.row(uint32(i)).cells[o.columns[0].at]
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		c := 0
		if len(o.columns) > 0 {
			c = o.columns[0].compare(a.first, b.first)
		}
		if c == 0 && len(o.columns) > 1 {
			c = o.compare(s.row(a.i), s.row(b.i))
		}
		return cmp.Or(c, cmp.Compare(a.i, b.i))
	})
	rows := make([]uint32, s.n)
	for i, e := range entries {
		rows[i] = e.i
	}
	return rows
}

func (r packed) size() int {
	n := 0
	for _, c := range r.cells {
		n += len(c)
	}
	return n
}

// order is the order of keys, by which rows are spread over several statements. It agrees with the order inside each of
// them for the types that it knows; otherwise two calls could meet in opposite orders.
type order struct {
	columns []keyOrder
	sure    bool // of all columns, values that compare as different are different to the server
}

type keyOrder struct {
	at      int // position in a packed row; keys come first, and are not NULL
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
			// In other encodings the server may order strings otherwise, and take two of them for one.
			alike := slices.Contains([]string{"UTF8", "LATIN1", "SQL_ASCII"}, l.Encoding)
			k.sure = func(s string) bool { return alike || isASCII(s) }
		case c.OID == pgtype.Int2OID || c.OID == pgtype.Int4OID || c.OID == pgtype.Int8OID:
			k.compare = compareDecimal
			k.sure = func(s string) bool { _, _, _, ok := decimal(s); return ok }
		case c.OID == pgtype.UUIDOID:
			k.sure = func(s string) bool {
				return len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' && strings.ToLower(s) == s
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
		if c := k.compare(a.cells[k.at], b.cells[k.at]); c != 0 {
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
		// Not "== 0": values of which some are no plain numbers may be sorted in a circle, with equal ones apart.
		if i > 0 && o.compare(rows[i-1], r) >= 0 {
			return false
		}
		for _, k := range o.columns {
			if !k.sure(r.cells[k.at]) {
				return false
			}
		}
	}
	return true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
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

// decimal splits a number into its sign, the digits before the point and those after it, without zeros that say
// nothing.
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
