package faultconn

import "strings"

// Statement fits each message that runs a statement: a Query, and the Execute of the extended protocol. Counting with
// it counts statements instead of messages; a Query of several statements counts once.
func Statement(m Message) bool {
	return m.From == Frontend && (m.Type == "Query" || m.Type == "Execute")
}

// Containing returns a predicate that fits each message that runs a statement with text in its SQL, in any case.
func Containing(text string) func(Message) bool {
	text = strings.ToLower(text)
	return func(m Message) bool { return Statement(m) && strings.Contains(strings.ToLower(m.SQL), text) }
}

// Commit fits each message that runs a COMMIT, or END: a Query with one among its statements, and the Execute of one
// that was prepared. It says nothing about whether there is a transaction to commit.
func Commit(m Message) bool {
	if !Statement(m) {
		return false
	}
	for _, word := range firstWords(m.SQL) {
		if word == "commit" || word == "end" {
			return true
		}
	}
	return false
}

// CommitReply fits the server's word that a COMMIT was done. (A COMMIT in a failed transaction is answered with
// ROLLBACK, and does not fit.)
func CommitReply(m Message) bool {
	return m.From == Backend && m.Type == "CommandComplete" && m.Tag == "COMMIT"
}

// A token is the kind of a piece of SQL text.
type token uint8

const (
	blank   token = iota // white space and comments
	word                 // key words and bare names
	literal              // string and number constants
	end                  // a semicolon
	other                // operators, quoted names, $1
)

// mask returns sql with each string and number constant replaced by a question mark.
func mask(sql string) string {
	var b strings.Builder
	scan(sql, func(t token, text string) {
		if t == literal {
			text = "?"
		}
		b.WriteString(text)
	})
	return b.String()
}

// firstWords returns the first word of each statement of sql, in lower case.
func firstWords(sql string) []string {
	var words []string
	start := true
	scan(sql, func(t token, text string) {
		switch t {
		case blank:
		case end:
			start = true
		default:
			if start && t == word {
				words = append(words, strings.ToLower(text))
			}
			start = false
		}
	})
	return words
}

// scan cuts sql into tokens by PostgreSQL's lexical rules, with standard_conforming_strings on.
func scan(sql string, emit func(t token, text string)) {
	for len(sql) > 0 {
		t, n := lex(sql)
		emit(t, sql[:n])
		sql = sql[n:]
	}
}

// lex returns the kind and length of the first token of sql, which is not empty.
func lex(sql string) (token, int) {
	c := sql[0]
	switch {
	case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
		return blank, 1
	case strings.HasPrefix(sql, "--"):
		if i := strings.IndexByte(sql, '\n'); i >= 0 {
			return blank, i + 1
		}
		return blank, len(sql)
	case strings.HasPrefix(sql, "/*"):
		return blank, comment(sql)
	case c == ';':
		return end, 1
	case c == '\'':
		return literal, quoted(sql, '\'', false)
	case (c == 'e' || c == 'E') && strings.HasPrefix(sql[1:], "'"):
		return literal, 1 + quoted(sql[1:], '\'', true)
	case c == '"':
		return other, quoted(sql, '"', false)
	case c == '$':
		return dollar(sql)
	case isDigit(c), c == '.' && len(sql) > 1 && isDigit(sql[1]):
		return literal, number(sql)
	case isLetter(c):
		n := 1
		for n < len(sql) && (isLetter(sql[n]) || isDigit(sql[n]) || sql[n] == '$') {
			n++
		}
		return word, n
	}
	return other, 1
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}

// comment returns the length of a block comment, which may hold others.
func comment(sql string) int {
	depth, i := 0, 0
	for i < len(sql) {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(sql)
}

// quoted returns the length of a piece in quotes; a doubled quote does not end it, nor does one after a backslash where
// escapes count.
func quoted(sql string, quote byte, escapes bool) int {
	for i := 1; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] != quote:
		case i+1 < len(sql) && sql[i+1] == quote:
			i++
		default:
			return i + 1
		}
	}
	return len(sql)
}

// dollar reads what begins with a dollar sign: a parameter, a dollar-quoted string, or the sign alone.
func dollar(sql string) (token, int) {
	n := 1
	for n < len(sql) && (isDigit(sql[n]) || isLetter(sql[n])) {
		n++
	}
	if n > 1 && isDigit(sql[1]) {
		return other, n
	}
	if n == len(sql) || sql[n] != '$' {
		return other, 1
	}
	tag := sql[:n+1]
	if i := strings.Index(sql[n+1:], tag); i >= 0 {
		return literal, n + 1 + i + len(tag)
	}
	return literal, len(sql)
}

// number returns the length of a numeric constant.
func number(sql string) int {
	n := 1
	for n < len(sql) {
		c := sql[n]
		exponent := (c == '+' || c == '-') && (sql[n-1] == 'e' || sql[n-1] == 'E') && n+1 < len(sql) && isDigit(sql[n+1])
		if !isDigit(c) && !isLetter(c) && c != '.' && !exponent {
			break
		}
		n++
	}
	return n
}
