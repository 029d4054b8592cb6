package pg

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPin(t *testing.T) {
	for sql, want := range map[string]string{
		// what has a name
		`SELECT now(), x.now(1), coalesce(a, b), left(a, 1)`:   `SELECT pg_catalog.now(), x.now(1), coalesce(a, b), pg_catalog.left(a, 1)`,
		`SELECT a::text, b::integer, c::own.text, d::"char"`:   `SELECT a::pg_catalog.text, b::integer, c::own.text, d::pg_catalog."char"`,
		`SELECT a::int2[], b::bit(64)::bigint`:                 `SELECT a::pg_catalog.int2[], b::bit(64)::bigint`,
		`SELECT timestamptz 'epoch', timestamp 'epoch'`:        `SELECT pg_catalog.timestamptz 'epoch', timestamp 'epoch'`,
		`SELECT a COLLATE "C", b COLLATE x."C"`:                `SELECT a COLLATE pg_catalog."C", b COLLATE x."C"`,
		`INSERT INTO t (a) SELECT extract(epoch FROM a - b)`:   `INSERT INTO t (a) SELECT extract(epoch FROM a OPERATOR(pg_catalog.-) b)`,
		`SELECT count(*), e.*, * FROM e WHERE a IN ('1', '2')`: `SELECT pg_catalog.count(*), e.*, * FROM e WHERE a OPERATOR(pg_catalog.=) ANY (ARRAY['1', '2'])`,
		`SELECT a IN (SELECT b FROM f)`:                        `SELECT a OPERATOR(pg_catalog.=) ANY (SELECT b FROM f)`,
		`SELECT nullif(a || b, '')::int8`:                      `SELECT (CASE WHEN (a OPERATOR(pg_catalog.||) b) OPERATOR(pg_catalog.=) ( '') THEN NULL ELSE a OPERATOR(pg_catalog.||) b END)::pg_catalog.int8`,

		// what has none
		`UPDATE t SET a = b = c, d = 1 WHERE e = f`: `UPDATE t SET a = b OPERATOR(pg_catalog.=) c, d = 1 WHERE e OPERATOR(pg_catalog.=) f`,
		`ALTER TABLE t SET (a = 0.02, b = 1)`:       `ALTER TABLE t SET (a = 0.02, b = 1)`,
		`SELECT 'a = now()', "b = now()", -1 -- c = now()
		 FROM /*d = now()*/e`: `SELECT 'a = now()', "b = now()", -1 -- c = now()
		 FROM /*d = now()*/e`,
		`SELECT 'it''s now()'`: `SELECT 'it''s now()'`,
		"SELECT a = " + AsIs("lower(b) = 'x'") +
			" = c": `SELECT a OPERATOR(pg_catalog.=) lower(b) = 'x' OPERATOR(pg_catalog.=) c`,
		`SELECT a OPERATOR(x.=) b AND c = d`: `SELECT a OPERATOR(x.=) b AND c OPERATOR(pg_catalog.=) d`,

		// what binds tighter than its neighbours
		`WHERE a = b + c * d AND e`: `WHERE a OPERATOR(pg_catalog.=) (b OPERATOR(pg_catalog.+) (c OPERATOR(pg_catalog.*) d)) AND e`,
		`WHERE a * b - c - d < e`:   `WHERE ((a OPERATOR(pg_catalog.*) b) OPERATOR(pg_catalog.-) c OPERATOR(pg_catalog.-) d) OPERATOR(pg_catalog.<) e`,
		`SELECT a - (b - c)`:        `SELECT a OPERATOR(pg_catalog.-) (b OPERATOR(pg_catalog.-) c)`,
		`SELECT a || ' ' || b, CASE WHEN c THEN d END || e <> f`: `SELECT a OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) b, ` +
			`(CASE WHEN c THEN d END OPERATOR(pg_catalog.||) e) OPERATOR(pg_catalog.<>) f`,
		`SELECT a::timestamp with time zone + b >= c AT TIME ZONE 'UTC'`: `SELECT (a::timestamp with time zone OPERATOR(pg_catalog.+) b) OPERATOR(pg_catalog.>=) c AT TIME ZONE 'UTC'`,
		`WHERE t.x & 3 = 3 OR k[n - 1] = 2`:                              `WHERE (t.x OPERATOR(pg_catalog.&) 3) OPERATOR(pg_catalog.=) 3 OR k[n OPERATOR(pg_catalog.-) 1] OPERATOR(pg_catalog.=) 2`,
	} {
		require.Equal(t, want, Pin(sql))
	}
}
