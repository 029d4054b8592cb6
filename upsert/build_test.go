package upsert_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// TestBuildRefuses holds the text of each refusal to what the reader needs: what is wrong, and what to write.
func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	into := upsert.Into[account]("accounts").OnConflict("email")
	build := func(b upsert.Builder[account]) error { _, err := b.Build(); return err }
	type embedsPointer struct{ *account }
	type untagged struct{ A int }
	type twice struct {
		A int `db:"a"`
		B int `db:"a"`
	}
	type hidden struct {
		a int `db:"a"` //lint:ignore U1000 the tag on it is the mistake
	}
	type reserved struct {
		A int `db:"pgonce_new"`
	}
	type flag struct {
		ID   string    `db:"id"`
		Gone time.Time `db:"gone"`
		V    int       `db:"v"`
	}
	tests := []struct {
		name string
		err  error
		want []string
	}{
		{"no rule", build(into.Set("name")), []string{"Version(column)", "FirstWins()", "LastWins()"}},
		{"two rules", build(into.Set("name").Version("v").LastWins()), []string{"Version and LastWins", "keep one"}},
		{"two versions", build(into.Set("name").Version("v").Version("v")), []string{"Version and Version", "keep one"}},
		{
			"no target", build(upsert.Into[account]("accounts").Set("name").Version("v")),
			[]string{"no OnConflict", "unique key"},
		},
		{"key in Set", build(into.Set("email").Version("v")), []string{`"email" is a key column`, "Set", "leave it out"}},
		{"key as version", build(into.Set("name").Version("email")), []string{`"email" is a key column`, "Version"}},
		{"version in Set", build(into.Set("name", "v").Version("v")), []string{`"v" is the version`, "Set", "leave it out"}},
		{"column twice", build(into.Set("name", "name").Version("v")), []string{`Set names "name" twice`}},
		{
			"column in two clauses", build(into.Set("name").SetOnInsert("name").Version("v")),
			[]string{`"name"`, "Set and in SetOnInsert", "keep one"},
		},
		{"key twice", build(into.OnConflict("email").Set("name").Version("v")), []string{`OnConflict names "email" twice`}},
		{"version twice", build(into.Set("name").Version("v", "v")), []string{`Version`, `"v"`}},
		{"typo", build(into.Set("nmae").Version("v")), []string{`Set names "nmae"`, "tenant, email, name, deleted_at, v"}},
		{
			"typo in the key", build(upsert.Into[account]("a").OnConflict("emial").FirstWins()),
			[]string{`OnConflict names "emial"`},
		},
		{"FirstWins with Set", build(into.Set("name").FirstWins()), []string{"SetOnInsert instead of Set"}},
		{"LastWins with nothing", build(into.LastWins()), []string{"nothing to overwrite", "Set", "FirstWins()"}},
		{
			"tombstone, partial", build(into.Where("deleted_at IS NULL").Tombstone("deleted_at").Set("name").Version("v")),
			[]string{"partial target", "make the unique index full", "leave out Where"},
		},
		{
			"tombstone without version", build(into.Tombstone("deleted_at").Set("name").LastWins()),
			[]string{"Tombstone needs Version"},
		},
		{
			"tombstone twice", build(into.Tombstone("deleted_at").Tombstone("name").Version("v")),
			[]string{"Tombstone is given twice"},
		},
		{
			"tombstone in Set", build(into.Tombstone("deleted_at").Set("deleted_at").Version("v")),
			[]string{`"deleted_at"`, "Set and in Tombstone"},
		},
		{"skew without version", build(into.Set("name").LastWins().MaxSkew(time.Hour)), []string{"MaxSkew limits a version"}},
		{"skew of nothing", build(into.Set("name").Version("v").MaxSkew(0)), []string{"MaxSkew(0s)", "5*time.Minute"}},
		{
			"any type without version", build(into.Set("name").LastWins().AnyVersionType()),
			[]string{"AnyVersionType is about a version"},
		},
		{
			"two predicates", build(into.Where("a").Where("b").Set("name").Version("v")),
			[]string{"Where is given twice", "AND"},
		},
		{"empty predicate", build(into.Where(" ").Set("name").Version("v")), []string{"Where is empty"}},
		{
			"parameter in the predicate", build(into.Where("tenant = $1").Set("name").Version("v")),
			[]string{"predicate in Where", "write the literal"},
		},
		{
			"a second statement", build(into.Where("true; DROP TABLE accounts").Set("name").Version("v")),
			[]string{"semicolon"},
		},
		{"comment", build(into.Where("true -- x").Set("name").Version("v")), []string{"comment"}},
		{"open quote", build(into.Where("name = 'x").Set("name").Version("v")), []string{"quote that is not closed"}},
		{"open parenthesis", build(into.Where("(name").Set("name").Version("v")), []string{"parentheses do not match"}},
		{
			"closed too far", build(upsert.Into[account]("a").OnConflict("lower(name))").Set("name").Version("v")),
			[]string{"parentheses do not match"},
		},
		{
			"expression that is not written",
			build(upsert.Into[account]("a").OnConflict("lower(name)").Set("email").Version("v")),
			[]string{`"lower(name)"`, "Set or SetOnInsert"},
		},
		{"table's name", build(upsert.Into[account]("a.b.c").OnConflict("email").FirstWins()), []string{"two parts"}},
		{
			"table's name too long", build(upsert.Into[account](strings.Repeat("x", 64)).OnConflict("email").FirstWins()),
			[]string{"63"},
		},
		{
			"not a struct", second(upsert.Into[int]("a").OnConflict("a").FirstWins().Build()),
			[]string{"rows are int", "struct"},
		},
		{
			"a pointer", second(upsert.Into[*account]("a").OnConflict("email").FirstWins().Build()),
			[]string{"rows are *", "struct"},
		},
		{
			"no tags", second(upsert.Into[untagged]("a").OnConflict("a").FirstWins().Build()),
			[]string{"no field with a `db` tag"},
		},
		{"a tag twice", second(upsert.Into[twice]("a").OnConflict("a").FirstWins().Build()), []string{`two fields tagged`}},
		{"unexported", second(upsert.Into[hidden]("a").OnConflict("a").FirstWins().Build()), []string{"not exported"}},
		{
			"embedded pointer", second(upsert.Into[embedsPointer]("a").OnConflict("a").FirstWins().Build()),
			[]string{"embed the struct itself"},
		},
		{"reserved", second(upsert.Into[reserved]("a").OnConflict("pgonce_new").FirstWins().Build()), []string{"pgonce_"}},
		{
			"tombstone of a time", second(upsert.Into[flag]("a").OnConflict("id").Tombstone("gone").Version("v").Build()),
			[]string{"*time.Time"},
		},
	}
	for _, tt := range tests {
		require.Error(t, tt.err, tt.name)
		for _, want := range tt.want {
			require.ErrorContains(t, tt.err, want, tt.name)
		}
	}
	require.Panics(t, func() { into.MustBuild() })
}

