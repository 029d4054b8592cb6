package pg

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckEffect(t *testing.T) {
	for _, sql := range []string{
		`INSERT INTO t VALUES (1)`, "  \n-- a; b\n/* c; /* d; */ e */ uPdAtE t SET a = ';' -- end; of it", `delete from t;`,
		`SELECT 1 ; ; -- a`,
		`(SELECT 1) UNION (SELECT 2)`, `with a as (select 1) insert into t select * from a`, `VALUES (1)`, `NOTIFY a, ';'`,
		`MERGE INTO t USING u ON true`,
		`SELECT 'it''s; ', E'a\'; b', e'\\', "a"";" , $a$ ; $b$ ; $a$, $$;$$, $1, a$b$c`, "SELECT E'a'\n'b\\'; c'",
		`SELECT $1;`, `SELECT U&'\0061;'`,
		`SELECT 1 /* not closed; a`, `SELECT 'not closed; a`, `SELECT $a$ not closed; a`,
	} {
		require.NoError(t, checkEffect(sql), sql)
	}
	for _, sql := range []string{
		"", " ", ";", "-- SELECT 1", "/* SELECT 1", "BEGIN", "begin isolation level serializable", "COMMIT", " ; commit",
		";SELECT 1", "end", "ROLLBACK", "ABORT", "SAVEPOINT a",
		"ROLLBACK TO a", "RELEASE a", "START TRANSACTION", "PREPARE TRANSACTION 'a'", "SET TRANSACTION READ ONLY",
		"SET LOCAL a.b = 1",
		"CALL p()", "DO $$ BEGIN COMMIT; END $$", "VACUUM", "COPY t FROM STDIN", "EXECUTE a", "EXPLAIN ANALYZE SELECT 1",
		"CREATE TABLE a (b int)",
		"inserts", "insert2", "stmt_1", `"insert"`, `'insert'`, "LOCK TABLE a",
	} {
		require.ErrorIs(t, checkEffect(sql), errEffectWord, sql)
	}
	for _, sql := range []string{
		"SELECT 1; COMMIT", "SELECT 1;COMMIT;", "SELECT 1; /* a */ COMMIT", "SELECT ';'; COMMIT",
		"SELECT 'a\\'; COMMIT; --'", `SELECT "a""";COMMIT`,
		"SELECT E'a\\''; COMMIT; --'", "SELECT E'a'\n'b\\''; COMMIT; --'", "SELECT E'a''b\\''; COMMIT; --'",
		"SELECT $a$ $b$ $a$; COMMIT", "SELECT $1;COMMIT",
		"SELECT a$b$; COMMIT; SELECT $b$", "SELECT 1 -- a\n; COMMIT", "SELECT 1 /* /* */ */; COMMIT",
		"INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
		"SELECT 1 -- a\r; COMMIT",
	} {
		require.ErrorIs(t, checkEffect(sql), errEffectMany, sql)
	}
}
