package upsert

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// Rows of the golden files.
type (
	status struct {
		ID        string    `db:"id"`
		Status    string    `db:"status"`
		UpdatedAt time.Time `db:"updated_at"`
	}
	ranked struct {
		status
		Plan *string `db:"plan"`
		Rank int     `db:"rank"`
	}
	tenanted struct {
		status
		Tenant string `db:"tenant"`
	}
	mailed struct {
		Tenant    string    `db:"tenant"`
		Email     string    `db:"email"`
		Status    string    `db:"status"`
		UpdatedAt time.Time `db:"updated_at"`
	}
	deletable struct {
		status
		Amount    *string    `db:"amount"`
		PublicID  string     `db:"public_id"`
		DeletedAt *time.Time `db:"deleted_at"`
	}
	priced struct {
		status
		Plan   *string `db:"plan"`
		Amount *string `db:"amount"`
	}
	public struct {
		status
		Payload  []byte `db:"payload"`
		PublicID string `db:"public_id"`
	}
	customer struct {
		ID       string  `db:"id"`
		Status   string  `db:"status"`
		Plan     *string `db:"plan"`
		PublicID string  `db:"public_id"`
	}
)

// subscriptionLayout is the table's: tenant, id, email, amount and public_id are NOT NULL, and the last has a default.
func subscriptionLayout(server int) *layout {
	l := &layout{Server: server, byName: map[string]*column{}}
	types := typeSet{pgtype.TimestamptzOID: {OID: pgtype.TimestamptzOID, Kind: "b", Send: "pg_catalog.timestamptz_send"}}
	add := func(c column) {
		c.types = types
		if c.Exact == "" {
			c.Exact = c.Type
		}
		l.byName[c.Name] = &c
		l.Columns = append(l.Columns, c)
	}
	for _, name := range []string{"tenant", "id"} {
		add(column{Name: name, OID: pgtype.TextOID, Type: "pg_catalog.text", NotNull: true, Collation: `pg_catalog."C"`})
	}
	add(column{Name: "email", OID: pgtype.TextOID, Type: "pg_catalog.text", NotNull: true})
	add(column{Name: "status", OID: pgtype.TextOID, Type: "pg_catalog.text"})
	add(column{Name: "plan", OID: pgtype.TextOID, Type: "pg_catalog.text"})
	add(column{
		Name: "amount", OID: pgtype.NumericOID, Type: "numeric", Exact: "numeric(10,2)", Catalog: "1700 655366",
		NotNull: true,
	})
	add(column{Name: "payload", OID: pgtype.JSONOID, Type: "pg_catalog.json"})
	add(column{
		Name: "public_id", OID: pgtype.TextOID, Type: "pg_catalog.text", NotNull: true,
		Default: "gen_random_uuid()",
	})
	add(column{Name: "deleted_at", OID: pgtype.TimestamptzOID, Type: "timestamp with time zone"})
	add(column{Name: "updated_at", OID: pgtype.TimestamptzOID, Type: "timestamp with time zone"})
	add(column{Name: "rank", OID: pgtype.Int4OID, Type: "integer"})
	return l
}

// TestGolden pins every shape of the SQL, in files that a person can read.
func TestGolden(t *testing.T) {
	t.Parallel()
	shapes := map[string]Statement{
		"classic": Into[status]("subscription").OnConflict("id").Set("status").Version("updated_at").MustBuild(),
		"tie_breaker": Into[ranked]("subscription").OnConflict("id").Set("status", "plan").Version("updated_at",
			"rank").MustBuild(),
		"version_only": Into[status]("subscription").OnConflict("id").Version("updated_at").MustBuild(),
		"composite_key": Into[tenanted]("billing.Subscription").OnConflict("tenant",
			"id").Set("status").Version("updated_at").MustBuild(),
		"expression": Into[mailed]("subscription").OnConflict("tenant", "lower(email)").Set("email",
			"status").Version("updated_at").MustBuild(),
		"partial": Into[status]("subscription").OnConflict("id").Where("deleted_at IS NULL").Set("status").Version("updated_at").MustBuild(),
		"set_if_not_null": Into[priced]("subscription").OnConflict("id").Set("status").SetIfNotNull("plan",
			"amount").Version("updated_at").MustBuild(),
		"set_on_insert": Into[public]("subscription").OnConflict("id").Set("status",
			"payload").SetOnInsert("public_id").Version("updated_at").MustBuild(),
		"tombstone": Into[deletable]("subscription").OnConflict("id").Set("status", "public_id").SetIfNotNull("amount").
			Tombstone("deleted_at").Version("updated_at").MustBuild(),
		"max_skew": Into[priced]("subscription").OnConflict("id").Set("amount").Version("updated_at").MaxSkew(5 * time.Minute).MustBuild(),
		"first_wins": Into[customer]("subscription").OnConflict("id").SetOnInsert("public_id",
			"status").FirstWins().MustBuild(),
		"last_wins": Into[customer]("subscription").OnConflict("id").Set("status").SetIfNotNull("plan").LastWins().MustBuild(),
	}
	files, err := filepath.Glob("testdata/*.sql")
	require.NoError(t, err)
	if !*update {
		require.Len(t, files, len(shapes), "run the test with -update")
	}
	for name, stmt := range shapes {
		got := golden(stmt)
		file := filepath.Join("testdata", name+".sql")
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got, "%s; where the change is meant, run the test with -update", file)
		for i, line := range strings.Split(got, "\n") {
			require.LessOrEqual(t, len(line), 200, "%s:%d is too long to be read", file, i+1)
		}
	}
}

func golden(stmt Statement) string {
	var b strings.Builder
	section := func(title, sql string) { fmt.Fprintf(&b, "-- %s\n%s;\n\n", title, sql) }
	sql, columns := stmt.SQL()
	section("SQL(), with "+strings.Join(columns, ", "), sql)
	one := func(server int) string { return writer{p: stmt.plan(), l: subscriptionLayout(server)}.one() }
	many := func(server int, s shape) string {
		return writer{p: stmt.plan(), l: subscriptionLayout(server), bulk: true}.many(s)
	}
	section("One row, PostgreSQL 14 to 17", one(170000))
	section("One row, from PostgreSQL 18", one(180000))
	section("Many rows, PostgreSQL 14 to 17", many(170000, shape{}))
	section("Many rows, from PostgreSQL 18", many(180000, shape{}))
	section("Many rows of distinct keys, told one by one, PostgreSQL 14 to 17",
		many(170000, shape{withRows: true, distinct: true}))
	return strings.TrimRight(b.String(), "\n") + "\n"
}
