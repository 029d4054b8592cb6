package upsert_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// A value of many parts comes back as the server writes it in a session with the default settings, in any session.
func TestCompositesReadBack(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string  `db:"id"`
		V  *string `db:"v"`
		N  int     `db:"n"`
	}
	const ddl = `CREATE TYPE mood AS ENUM ('calm', 'so so');
		CREATE DOMAIN moment AS timestamptz(3);
		CREATE TYPE inner_ AS (f float4, s text, a float8[], r daterange);
		CREATE TYPE every AS (at moment, ts timestamp, d date, tm time, tz timetz, iv interval, n numeric, i int8, o oid, b bool, f float8,
			x bytea, m money, u uuid, ip inet, net cidr, mac macaddr, bits varbit, c "char", j json, jb jsonb, e mood, t varchar, bp char(3),
			p point, ln line, ls lseg, pa path, pb path, po polygon, ci circle, bx box, bxs box[], r tstzrange, rs tstzmultirange, i_ inner_, is_ inner_[], es mood[], ns numeric[]);
		CREATE TABLE things (id text PRIMARY KEY, v every, n int)`
	const values = `
		SELECT 'none', NULL::every UNION ALL SELECT 'empty', ('(' || repeat(',', 38) || ')')::every UNION ALL
		SELECT 'all', ROW('2026-03-01 12:00:00.1234+02', '0044-03-15 00:00:00 BC', '10000-01-01', '24:00:00', '12:30:00.5-03:30', '-1 mon 2 days -00:00:01', 1.50, -7,
			4294967295, true, 0.1::float8 + 0.2, '\x00ff22', '-1234567.05', '00000000-0000-0000-0000-0000000000ff', '10.0.0.1', '10.0.0.0/24', '08:00:2b:01:02:03', '101', 'x',
			'{"a": "b c"}', '{"a": "\"" }', 'so so', 'a "b" \ (c), d', 'ab', '(0.1,1e+300)', '{1,-2,1e-7}', '[(1,2),(0.1,1e17)]', '((1,2),(0.1,3))', '[(1,2),(0.1,3)]', '((1,2),(0.1,NaN))', '<(1,0.1),2>', '(3,4),(1,2)', ARRAY['(3,4),(1,2)'::box, NULL], '[2026-03-01 00:00:00+00,)',
			'{[2026-03-01 00:00:00+00,2026-03-02 00:00:00+00),(2027-01-01 00:00:00+00,)}', ROW(0.1, '', '{NaN,-Infinity,1e-7}', '[2026-03-01,2026-03-02)'),
			ARRAY[ROW(1, NULL, NULL, 'empty')::inner_, NULL], '{calm,NULL,"so so"}', '{1.50,NaN,12300,0.00010}')::every UNION ALL
		SELECT 'more', ROW('infinity', '-infinity', '0001-01-01 BC', '00:00:00', '00:00:00+14', '1 year 2 mons -3 days +04:05:06.789', 'NaN', 0, 0, false, 'NaN',
			'', 0, NULL, '::1/64', '::/0', NULL, '', '', 'null', '1', 'calm', ' ', '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', 'empty', '{}', '(,,,)', '{}', '{}', '{{1,2},{3,4}}')::every`
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, settled(cfg, map[string]string{"TimeZone": "UTC"}))
	exec(t, pool, ddl, pgx.QueryExecModeSimpleProtocol)
	exec(t, pool, "INSERT INTO things SELECT v.id, v.v, 2 FROM ("+values+") AS v (id, v)", pgx.QueryExecModeSimpleProtocol)
	stmt := upsert.Into[row]("things").OnConflict("id").Set("v").Version("n").MustBuild()
	require.NoError(t, upsert.Verify(ctx, pool, stmt))
	for i, settings := range append(hostile, nil) {
		db := pgtest.PoolConfig(t, settled(cfg, settings))
		for _, id := range []string{"none", "empty", "all", "more"} {
			want := get[*string](t, pool, "SELECT v::text FROM things WHERE id = $1", id)
			res, err := stmt.Exec(ctx, db, row{ID: id, N: 1})
			require.NoError(t, err)
			require.Equal(t, strings.Split(form(want), `,`), strings.Split(form(res.Stored.V), `,`), "%s, settings %d", id, i)
			if want == nil {
				continue
			}
			// And what came back is what was stored.
			again := fmt.Sprint(id, " again ", i)
			_, err = stmt.Exec(ctx, pool, row{again, res.Stored.V, 1})
			require.NoError(t, err)
			require.True(t, get[bool](t, pool,
				"SELECT record_image_eq((SELECT v FROM things WHERE id = $1), (SELECT v FROM things WHERE id = $2))", id, again))
		}
	}
}

