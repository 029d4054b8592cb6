package idemhttp

import (
	"errors"
	"strings"
)

// maxKey is the longest key in bytes, as with Stripe.
const maxKey = 255

var (
	errMissing = errors.New("the header is missing")
	errTwice   = errors.New("the header comes more than once")
	errQuoted  = errors.New("the header is no string of RFC 9651: the key between double quotes, and nothing after")
	errBare    = errors.New("a key without quotes must be visible ASCII, without comma, semicolon, quote or backslash")
	errBlank   = errors.New("the key is empty or blank")
	errLong    = errors.New("the key is longer than 255 characters")
)

// parseKey returns the key in the lines of a header. Both spellings of a key are one key: a string of Structured Fields
// ("abc", in double quotes), and bare (abc), as Stripe's clients send it.
//
// Parameters behind the string are refused: the draft defines none, and two requests that differ in one would be one.
func parseKey(lines []string) (string, error) {
	switch len(lines) {
	case 0:
		return "", errMissing
	case 1:
	default:
		return "", errTwice
	}
	line := strings.Trim(lines[0], " \t")
	key, err := line, error(nil)
	if strings.HasPrefix(line, `"`) {
		key, err = unquote(line)
	} else if !isBare(line) {
		err = errBare
	}
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(key) == "":
		return "", errBlank
	case len(key) > maxKey:
		return "", errLong
	}
	return key, nil
}

// unquote is section 4.2.5 of RFC 9651, with nothing allowed behind the string.
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' && i == len(s)-1:
			return b.String(), nil
		case c == '"', c < ' ', c > '~':
			return "", errQuoted
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", errQuoted
			}
		}
		b.WriteByte(s[i])
	}
	return "", errQuoted
}

func isBare(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(`",;\`, c) >= 0 {
			return false
		}
	}
	return true
}
