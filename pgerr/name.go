package pgerr

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name that PostgreSQL keeps, in bytes (NAMEDATALEN - 1). It cuts a longer one without an error.
const maxName = 63

// name is a constraint's name as a caller writes it.
type name struct {
	schema     string // "" where none was given
	constraint string
}

// parseName reads constraint or schema.constraint. A part that holds a dot is written in quotes, and a quote inside of
// those doubled. The case is kept with and without quotes: it is the stored name that is asked for.
func parseName(s string) (name, error) {
	if strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
		return name{}, errors.New("it holds a NUL or is not UTF-8")
	}
	first, rest, more, err := cutPart(s)
	if err != nil {
		return name{}, err
	}
	if !more {
		return name{constraint: first}, nil
	}
	second, _, more, err := cutPart(rest)
	if err != nil {
		return name{}, err
	}
	if more {
		return name{}, errors.New("it has more than two parts; a part that holds a dot is written in quotes")
	}
	return name{schema: first, constraint: second}, nil
}

// cutPart cuts the first part off a dotted name. more says that a dot came after it.
func cutPart(s string) (part, rest string, more bool, err error) {
	if strings.HasPrefix(s, `"`) {
		part, rest, err = cutQuoted(s[1:])
		if err == nil && rest != "" && rest[0] != '.' {
			err = errors.New("it goes on behind a closing quote")
		}
		rest, more = strings.CutPrefix(rest, ".")
	} else {
		part, rest, more = strings.Cut(s, ".")
	}
	if err == nil && part == "" {
		err = errors.New("it is empty, or a part of it is")
	}
	return part, rest, more, err
}

// cutQuoted cuts a quoted part, given without its opening quote, at its closing one.
func cutQuoted(s string) (part, rest string, err error) {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, `"`)
		if !ok {
			return "", "", errors.New("it has a quote that is not closed")
		}
		b.WriteString(before)
		if !strings.HasPrefix(after, `"`) {
			return b.String(), after, nil
		}
		b.WriteByte('"')
		s = after[1:]
	}
}

// stored reports whether PostgreSQL stores the name want, as written by a caller, as got.
func stored(want, got string) bool {
	// want == got comes first for databases in a single-byte encoding: 63 bytes there can be more of UTF-8.
	return got != "" && (want == got || clip(want) == got)
}

// clip cuts s as PostgreSQL does in a UTF-8 database: to maxName bytes, or a few less where a character would be split.
func clip(s string) string {
	if len(s) <= maxName {
		return s
	}
	n := maxName
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