// A difference that the session's text form hides is one: nothing of this is lost with LastWins, and it is a conflict
// with Version.
func TestHiddenDifferences(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string `db:"id"`
		V  string `db:"v"`
		N  int    `db:"n"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, "CREATE TYPE event AS (f float8)")
	blind := pgtest.PoolConfig(t, settled(cfg, map[string]string{"extra_float_digits": "-15"}))
	for n, tt := range []struct{ typ, one, other string }{
		{"float8[]", "{0.1}", "{0.11}"},
		{"point", "(0.1,1)", "(0.11,1)"},
		{"event", "(0.1)", "(0.11)"},
		{"event[]", `{(0.1)}`, `{(0.11)}`},
	} {
		table := fmt.Sprint("things_", n)
		exec(t, pool, "CREATE TABLE "+table+" (id text PRIMARY KEY, v "+tt.typ+", n int)")
		last := upsert.Into[row](table).OnConflict("id").Set("v", "n").LastWins().MustBuild()
		newest := upsert.Into[row](table).OnConflict("id").Set("v").Version("n").MustBuild()
		_, err := last.Exec(ctx, blind, row{"1", tt.one, 1})
		require.NoError(t, err)
		_, err = newest.Exec(ctx, blind, row{"1", tt.other, 1})
		require.ErrorIs(t, err, upsert.ErrVersionConflict, tt.typ)
		for i, v := range []string{tt.other, tt.one} {
			var res upsert.Result[row]
			if i == 0 {
				res, err = last.Exec(ctx, blind, row{"1", v, 1})
			} else {
				_, err = last.ExecMany(ctx, blind, slices.Values([]row{{"1", v, 1}}), func(_ int, r upsert.Result[row]) { res = r })
			}
			require.NoError(t, err)
			require.Equal(t, upsert.Updated, res.Outcome, tt.typ)
			require.Equal(t, v, res.Stored.V, tt.typ)
		}
	}
}

// Keys whose text is the same in the session are keys of their own.
func TestHiddenKeys(t *testing.T) {
	t.Parallel()
	type row struct {
		K    float64 `db:"k"`
		Note *string `db:"note"`
		V    int     `db:"v"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, "CREATE TABLE spots (k float8 PRIMARY KEY, note text NOT NULL, v int)")
	blind := pgtest.PoolConfig(t, settled(cfg, map[string]string{"extra_float_digits": "-15"}))
	stmt := upsert.Into[row]("spots").OnConflict("k").SetIfNotNull("note").Version("v").MustBuild()
	_, err := stmt.ExecMany(ctx, blind, slices.Values([]row{{0.1, ptr("a"), 1}, {0.11, ptr("b"), 1}}), nil)
	require.NoError(t, err)
	sum, err := stmt.ExecMany(ctx, blind, slices.Values([]row{{0.1, nil, 2}, {0.11, ptr("c"), 2}, {0.12, ptr("d"), 2}}),
		nil)
	require.NoError(t, err)
	require.Equal(t, upsert.Summary{Inserted: 1, Updated: 2}, sum)
	require.Equal(t, "a c d", get[string](t, pool, "SELECT string_agg(note, ' ' ORDER BY k) FROM spots"))
}

// A name with a backslash is the same name where standard_conforming_strings is off.
func TestBackslashInNames(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string `db:"id"`
		V  string `db:"a\\n'"`
		N  int    `db:"n"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, `CREATE TABLE "things\n" (id text PRIMARY KEY, "a\n'" numeric(6,2), n int)`)
	stmt := upsert.Into[row](`things\n`).OnConflict("id").Set(`a\n'`).Version("n").MustBuild()
	for _, settings := range []map[string]string{
		nil,
		{"standard_conforming_strings": "off", "escape_string_warning": "off"},
	} {
		db := pgtest.PoolConfig(t, settled(cfg, settings))
		exec(t, pool, `TRUNCATE "things\n"`)
		for _, want := range []upsert.Outcome{upsert.Inserted, upsert.Unchanged} {
			res, err := stmt.Exec(ctx, db, row{"1", "1.005", 1})
			require.NoError(t, err)
			require.Equal(t, want, res.Outcome)
		}
	}
}

// An amount of money is the same in every session, or refused: where lc_monetary reads 12.30 as C does, and nowhere
// else.
func TestMoney(t *testing.T) {
	t.Parallel()
	type row struct {
		ID string   `db:"id"`
		V  string   `db:"v"`
		A  []string `db:"a"`
		N  int      `db:"n"`
	}
	ctx := context.Background()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, "CREATE TABLE prices (id text PRIMARY KEY, v money, a money[], n int)")
	stmt := upsert.Into[row]("prices").OnConflict("id").Set("v", "a").Version("n").MustBuild()
	rows, err := pool.Query(ctx, "SELECT collname::text FROM pg_collation WHERE collprovider = 'c' ORDER BY 1")
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, locale := range append(names, "de_DE.utf8", "en_GB.utf8", "ja_JP.utf8") {
		if _, err := pool.Exec(ctx, "SELECT set_config('lc_monetary', $1, true)", locale); err != nil {
			continue // this server has it not
		}
		db := pgtest.PoolConfig(t, settled(cfg, map[string]string{"lc_monetary": locale}))
		given := row{locale, "1,234.50", []string{"-0.07", "12"}, 1}
		res, err := stmt.Exec(ctx, db, given)
		_, many := stmt.ExecMany(ctx, db, slices.Values([]row{{locale + " many", given.V, given.A, 1}}), nil)
		stored := get[int](t, pool, "SELECT count(*) FROM prices WHERE id LIKE $1 || '%'", locale)
		t.Log(locale, err)
		if err != nil {
			require.Error(t, many, locale)
			require.Zero(t, stored, locale)
			require.NotContains(t, []string{"C", "POSIX"}, locale)
			continue
		}
		require.NoError(t, many, locale)
		require.Equal(t, row{locale, "$1,234.50", []string{"-$0.07", "$12.00"}, 1}, res.Stored)
		require.Equal(t, 2, get[int](t, pool, "SELECT count(*) FROM prices WHERE id LIKE $1 || '%' AND v::numeric = 1234.5",
			locale))
	}
}
