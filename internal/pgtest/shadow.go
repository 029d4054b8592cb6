package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ShadowPaths are the search paths that put the schema of [Shadowed] before everything: one that leaves pg_catalog
// where it is by default, before all, where only an inexact match in it is captured; and one that names it last.
func ShadowPaths() []string { return []string{"evil, public", "evil, pg_catalog, public"} }

// shadowSQL makes a function for each one of pg_catalog, and for every operator's arguments, that raises an error,
// and operators for exact arguments where pg_catalog has an inexact match or an exact one. The aggregates are
// shadowed by functions.
const shadowSQL = `
CREATE SCHEMA app;
CREATE SCHEMA evil;
DO $do$
DECLARE
  x record;
  n int := 0;
  body text := $$LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''captured''; END'$$;
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
CREATE COLLATION evil."C" FROM pg_catalog."POSIX"`

// temporarySQL makes temporary tables, which are before everything, of the names of tables and types.
var temporarySQL = strings.Repeat("CREATE TEMPORARY TABLE %s (captured pg_catalog.int4);", 9)

// Shadowed returns a pool of one connection, on a new database in which everything that a statement names without a
// schema is captured: operators, functions, types, collations, and the catalog's tables. What is called raises an
// error. The tables of the test belong in schema app.
func Shadowed(t testing.TB, path string) *pgxpool.Pool {
	t.Helper()
	cfg := Config(t)
	clean := PoolConfig(t, cfg.Copy())
	if _, err := clean.Exec(t.Context(), shadowSQL); err != nil {
		t.Fatalf("pgtest: make the shadows: %v", err)
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["search_path"] = path
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(temporarySQL, "text", "timestamptz", "int8", "bytea", "date", "pg_class", "pg_attribute", "pg_type", "pg_partitioned_table"))
		return err
	}
	return PoolConfig(t, cfg)
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
		_, err := pool.Exec(ctx, "CREATE OR REPLACE FUNCTION app.captured("+s.Types+") RETURNS pg_catalog.void BEGIN ATOMIC "+s.SQL+"; END", pgx.QueryExecModeSimpleProtocol)
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
			   AND (o.identity OPERATOR(pg_catalog.~) '^(evil|pg_temp)' OR o.schema OPERATOR(pg_catalog.~) '^(evil|pg_temp)')`).Scan(&on)
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
