package faultconn

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommitPredicate(t *testing.T) {
	for sql, want := range map[string]bool{
		"commit":                              true,
		"COMMIT":                              true,
		"Commit;":                             true,
		" \n-- really\n/* /* so */ */ commit": true,
		"commit and chain":                    true,
		"COMMIT PREPARED 'x'":                 true,
		"END":                                 true,
		"begin; insert into t values (1); commit":    true,
		"insert into t values (';commit'); select 1": false,
		"select $$;commit$$":                         false,
		"select $a$;commit;$$;$a$":                   false,
		`select ";commit"`:                           false,
		"select E'\\';commit'":                       false,
		"select 'it''s;commit'":                      false,
		"-- commit":                                  false,
		"/* commit */":                               false,
		"select commit":                              false,
		"(commit)":                                   false,
		"committed":                                  false,
		"rollback":                                   false,
		"":                                           false,
		"select $1;commit":                           true,
		"select 1;commit":                            true,
		"select '\\';commit":                         true, // a backslash is an ordinary character
	} {
		require.Equal(t, want, Commit(Message{From: Frontend, Type: "Query", SQL: sql}), "%s", sql)
		require.Equal(t, want, Commit(Message{From: Frontend, Type: "Execute", SQL: sql}), "%s", sql)
		require.False(t, Commit(Message{From: Frontend, Type: "Parse", SQL: sql}), "%s", sql)
	}
}

func TestPredicates(t *testing.T) {
	query := Message{From: Frontend, Type: "Query", SQL: "INSERT INTO t"}
	require.True(t, Containing("insert INTO")(query))
	require.False(t, Containing("update")(query))
	require.False(t, Containing("insert")(Message{From: Frontend, Type: "Bind", SQL: query.SQL}))
	require.True(t, Statement(query))
	require.False(t, Statement(Message{From: Frontend, Type: "Sync"}))
	require.True(t, CommitReply(Message{From: Backend, Type: "CommandComplete", Tag: "COMMIT"}))
	require.False(t, CommitReply(Message{From: Backend, Type: "CommandComplete", Tag: "ROLLBACK"}))
}

func TestMask(t *testing.T) {
	for sql, want := range map[string]string{
		"insert into t1 values ( 'it''s' ,  42 , (-1.5e-3) , $1, x$2)": "insert into t1 values ( ? ,  ? , (-?) , $1, x$2)",
		`select "a 'b' 1", E'\'x', B'01', .5, 0x1F, 1_000`:             `select "a 'b' 1", ?, B?, ?, ?, ?`,
		"select $$x$$, $tag$ $$ $tag$, $":                              "select ?, ?, $",
		"select 'open":                                                 "select ?",
		"select 'a'\n'b'":                                              "select ?\n?",
		"-- note 1\nselect a-1":                                        "-- note 1\nselect a-?",
		"select 'ü' as ü1":                                             "select ? as ü1",
	} {
		require.Equal(t, want, mask(sql))
	}
}

// FuzzScan: the tokens are the text, and what is masked once has nothing more to mask.
func FuzzScan(f *testing.F) {
	for _, sql := range []string{
		"select 'a', E'\\'', $a$ $$ $a$, 1e-5, /* /* */", "$", "'", "\"", "--", "e'", "$1$2",
		".5.", "1e+",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		var all strings.Builder
		scan(sql, func(_ token, text string) {
			require.NotEmpty(t, text)
			all.WriteString(text)
		})
		require.Equal(t, sql, all.String())
		require.Equal(t, mask(sql), mask(mask(sql)))
		firstWords(sql)
	})
}
