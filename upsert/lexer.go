package upsert

import (
	"errors"
	"strings"
)

// identifiers reads a piece of SQL that a user wrote, an index expression or a predicate, and returns the names in
// it, as PostgreSQL folds them: of columns, functions, types and keywords alike. It refuses what could leave the
// piece: a semicolon, a comment, an unclosed quote or parenthesis; and a parameter, with which PostgreSQL could match
// no index once a generic plan is made.
func identifiers(sql string) ([]string, error) {
	var names []string
	depth := 0
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case c == '\'' || c == '"':
			end := closing(sql, i)
			if end < 0 {
				return nil, errors.New("it has a quote that is not closed")
			}
			if c == '"' {
				names = append(names, strings.ReplaceAll(sql[i+1:end], `""`, `"`))
			} else if i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E') && strings.IndexByte(sql[i:end], '\\') >= 0 {
				return nil, errors.New("it has a string with a backslash escape; write it without")
			}
			i = end + 1
			continue
		case isLetter(c):
			start := i
			for i < len(sql) && (isLetter(sql[i]) || sql[i] >= '0' && sql[i] <= '9' || sql[i] == '$') {
				i++
			}
			names = append(names, strings.ToLower(sql[start:i]))
			continue
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return nil, errors.New("its parentheses do not match")
			}
		case c == ';':
			return nil, errors.New("it holds a semicolon")
		case c == 0:
			return nil, errors.New("it holds a NUL")
		case c == '$':
			return nil, errors.New("it has a parameter or a dollar quote; write the literal")
		case strings.HasPrefix(sql[i:], "--") || strings.HasPrefix(sql[i:], "/*"):
			return nil, errors.New("it holds a comment")
		}
		i++
	}
	if depth != 0 {
		return nil, errors.New("its parentheses do not match")
	}
	return names, nil
}

// closing returns where the quote that opens at i is closed, doubled ones skipped, or -1.
func closing(sql string, i int) int {
	for j := i + 1; j < len(sql); j++ {
		if sql[j] != sql[i] {
			continue
		}
		if j+1 < len(sql) && sql[j+1] == sql[i] {
			j++
			continue
		}
		return j
	}
	return -1
}

func isLetter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
