package upsert_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// modelCases is how many cases the models draw in all, in a full run; in others it is a fifth.
const modelCases = 10_000

// seedFlag makes the random tests draw what they drew before.
var seedFlag = flag.Uint64("upsert.seed", 0, "seed of the random tests, as printed by a run")

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		n := modelCases / len(kinds)
		switch {
		case testing.Short():
			n /= 20
		case !pgtest.Full():
			n /= 5
		}
		if err := flag.Set("rapid.checks", fmt.Sprint(n+1)); err != nil {
			panic(err)
		}
	}
	pgtest.Main(m)
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// exec runs SQL that must succeed.
func exec(t testing.TB, db execer, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// get returns one value.
func get[V any](t testing.TB, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, sql string, args ...any,
) V {
	t.Helper()
	var v V
	require.NoError(t, db.QueryRow(context.Background(), sql, args...).Scan(&v))
	return v
}

// kinds are the kinds of tables on which everything has to hold.
var kinds = []string{"plain", "hash", "range"}

// create makes a table of a kind. columns begins with the key, one text or int column, named id, and ends without a
// constraint.
func create(t testing.TB, db execer, kind, table, columns string) {
	t.Helper()
	ctx := context.Background()
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (%s, PRIMARY KEY (id))", table, columns)
	part := func(n int, bound string) {
		fmt.Fprintf(&b, "; CREATE TABLE %s_%d PARTITION OF %s FOR VALUES %s", table, n, table, bound)
	}
	switch kind {
	case "hash":
		b.WriteString(" PARTITION BY HASH (id)")
		for i := range 3 {
			part(i, fmt.Sprintf("WITH (MODULUS 3, REMAINDER %d)", i))
		}
	case "range":
		b.WriteString(" PARTITION BY RANGE (id)")
		bounds := []string{"MINVALUE", "'2'", "'5'", "MAXVALUE"}
		for i := range bounds[1:] {
			part(i, fmt.Sprintf("FROM (%s) TO (%s)", bounds[i], bounds[i+1]))
		}
	}
	for stmt := range strings.SplitSeq(b.String(), "; ") {
		_, err := db.Exec(ctx, stmt)
		require.NoError(t, err)
	}
}

// onKinds runs a test once for each kind of table, on a database of its own.
func onKinds(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, kind string)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, pgtest.Pool(t), kind)
		})
	}
}
