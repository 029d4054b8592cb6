package pg

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxIdentifier is the longest identifier that PostgreSQL stores, in bytes (NAMEDATALEN - 1). It cuts longer ones
// without an error, so that two names can become one.
const MaxIdentifier = 63

// Quote returns name as a quoted SQL identifier, the case kept. Every identifier that reaches SQL goes through here.
func Quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// DefaultTable is the dedup table of a user who names none.
const DefaultTable = "processed_events"

// Marker stands for the table in the SQL of this module, which is valid as it stands. See [Name.Into].
const Marker = "/*table*/" + DefaultTable

// Name is the name of a table, with its schema where one was given.
type Name struct {
	Schema string // "" where the search path decides
	Table  string
}

// ParseName reads a table's name as a user writes it: table, schema.table, or with quotes where a part holds a dot or a
// quote ("odd.name", doubled inside). The case is kept, quoted or not. It refuses what PostgreSQL would change: a part
// over 63 bytes, empty, with NUL, or not UTF-8.
func ParseName(s string) (Name, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := nextPart(rest)
		if err != nil {
			return Name{}, err
		}
		switch {
		case part == "":
			return Name{}, errors.New("a table's name, or its schema, is empty")
		case len(part) > MaxIdentifier:
			return Name{}, fmt.Errorf("a table's name, or its schema, has %d bytes; PostgreSQL keeps %d", len(part),
				MaxIdentifier)
		case strings.ContainsRune(part, 0) || !utf8.ValidString(part):
			return Name{}, errors.New("a table's name holds a NUL or is not UTF-8")
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return Name{Table: parts[0]}, nil
	case 2:
		return Name{Schema: parts[0], Table: parts[1]}, nil
	}
	return Name{}, errors.New("a table's name has more than two parts; quote a part that holds a dot")
}

// TableName is [ParseName] for a dedup table: "" is [DefaultTable].
func TableName(s string) (Name, error) {
	if s == "" {
		s = DefaultTable
	}
	return ParseName(s)
}

// nextPart cuts the first part of a dotted name; after is empty or begins with the dot.
func nextPart(s string) (part, after string, err error) {
	if !strings.HasPrefix(s, `"`) {
		if i := strings.IndexByte(s, '.'); i >= 0 {
			return s[:i], s[i:], nil
		}
		return s, "", nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		case i+1 == len(s) || s[i+1] == '.':
			return b.String(), s[i+1:], nil
		default:
			return "", "", errors.New("a table's name goes on behind its closing quote")
		}
	}
	return "", "", errors.New("a table's name has a quote that is not closed")
}

// Quoted returns the name for use in SQL.
func (n Name) Quoted() string {
	if n.Schema == "" {
		return Quote(n.Table)
	}
	return Quote(n.Schema) + "." + Quote(n.Table)
}

// Into returns sql on the table of this name: it stands in the place of each [Marker].
func (n Name) Into(sql string) string { return strings.ReplaceAll(sql, Marker, n.Quoted()) }

// String returns the name for people: as Quoted, without quotes where none are needed.
func (n Name) String() string {
	plain := func(s string) string {
		for i, r := range s {
			if r != '_' && (r < 'a' || r > 'z') && (i == 0 || r < '0' || r > '9') {
				return Quote(s)
			}
		}
		return s
	}
	if n.Schema == "" {
		return plain(n.Table)
	}
	return plain(n.Schema) + "." + plain(n.Table)
}
