package pgtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ShadowPaths are the search paths that put the schema of the shadows before everything. The first is the server's
// default, where public is as everybody may write to it: so it is on PostgreSQL 14, and in databases that come from
// there. pg_catalog comes before all by default, so that only an inexact match in it is captured. The second names it
// last.
// (There are no blanks in them, which a URL keeps as "+" with some drivers.)
func ShadowPaths() []string { return []string{`"$user",public`, "evil,pg_catalog,public"} }

// shadowSchema returns the schema of a path that holds the shadows.
func shadowSchema(path string) string {
	if strings.HasPrefix(path, "evil") {
		return "evil"
	}
	return "public"
}

// aliceSQL is what the owner of the database does before, and there is nothing in it that is not usual. To create a
// temporary table is everybody's right anyway; that it is granted once more has the database dropped afterwards.
const aliceSQL = `
CREATE SCHEMA app;
CREATE SCHEMA IF NOT EXISTS evil;
CREATE ROLE mallory;
GRANT USAGE, CREATE ON SCHEMA evil TO mallory;
DO $do$ BEGIN EXECUTE pg_catalog.format('GRANT TEMPORARY ON DATABASE %I TO mallory', pg_catalog.current_database()); END $do$`

// shadowSQL makes a function for each one of pg_catalog, and for every operator's arguments, that leaves a trace which
// no rollback takes back, and raises an error; and operators for exact arguments where pg_catalog has an inexact match
// or an exact one. The aggregates are shadowed by functions. A role without any right but to create there runs it.
const shadowSQL = `
SET ROLE mallory;
CREATE SEQUENCE evil.witness;
GRANT ALL ON SEQUENCE evil.witness TO PUBLIC;
DO $do$
DECLARE
  x record;
  n int := 0;
  body text := $$LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.nextval(''evil.witness''::pg_catalog.regclass); RAISE EXCEPTION ''captured''; END'$$;
BEGIN
  FOR x IN
    WITH exact AS (SELECT o.oprname, o.oprleft, o.oprright, o.oprresult FROM pg_operator AS o WHERE o.oprleft <> 0),
         pair AS (SELECT t.oid FROM pg_type AS t WHERE t.typnamespace = 'pg_catalog'::regnamespace
                     AND t.typname IN ('int2', 'int4', 'int8', 'numeric', 'float8', 'interval', 'timestamptz', 'timestamp', 'date',
                                       'text', 'name', 'char', 'oid', 'regclass', 'regnamespace', 'varchar', 'jsonb')),
         names AS (SELECT unnest('{=,<>,<,<=,>,>=}'::text[]) AS name, true AS compares UNION ALL SELECT unnest('{+,-,*,/,%,||,&}'::text[]), false),
         inexact AS (SELECT name, l.oid AS l, z.oid AS r,
                            CASE WHEN compares THEN 'bool'::regtype WHEN z.oid = 'interval'::regtype THEN z.oid ELSE l.oid END AS result
                       FROM names CROSS JOIN pair AS l CROSS JOIN pair AS z)
    SELECT oprname AS name, oprleft AS l, oprright AS r, oprresult AS result FROM exact
     WHERE NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid IN (oprleft, oprright, oprresult) AND t.typtype = 'p')
    UNION ALL
    SELECT * FROM inexact WHERE NOT EXISTS (SELECT FROM exact WHERE oprname = name AND oprleft = l AND oprright = r)
  LOOP
    n := n + 1;
    EXECUTE format('CREATE FUNCTION evil.operator_%s(%s, %s) RETURNS %s %s', n, x.l::regtype, x.r::regtype, x.result::regtype, body);
    EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.operator_%s)', x.name, x.l::regtype, x.r::regtype, n);
  END LOOP;
  FOR x IN
    SELECT DISTINCT ON (p.proname, p.proargtypes::text) p.proname, p.proargtypes, p.proretset, t.typtype, p.prorettype
      FROM pg_proc AS p JOIN pg_type AS t ON t.oid = p.prorettype
     WHERE p.pronamespace = 'pg_catalog'::regnamespace
       AND NOT EXISTS (SELECT FROM unnest(p.proargtypes::oid[]) AS a JOIN pg_type AS t ON t.oid = a WHERE t.typtype = 'p')
  LOOP
    EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s', x.proname,
                   (SELECT string_agg(a::regtype::text, ', ' ORDER BY o) FROM unnest(x.proargtypes::oid[]) WITH ORDINALITY AS u (a, o)),
                   CASE WHEN x.typtype = 'p' THEN 'text' WHEN x.proretset THEN 'SETOF ' || x.prorettype::regtype ELSE x.prorettype::regtype::text END, body);
  END LOOP;
  -- What pg_catalog has for any type, or for another one.
  FOR x IN SELECT unnest('{"array_position(name[], name)","array_position(text[], text)","cardinality(int8[])",
      "pg_relation_size(oid)","pg_partition_tree(oid)","obj_description(oid, text)","to_char(date, text)","row_security_active(regclass)",
      "unnest(int2[])","unnest(oid[])","unnest(int8[])","unnest(text[])","unnest(int4[])","unnest(timestamptz[])","to_jsonb(text)"}'::text[]) AS proname
  LOOP
    IF to_regprocedure('evil.' || x.proname) IS NULL THEN
      EXECUTE format('CREATE FUNCTION evil.%s RETURNS int8 %s', x.proname, body);
    END IF;
  END LOOP;
  FOR x IN SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r') AND typname !~ '^_' LOOP
    EXECUTE format('CREATE TYPE evil.%I AS ENUM (''captured'')', x.typname);
  END LOOP;
  FOR x IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
              AND relname NOT IN (SELECT typname FROM pg_type WHERE typnamespace = 'evil'::regnamespace) LOOP
    EXECUTE format('CREATE TABLE evil.%I (captured pg_catalog.int4)', x.relname);
  END LOOP;
END $do$;
CREATE COLLATION evil."C" FROM pg_catalog."POSIX";
RESET ROLE`

