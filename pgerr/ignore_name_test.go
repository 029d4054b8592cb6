package pgerr_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// ignores runs insert, which must be a 23505, and reports whether IgnoreDuplicate takes it for one of constraint.
func ignores(t *testing.T, pool *pgxpool.Pool, path, insert, constraint string) bool {
	t.Helper()
	tx := begin(t, pool)
	execAll(t, tx, `SET LOCAL search_path = `+path)
	duplicate, err := pgerr.IgnoreDuplicate(t.Context(), tx, constraint, func(ctx context.Context, tx pgx.Tx) error {
		return run(ctx, tx, insert)
	})
	require.Equal(t, duplicate, err == nil, "%v", err)
	if err != nil {
		require.Equal(t, "23505", pgerr.Code(err), "%v", err)
	}
	execAll(t, tx, `SELECT 1`)
	require.NoError(t, tx.Commit(t.Context()))
	return duplicate
}

// The leaf's constraint counts as its root's, at any depth, in any schema.
func TestIgnoreDuplicatePartition(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE SCHEMA parts`, `CREATE SCHEMA other`,
		`CREATE TABLE orders (tenant int, id int, CONSTRAINT orders_pkey PRIMARY KEY (tenant, id)) PARTITION BY LIST (tenant)`,
		`CREATE UNIQUE INDEX orders_both ON orders (tenant, (id % 10), id)`,
		`CREATE TABLE parts.t1 PARTITION OF orders FOR VALUES IN (1)`,
		`CREATE TABLE parts.t2 PARTITION OF orders FOR VALUES IN (2) PARTITION BY RANGE (id)`,
		`CREATE TABLE parts.t2_a PARTITION OF parts.t2 FOR VALUES FROM (0) TO (100)`,
		// A table with names of its own, attached later.
		`CREATE TABLE other.t3 (tenant int NOT NULL, id int NOT NULL, CONSTRAINT "odd.name" PRIMARY KEY (tenant, id))`,
		`ALTER TABLE orders ATTACH PARTITION other.t3 FOR VALUES IN (3)`,
		// A tree of the same names, and a table that inherits without being a partition.
		`CREATE TABLE other.orders (tenant int, id int, CONSTRAINT orders_pkey PRIMARY KEY (tenant, id)) PARTITION BY LIST (tenant)`,
		`CREATE TABLE other.t1 PARTITION OF other.orders FOR VALUES IN (1)`,
		`CREATE TABLE base (id int CONSTRAINT base_pkey PRIMARY KEY)`,
		`CREATE TABLE child (CONSTRAINT child_pkey PRIMARY KEY (id)) INHERITS (base)`,
		`INSERT INTO orders VALUES (1, 1), (2, 1), (3, 1)`, `INSERT INTO other.orders VALUES (1, 1)`,
		`INSERT INTO child VALUES (1)`,
	)
	for _, test := range []struct {
		insert, constraint string
		want               bool
	}{
		{`INSERT INTO orders VALUES (1, 1)`, "public.orders_pkey", true},
		{`INSERT INTO orders VALUES (1, 1)`, "orders_pkey", true}, // by the search path, although other has one, too
		{`INSERT INTO orders VALUES (1, 1)`, "parts.t1_pkey", true},
		{`INSERT INTO orders VALUES (1, 1)`, "t1_pkey", false}, // not in the path, and there is another
		{`INSERT INTO orders VALUES (1, 1)`, "other.orders_pkey", false},
		{`INSERT INTO orders VALUES (1, 1)`, "other.t1_pkey", false},
		{`INSERT INTO orders VALUES (1, 1)`, "orders_both", false},
		{`INSERT INTO orders VALUES (2, 1)`, "public.orders_pkey", true}, // two levels
		{`INSERT INTO orders VALUES (2, 1)`, "parts.t2_pkey", true},
		{`INSERT INTO orders VALUES (2, 1)`, "parts.t2_a_pkey", true},
		{`INSERT INTO orders VALUES (2, 1)`, "t2_a_pkey", true}, // the only one
		{`INSERT INTO orders VALUES (2, 1)`, "parts.t1_pkey", false},
		{`INSERT INTO parts.t2_a VALUES (2, 1)`, "public.orders_pkey", true},
		{`INSERT INTO orders VALUES (3, 1)`, "public.orders_pkey", true}, // attached
		{`INSERT INTO orders VALUES (3, 1)`, `other."odd.name"`, true},
		{`INSERT INTO other.orders VALUES (1, 1)`, "public.orders_pkey", false},
		{`INSERT INTO other.orders VALUES (1, 1)`, "orders_pkey", false},
		{`INSERT INTO other.orders VALUES (1, 1)`, "other.orders_pkey", true},
		{`INSERT INTO child VALUES (1)`, "child_pkey", true},
		{`INSERT INTO child VALUES (1)`, "base_pkey", false},
	} {
		require.Equal(t, test.want, ignores(t, pool, "public", test.insert, test.constraint), "%s: %s", test.insert,
			test.constraint)
	}

	// By the index when that is what is violated: with the primary key gone the other one is.
	execAll(t, pool, `ALTER TABLE orders DROP CONSTRAINT orders_pkey`)
	require.True(t, ignores(t, pool, "public", `INSERT INTO orders VALUES (2, 1)`, "public.orders_both"))

	// A partition that was detached is a table of its own.
	execAll(t, pool, `ALTER TABLE orders DETACH PARTITION parts.t1`)
	require.False(t, ignores(t, pool, "public", `INSERT INTO parts.t1 VALUES (1, 1)`, "public.orders_both"))
}

// A name without a schema is the one of the search path, or the only one.
func TestIgnoreDuplicateUnqualified(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	execAll(t, pool,
		`CREATE SCHEMA a`, `CREATE SCHEMA b`, `CREATE SCHEMA c`,
		`CREATE TABLE a.orders (id int CONSTRAINT orders_pkey PRIMARY KEY)`, `INSERT INTO a.orders VALUES (1)`,
		`CREATE TABLE b.orders (id int CONSTRAINT orders_pkey PRIMARY KEY)`, `INSERT INTO b.orders VALUES (1)`,
		`CREATE TABLE c.single (id int CONSTRAINT single_pkey PRIMARY KEY)`, `INSERT INTO c.single VALUES (1)`,
		`CREATE TABLE b.plain (id int)`, `CREATE INDEX single_pkey ON b.plain (id)`, // neither unique nor a constraint
	)
	for _, test := range []struct {
		path, insert, constraint string
		want                     bool
	}{
		{"a", `INSERT INTO orders VALUES (1)`, "orders_pkey", true},
		{"b", `INSERT INTO orders VALUES (1)`, "orders_pkey", true},
		{"a, b", `INSERT INTO a.orders VALUES (1)`, "orders_pkey", true},
		{"a, b", `INSERT INTO b.orders VALUES (1)`, "orders_pkey", false},
		{"a, b", `INSERT INTO b.orders VALUES (1)`, "b.orders_pkey", true},
		{"c", `INSERT INTO a.orders VALUES (1)`, "orders_pkey", false},
		{"a", `INSERT INTO c.single VALUES (1)`, "single_pkey", true},
		{"a", `INSERT INTO c.single VALUES (1)`, "orders_pkey", false},
	} {
		require.Equal(t, test.want, ignores(t, pool, test.path, test.insert, test.constraint), "%+v", test)
	}
}

// Names are cut by the server, in the encoding of the database.
func TestIgnoreDuplicateLongName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	long := strings.Repeat("n", 62) + "é_key"
	execAll(t, pool, `CREATE TABLE t (id int CONSTRAINT "`+long+`" UNIQUE)`, `INSERT INTO t VALUES (1)`)
	for name, want := range map[string]bool{
		long: true, "public." + long: true, `"` + long + `"`: true, long[:62]: true, "public." + long[:62]: true,
		long[:61]: false, "public." + long[:61]: false, long[:62] + "x": false,
	} {
		require.Equal(t, want, ignores(t, pool, "public", `INSERT INTO t VALUES (1)`, name), name)
	}
}
