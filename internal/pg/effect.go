package pg

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// effect is a statement of the caller's in a [Whole], and rewrites itself when it is sent.
type effect struct {
	sql   string
	args  []any
	inner pgx.QueryRewriter // of the caller's
	ends  bool              // it is the last one
}

// RewriteQuery implements pgx.QueryRewriter.
//
// In the simple protocol the server commits before it completes the last statement, so that a COMMIT that fails would
// look like an effect that does. Another statement keeps the two apart.
func (e effect) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, args []any) (string, []any, error) {
	if e.inner != nil {
		var err error
		if sql, args, err = e.inner.RewriteQuery(ctx, conn, sql, args); err != nil {
			return "", nil, err
		}
		if err := checkEffect(sql); err != nil {
			return "", nil, err
		}
	}
	if e.ends && conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		sql += "\n;SELECT 1"
	}
	return sql, args, nil
}

// The statements that may travel behind a claim, by their first word. None of them can end the transaction, whatever
// functions they call. A CALL, a DO, or what the server runs outside of transactions could, for the transaction has no
// BEGIN of its own.
var effectWords = []string{"insert", "update", "delete", "merge", "select", "with", "values", "notify"}

var (
	errEffectWord = errors.New("an effect must be an INSERT, UPDATE, DELETE, MERGE, SELECT, WITH, VALUES or NOTIFY, " +
		"given by its text; use Run for others")
	errEffectMany = errors.New("an effect must be one statement; queue the others by themselves")
)

// checkEffect refuses a text that is not one statement of these.
func checkEffect(sql string) error {
	word, i := "", 0
	for ; i < len(sql) && word == ""; i++ {
		if n := blank(sql[i:]); n > 0 {
			i += n - 1
			continue
		}
		if sql[i] == '(' { // (SELECT ...) UNION ...
			continue
		}
		for n := i; n < len(sql) && isWord(sql[n]); n++ {
			word = sql[i : n+1]
		}
		if word == "" {
			return errEffectWord
		}
		i += len(word) - 1
	}
	if !slices.Contains(effectWords, strings.ToLower(word)) {
		return errEffectWord
	}
	end := false     // a semicolon was seen
	escapes := false // the string that begins here, or goes on behind a blank, has backslash escapes
	for i < len(sql) {
		n := blank(sql[i:])
		switch {
		case n > 0:
		case end && sql[i] != ';':
			return errEffectMany
		default:
			end = sql[i] == ';'
			escapes = escapes && sql[i] == '\'' || escaped(sql, i)
			n = opaque(sql, i, escapes)
		}
		i += n
	}
	return nil
}

// escaped reports whether E'...' begins at i, behind its E.
func escaped(sql string, i int) bool {
	return i > 0 && sql[i] == '\'' && (sql[i-1] == 'e' || sql[i-1] == 'E') &&
		(i == 1 || !isWord(sql[i-2]) && sql[i-2] != '$')
}

// blank returns the length of the space or the comment at the beginning of sql; 0: there is none.
func blank(sql string) int {
	switch {
	case strings.IndexByte(" \t\n\r\f\v", sql[0]) >= 0:
		return 1
	case strings.HasPrefix(sql, "--"):
		if n := strings.IndexAny(sql, "\n\r"); n >= 0 {
			return n
		}
		return len(sql)
	case strings.HasPrefix(sql, "/*"):
		depth := 0
		for i := 0; i < len(sql); i++ {
			switch rest := sql[i:]; {
			case strings.HasPrefix(rest, "/*"):
				depth++
				i++
			case strings.HasPrefix(rest, "*/"):
				depth--
				i++
			}
			if depth == 0 {
				return i + 1
			}
		}
		return len(sql)
	}
	return 0
}

// opaque returns the length of what begins at i: a string, a quoted name, or one byte.
func opaque(sql string, i int, escapes bool) int {
	rest := sql[i:]
	switch c := rest[0]; {
	case c == '\'' || c == '"':
		for n := 1; n < len(rest); n++ {
			switch {
			case escapes && rest[n] == '\\':
				n++
			case rest[n] == c:
				return n + 1 // a doubled one begins another string, at once, with the same escapes
			}
		}
		return len(rest)
	case c == '$' && (i == 0 || !isWord(sql[i-1]) && sql[i-1] != '$'):
		n := 1
		for n < len(rest) && isWord(rest[n]) {
			n++
		}
		if n == len(rest) || rest[n] != '$' || n > 1 && rest[1] >= '0' && rest[1] <= '9' {
			return n // a parameter
		}
		tag := rest[:n+1]
		if end := strings.Index(rest[len(tag):], tag); end >= 0 {
			return end + 2*len(tag)
		}
		return len(rest)
	}
	return 1
}