// bait is a statement that a shadow captures.
const bait = `SELECT 1::pg_catalog.int8 * '1 day'::pg_catalog.interval`

// temporaries makes temporary tables, which are before everything, of the names of tables and types.
const temporaries = `CREATE TEMPORARY TABLE text (captured pg_catalog.int4); CREATE TEMPORARY TABLE timestamptz (captured pg_catalog.int4);
	CREATE TEMPORARY TABLE int8 (captured pg_catalog.int4); CREATE TEMPORARY TABLE bytea (captured pg_catalog.int4);
	CREATE TEMPORARY TABLE date (captured pg_catalog.int4); CREATE TEMPORARY TABLE pg_class (captured pg_catalog.int4);
	CREATE TEMPORARY TABLE pg_attribute (captured pg_catalog.int4); CREATE TEMPORARY TABLE pg_type (captured pg_catalog.int4);
	CREATE TEMPORARY TABLE pg_partitioned_table (captured pg_catalog.int4)`

// Shadowed returns a pool of one connection, on a new database in which everything that a statement names without a
// schema is captured: operators, functions, types, collations, and the catalog's tables. They are those of a role
// without rights; the pool's is the database's owner. What is called raises an error, and fails the test at its end
// where that error is lost. The tables of the test belong in schema app.
func Shadowed(t testing.TB, path string) *pgxpool.Pool {
	t.Helper()
	cfg := shadows(t, path)
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["search_path"] = path
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, temporaries)
		return err
	}
	pool := PoolConfig(t, cfg)
	_, err := pool.Exec(t.Context(), bait, pgx.QueryExecModeSimpleProtocol)
	baited(t, cfg, path, err)
	return pool
}

// ShadowedSQL is [Shadowed] for database/sql, with what open makes of a connection string that is a URL.
func ShadowedSQL(t testing.TB, path string, open func(dsn string) (*sql.DB, error)) *sql.DB {
	t.Helper()
	cfg := shadows(t, path)
	dsn, err := url.Parse(cfg.ConnString())
	if err != nil {
		t.Fatalf("pgtest: the connection string: %v", err)
	}
	query := dsn.Query()
	query.Set("search_path", path)
	dsn.RawQuery = query.Encode()
	db, err := open(dsn.String())
	if err != nil {
		t.Fatalf("pgtest: open a database: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("pgtest: close a database: %v", err)
		}
	})
	db.SetMaxOpenConns(1) // which has the temporary tables
	for sql := range strings.SplitSeq(temporaries, ";") {
		if _, err := db.ExecContext(t.Context(), sql); err != nil {
			t.Fatalf("pgtest: make temporary tables: %v", err)
		}
	}
	var where string
	if err := db.QueryRowContext(t.Context(), `SHOW search_path`).Scan(&where); err != nil || where != path {
		t.Fatalf("pgtest: the search path is %s, %v", where, err)
	}
	_, err = db.ExecContext(t.Context(), bait)
	baited(t, cfg, path, err)
	return db
}

