package pgerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// Errors that carry the name that is asked for, and are not the duplicate.
func TestNotDuplicates(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE SCHEMA app`, `CREATE SCHEMA audit`, `CREATE SCHEMA checks`, `CREATE SCHEMA excl`,
		`CREATE TABLE app.orders (id text CONSTRAINT orders_key UNIQUE, ref text CONSTRAINT orders_ref_key UNIQUE)`,
		`CREATE TABLE audit.orders (id text CONSTRAINT orders_key UNIQUE)`,
		`CREATE TABLE checks.orders (id text CONSTRAINT orders_key CHECK (id <> ''))`,
		`CREATE TABLE excl.orders (id text, CONSTRAINT orders_key EXCLUDE USING btree (id WITH =))`,
		`INSERT INTO app.orders VALUES ('a', 'r')`, `INSERT INTO audit.orders VALUES ('a'), ('audited')`,
		`INSERT INTO excl.orders VALUES ('a')`,
		`CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit.orders VALUES (new.id); RETURN new; END $$`,
		`CREATE TRIGGER audit BEFORE INSERT ON app.orders FOR EACH ROW WHEN (new.id = 'audited') EXECUTE FUNCTION app.audit()`,
	)

	for _, test := range []struct {
		name, sql, code, constraint, schema string
		want                                bool
	}{
		{"the duplicate itself", `INSERT INTO app.orders VALUES ('a')`, "23505", "orders_key", "app", true},
		{"another constraint", `INSERT INTO app.orders VALUES ('b', 'r')`, "23505", "orders_ref_key", "app", false},
		{"the same name in another schema", `INSERT INTO audit.orders VALUES ('a')`, "23505", "orders_key", "audit", false},
		{
			"an audit table written by a trigger", `INSERT INTO app.orders VALUES ('audited')`, "23505", "orders_key", "audit",
			false,
		},
		{"a check", `INSERT INTO checks.orders VALUES ('')`, "23514", "orders_key", "checks", false},
		{"an exclusion", `INSERT INTO excl.orders VALUES ('a')`, "23P01", "orders_key", "excl", false},
		{"an index row too large", `INSERT INTO app.orders SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i`, "54000", "orders_key", "app", false},
	} {
		err := execErr(t, pool, test.sql)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, test.code, pgErr.Code, test.name)
		require.Equal(t, test.constraint, pgErr.ConstraintName, test.name)
		require.Equal(t, test.schema, pgErr.SchemaName, test.name)
		require.Equal(t, test.want, pgerr.Duplicate(err, "app.orders_key"), test.name)
		if test.code != "23505" {
			require.False(t, pgerr.Duplicate(err, test.schema+".orders_key"), test.name)
			require.False(t, pgerr.Duplicate(err, "orders_key"), test.name)
		}
	}

	// Without a schema the name is all there is to go by, as the documentation says.
	err := execErr(t, pool, `INSERT INTO audit.orders VALUES ('a')`)
	require.True(t, pgerr.Duplicate(err, "orders_key"))
}

func TestDuplicateNames(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	// 62 ASCII bytes and one character of two: the server cuts before it.
	split := strings.Repeat("n", 62) + "é_key"
	execAll(t, pool,
		`CREATE SCHEMA "App.v2"`,
		`CREATE TABLE "App.v2".t (a text CONSTRAINT "odd.""name" UNIQUE, b text CONSTRAINT Folded_Key UNIQUE, c text CONSTRAINT "`+split+`" UNIQUE)`,
		`CREATE UNIQUE INDEX no_constraint ON "App.v2".t ((a || b))`,
		`INSERT INTO "App.v2".t VALUES ('a', 'b', 'c')`,
	)
	odd := execErr(t, pool, `INSERT INTO "App.v2".t (a) VALUES ('a')`)
	folded := execErr(t, pool, `INSERT INTO "App.v2".t (b) VALUES ('b')`)
	cut := execErr(t, pool, `INSERT INTO "App.v2".t (c) VALUES ('c')`)
	index := execErr(t, pool, `INSERT INTO "App.v2".t (a, b) VALUES ('', 'ab')`)

	for _, test := range []struct {
		err  error
		name string
		want bool
	}{
		{odd, `"odd.""name"`, true},
		{odd, `"App.v2"."odd.""name"`, true},
		{odd, `odd.""name`, false},
		{odd, `odd."name`, false},
		{odd, `App.v2."odd.""name"`, false},
		{odd, `"app.v2"."odd.""name"`, false},
		{odd, `"App.v2"."odd.""name`, false},
		{odd, `""`, false},
		{odd, ``, false},
		{odd, `.`, false},
		{odd, `"App.v2".`, false},
		{folded, `folded_key`, true},
		{folded, `"folded_key"`, true},
		{folded, `"App.v2".folded_key`, true},
		{folded, `Folded_Key`, false},
		{folded, ` folded_key`, false},
		{folded, `folded_ke`, false},
		{folded, `folded_key_`, false},
		{folded, `.folded_key`, false},
		{folded, `"".folded_key`, false},
		{cut, split, true},
		{cut, `"` + split + `"`, true},
		{cut, split[:62], true},
		{cut, split + strings.Repeat("x", 100), true},
		{cut, split[:61], false},
		{cut, split[:62] + "x", false},
		{cut, split[:63], false}, // half a character
		{index, `no_constraint`, true},
		{index, `"App.v2".no_constraint`, true},
	} {
		require.Equal(t, test.want, pgerr.Duplicate(test.err, test.name), "%v named %q", test.err, test.name)
	}
}

