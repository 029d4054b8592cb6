package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// contents describes what is in a database, in as far as a test could make it differ from a new one.
const contents = `
SELECT concat_ws(' ',
	(SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type),
	(SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'), (SELECT count(*) FROM pg_operator),
	(SELECT count(*) FROM pg_cast), (SELECT count(*) FROM pg_am), (SELECT count(*) FROM pg_language),
	(SELECT count(*) FROM pg_collation), (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_event_trigger),
	(SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_largeobject_metadata),
	(SELECT count(*) FROM pg_foreign_data_wrapper), (SELECT count(*) FROM pg_statistic_ext), (SELECT count(*) FROM pg_trigger),
	(SELECT nspowner::regrole || ' ' || nspacl::text FROM pg_namespace WHERE nspname = 'public'),
	(SELECT datconnlimit || ' ' || coalesce(datacl::text, '') FROM pg_database WHERE datname = current_database()),
	(SELECT count(*) FROM pg_db_role_setting WHERE setdatabase <> 0
		AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())))`

// Whatever a test does to its database, the next one gets one that is like new.
func TestRecycle(t *testing.T) {
	t.Parallel()
	s, err := current()
	require.NoError(t, err)
	want := contentsOf(t, s, makeDatabase(t, s))
	for name, tc := range map[string]struct {
		sql     string
		dropped bool // rather than emptied
	}{
		"nothing":            {"", false},
		"table":              {`CREATE TABLE t (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x text); CREATE VIEW v AS TABLE t`, false},
		"schema":             {`CREATE SCHEMA "a b"; CREATE TYPE "a b".e AS ENUM ('x'); CREATE DOMAIN d AS int4`, false},
		"function":           {`CREATE FUNCTION f() RETURNS int4 LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION f2(int8, text) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR = (LEFTARG = int8, RIGHTARG = text, FUNCTION = f2)`, false},
		"no public":          {`DROP SCHEMA public`, false},
		"rights":             {`REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC`, false},
		"materialized":       {`CREATE TABLE t (a int4, b int4); CREATE MATERIALIZED VIEW m AS TABLE t; CREATE STATISTICS st ON a, b FROM t`, false},
		"database setting":   {`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END$$`, true},
		"database rights":    {`DO $$BEGIN EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database()); END$$`, true},
		"connection limit":   {`DO $$BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 50', current_database()); END$$`, true},
		"event trigger":      {`CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION f()`, true},
		"publication":        {`CREATE PUBLICATION p FOR ALL TABLES`, true},
		"default privileges": {`ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC`, true},
		"large object":       {`SELECT lo_create(0)`, true},
		"foreign data":       {`CREATE FOREIGN DATA WRAPPER w`, true},
		"access method":      {`CREATE ACCESS METHOD am TYPE TABLE HANDLER heap_tableam_handler`, true},
		"cast":               {`CREATE CAST (point AS int4) WITH INOUT`, true},
		"system function":    {`CREATE FUNCTION pg_catalog.sneaky() RETURNS int4 LANGUAGE sql AS 'SELECT 1'`, true},
		"no language":        {`DROP EXTENSION plpgsql`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := makeDatabase(t, s)
			conn := connectTo(t, s, old) // and it stays connected, with a temporary table
			_, err := conn.Exec(t.Context(), `CREATE TEMPORARY TABLE tmp (x int4)`)
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), tc.sql)
			require.NoError(t, err)

			mine := &server{admin: s.admin} // with a list of its own
			err = mine.recycle(t.Context(), old)
			if tc.dropped {
				require.Error(t, err)
				require.Empty(t, mine.recycled(t.Context()))
				return
			}
			require.NoError(t, err)
			name := mine.recycled(t.Context())
			require.NotEmpty(t, name)
			t.Cleanup(func() { s.dropDatabase(context.Background(), name) })
			require.Equal(t, want, contentsOf(t, s, name))
			require.Error(t, conn.Ping(t.Context()))
			requireDatabase(t, old, false)
		})
	}
}

// Somebody who comes back to a database that was given up does not meet the next test.
func TestRecycleInUse(t *testing.T) {
	t.Parallel()
	s, err := current()
	require.NoError(t, err)
	old := makeDatabase(t, s)
	mine := &server{admin: s.admin}
	require.NoError(t, mine.recycle(t.Context(), old))
	conn := connectTo(t, s, old)
	require.Empty(t, mine.recycled(t.Context()))
	require.Error(t, conn.Ping(t.Context()))
	requireDatabase(t, old, false)
}

func makeDatabase(t *testing.T, s *server) string {
	t.Helper()
	name := newName()
	require.NoError(t, s.createDatabase(t.Context(), name))
	t.Cleanup(func() { s.dropDatabase(context.Background(), name) })
	return name
}

func connectTo(t *testing.T, s *server, name string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.dsn(name))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func contentsOf(t *testing.T, s *server, name string) string {
	t.Helper()
	var got string
	require.NoError(t, connectTo(t, s, name).QueryRow(t.Context(), contents).Scan(&got))
	return got
}