// shadows makes a database with the shadows.
func shadows(t testing.TB, path string) *pgxpool.Config {
	t.Helper()
	mallory, schema := "mallory_"+strings.ToLower(rand.Text()), shadowSchema(path)
	made := func(sql string) string {
		return strings.NewReplacer("mallory", mallory, "evil", schema).Replace(sql)
	}
	t.Cleanup(func() { // after the database is dropped
		s, err := current()
		if err == nil {
			_, err = s.admin.Exec(context.Background(), `DROP ROLE `+mallory)
		}
		if err != nil && !t.Failed() {
			t.Errorf("pgtest: drop a role: %v", err)
		}
	})
	cfg := Config(t)
	safe := cfg.Copy()
	safe.ConnConfig.RuntimeParams["search_path"] = "pg_catalog"
	clean := PoolConfig(t, safe)
	for _, sql := range []string{aliceSQL, shadowSQL} {
		if _, err := clean.Exec(t.Context(), made(sql)); err != nil {
			t.Fatalf("pgtest: make the shadows: %v", err)
		}
	}
	t.Cleanup(func() {
		var called bool
		err := clean.QueryRow(context.Background(), `SELECT is_called FROM `+schema+`.witness`).Scan(&called)
		if err != nil || called {
			t.Errorf("captured: what another role has made was called (%v, %v)", called, err)
		}
	})
	return cfg
}

// baited asserts that the bait was taken, so that nothing passes because nothing is captured, and removes its trace.
func baited(t testing.TB, cfg *pgxpool.Config, path string, err error) {
	t.Helper()
	ctx, schema := t.Context(), shadowSchema(path)
	if err == nil {
		t.Fatalf("pgtest: nothing was captured: %v", err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig.Copy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var called bool
	err = conn.QueryRow(ctx, `SELECT is_called FROM `+schema+`.witness`).Scan(&called)
	if err != nil || !called {
		t.Fatalf("pgtest: a call left no trace: %v", err)
	}
	if _, err := conn.Exec(ctx, `ALTER SEQUENCE `+schema+`.witness RESTART`); err != nil {
		t.Fatal(err)
	}
}

// Captured fails the test for every statement that the pool of [Shadowed] has prepared so far, and that depends on
// anything that is not pg_catalog's, as branches do that were not taken. It returns how many it has looked at.
func Captured(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	ctx := t.Context()
	rows, err := pool.Query(ctx, `
		SELECT p.statement, coalesce((
		         SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.nspname) OPERATOR(pg_catalog.||) '.' OPERATOR(pg_catalog.||) pg_catalog.quote_ident(t.typname), ', ' ORDER BY u.o)
		           FROM ROWS FROM (pg_catalog.unnest(p.parameter_types::pg_catalog.oid[])) WITH ORDINALITY AS u (a, o)
		           JOIN pg_catalog.pg_type AS t ON t.oid OPERATOR(pg_catalog.=) u.a
		           JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace), '')
		  FROM pg_catalog.pg_prepared_statements AS p
		 WHERE p.statement OPERATOR(pg_catalog.~) '^\s*(WITH|SELECT|INSERT|UPDATE|DELETE)' AND p.statement OPERATOR(pg_catalog.!~) 'pg_prepared_statements|effects'`)
	if err != nil {
		t.Fatalf("pgtest: list the statements: %v", err)
	}
	type statement struct{ SQL, Types string }
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil {
		t.Fatalf("pgtest: list the statements: %v", err)
	}
	for _, s := range all {
		// The server lists what the body of a function depends on, and leaves out what is its own.
		_, err := pool.Exec(ctx, "CREATE OR REPLACE FUNCTION app.captured("+s.Types+
			") RETURNS pg_catalog.void BEGIN ATOMIC "+s.SQL+"; END", pgx.QueryExecModeSimpleProtocol)
		var pgErr *pgconn.PgError
		switch {
		case errors.As(err, &pgErr) && pgErr.Code == "42P01":
			continue // on a partition that is gone by now
		case err != nil:
			t.Errorf("pgtest: %v\n%s", err, s.SQL)
			continue
		}
		var on string
		err = pool.QueryRow(ctx, `
			SELECT coalesce(pg_catalog.string_agg(DISTINCT w.what, '; '), '')
			  FROM pg_catalog.pg_depend AS d
			 CROSS JOIN LATERAL (SELECT (pg_catalog.pg_identify_object(d.refclassid, d.refobjid, 0)).*) AS o
			 CROSS JOIN LATERAL (SELECT o.type OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) o.identity AS what) AS w
			 WHERE d.objid OPERATOR(pg_catalog.=) (SELECT p.oid FROM pg_catalog.pg_proc AS p WHERE p.proname OPERATOR(pg_catalog.=) 'captured' AND p.pronamespace OPERATOR(pg_catalog.=) 'app'::pg_catalog.regnamespace)
			   AND (o.identity OPERATOR(pg_catalog.~) '^(evil|public|pg_temp)' OR o.schema OPERATOR(pg_catalog.~) '^(evil|public|pg_temp)')`).Scan(&on)
		if err != nil {
			t.Fatalf("pgtest: what a statement depends on: %v", err)
		}
		if on != "" {
			t.Errorf("captured: %s\n%s", on, s.SQL)
		}
		if _, err := pool.Exec(ctx, "DROP FUNCTION app.captured", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	return len(all)
}