// Of joined errors each one counts.
func TestDuplicateJoined(t *testing.T) {
	t.Parallel()
	violation := func(constraint string) error {
		return &pgconn.PgError{Code: "23505", SchemaName: "s", ConstraintName: constraint}
	}
	a, b := violation("a"), violation("b")
	other := &pgconn.PgError{Code: "53100"}
	for _, test := range []struct {
		err   error
		names []string
		want  bool
	}{
		{errors.Join(a, b), []string{"a", "b"}, true},
		{errors.Join(a, b), []string{"s.b", "x", "s.a"}, true},
		{errors.Join(a, b), []string{"a"}, false},
		{errors.Join(b, a), []string{"a"}, false},
		{errors.Join(a, other), []string{"a"}, false},
		{errors.Join(other, a), []string{"a"}, false},
		{fmt.Errorf("%w, and then: %w", a, fmt.Errorf("rollback: %w", pgconn.ErrConnClosed)), []string{"a"}, false},
		{errors.Join(a, io.ErrUnexpectedEOF), []string{"a"}, false},
		{errors.Join(a, context.Canceled), []string{"a"}, false},
		{errors.Join(context.DeadlineExceeded, a), []string{"a"}, false},
		{errors.Join(a, errors.New("release the lock")), []string{"a"}, true},
		{errors.Join(a, pgx.ErrTxClosed), []string{"a"}, true},
	} {
		require.Equal(t, test.want, pgerr.Duplicate(test.err, test.names[0], test.names[1:]...), "%q %v", test.err,
			test.names)
	}
}

// The server names the constraint of the partition.
func TestDuplicatePartition(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE TABLE orders (id int CONSTRAINT orders_pkey PRIMARY KEY) PARTITION BY RANGE (id)`,
		`CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)`,
		`INSERT INTO orders VALUES (1)`,
	)
	err := execErr(t, pool, `INSERT INTO orders VALUES (1)`)
	require.Equal(t, "orders_1_pkey", pgerr.Constraint(err))
	require.False(t, pgerr.Duplicate(err, "orders_pkey"))
	require.True(t, pgerr.Duplicate(err, "orders_pkey", "orders_1_pkey"))
}