func second[V any](_ V, err error) error { return err }

func TestBuilderIsNotShared(t *testing.T) {
	t.Parallel()
	base := upsert.Into[account]("accounts").OnConflict("tenant").Set("name")
	a := base.OnConflict("email").Version("v").MustBuild()
	b := base.Set("email").LastWins().MustBuild()
	_, columns := a.SQL()
	require.Equal(t, []string{"tenant", "email", "name", "v"}, columns)
	_, columns = b.SQL()
	require.Equal(t, []string{"tenant", "name", "email"}, columns)
}

type base struct {
	ID string `db:"id,omitempty"`
	V  int    `db:"v"`
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	type row struct {
		base
		Note  string `db:"note"`
		Cache string // no tag: left alone
		Skip  string `db:"-"`
	}
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE notes (id text PRIMARY KEY, note text, v int)")
	stmt := upsert.Into[row]("notes").OnConflict("id").Set("note").Version("v").MustBuild()
	res, err := stmt.Exec(context.Background(), pool, row{base: base{"1", 1}, Note: "n", Cache: "c", Skip: "s"})
	require.NoError(t, err)
	require.Equal(t, row{base: base{"1", 1}, Note: "n"}, res.Stored)
}

// What Build cannot know is found at the first use, before anything is sent.
func TestFirstUseRefuses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	stmt := upsert.Into[order]("orders").OnConflict("id").Set("status").Version("at",
		"rank").MaxSkew(time.Hour).MustBuild()
	fails := func(want string) {
		t.Helper()
		_, err := stmt.Exec(ctx, tx, order{"1", "new", noon, 1})
		var verr *upsert.VerifyError
		require.ErrorAs(t, err, &verr)
		require.ErrorContains(t, err, want)
		_, err = stmt.ExecMany(ctx, tx, func(yield func(order) bool) { yield(order{"1", "new", noon, 1}) }, nil)
		require.ErrorContains(t, err, want)
	}
	fails("no such table")
	exec(t, tx, "CREATE TABLE orders (id text PRIMARY KEY, statsu text, at timestamptz, rank int)")
	fails(`the tag "status" names no column; the table has id, statsu, at, rank`)
	exec(t, tx, "ALTER TABLE orders ADD status text GENERATED ALWAYS AS (upper(statsu)) STORED")
	fails("column status is generated")
	exec(t, tx, "ALTER TABLE orders DROP status, ADD status bigint GENERATED ALWAYS AS IDENTITY")
	fails("GENERATED ALWAYS AS IDENTITY")
	exec(t, tx, "ALTER TABLE orders DROP status, ADD status text, ALTER at TYPE text")
	fails("column at is text")
	exec(t, tx, "ALTER TABLE orders ALTER at TYPE timestamptz USING at::timestamptz")
	_, err = stmt.Exec(ctx, tx, order{"1", "new", noon, 1})
	require.NoError(t, err, "the transaction has not failed")

	// A column dropped later is an error of the server, and read anew after it.
	require.NoError(t, tx.Commit(ctx))
	exec(t, pool, "ALTER TABLE orders RENAME status TO state")
	_, err = stmt.Exec(ctx, pool, order{"1", "new", noon, 1})
	require.ErrorContains(t, err, "42703")
	_, err = stmt.Exec(ctx, pool, order{"1", "new", noon, 1})
	require.ErrorContains(t, err, `the tag "status" names no column`)
}

func TestNilHandles(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	_, err := orders.Exec(ctx, nil, order{})
	require.ErrorContains(t, err, "handle is nil")
	_, err = orders.ExecMany(ctx, upsert.SQL(nil), nil, nil)
	require.ErrorContains(t, err, "handle is nil")
	require.ErrorContains(t, upsert.Verify(ctx, nil, orders), "handle is nil")
	pool := pgtest.Pool(t)
	create(t, pool, "plain", "orders", orderColumns)
	_, err = orders.ExecMany(ctx, pool, nil, nil)
	require.ErrorContains(t, err, "rows is nil")
}
