package upsert_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// Every kind has a name of its own, by which it is found again; a name that is not known is an error.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{upsert.Kind(0).String(): true}
	for k := upsert.KindTableMissing; k <= upsert.KindSpread; k++ {
		require.False(t, seen[k.String()], "%d is %s", k, k)
		seen[k.String()] = true
		text, err := json.Marshal(upsert.Problem{Kind: k})
		require.NoError(t, err)
		require.Contains(t, string(text), `"`+k.String()+`"`)
		var back upsert.Problem
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, k, back.Kind)
	}
	var k upsert.Kind
	for _, name := range []string{"", "unknown", "index misssing"} {
		require.Error(t, k.UnmarshalText([]byte(name)))
	}
	require.Zero(t, k)
	require.Equal(t, "unknown", upsert.Kind(255).String())
}

// kindOf returns the kind of a problem, told by its message, for the tests of Verify.
func kindOf(t *testing.T, message string) upsert.Kind {
	t.Helper()
	for _, k := range []struct {
		words string
		kind  upsert.Kind
	}{
		{"there is no such table", upsert.KindTableMissing},
		{"names no column", upsert.KindColumnMissing},
		{"is generated", upsert.KindColumnGenerated},
		{"no event brings a value", upsert.KindColumnGenerated},
		{"GENERATED ALWAYS AS IDENTITY", upsert.KindColumnGenerated},
		{"is NOT NULL and has no default", upsert.KindColumnNotWritten},
		{"leaves out column", upsert.KindDeletionFails},
		{"may be NULL", upsert.KindColumnNullable},
		{"cannot take a value of type", upsert.KindFieldType},
		{"depends on the session", upsert.KindColumnType},
		{"without time zone", upsert.KindVersionType},
		{"may not sort", upsert.KindVersionType},
		{"cannot make an index", upsert.KindTargetUnclear},
		{"no unique index on exactly", upsert.KindIndexMissing},
		{"in the table of the view, so that every", upsert.KindIndexMissing},
		{"is INVALID", upsert.KindIndexInvalid},
		{"is deferrable", upsert.KindConstraintDeferrable},
		{"conflict too", upsert.KindPredicate},
		{"the predicate of index", upsert.KindIndexMissing},
		{"have them for the rows", upsert.KindIndexMissing},
		{"has them for the rows", upsert.KindIndexMissing},
		{"another collation", upsert.KindCollation},
		{"inserts a second one", upsert.KindGuardPartial},
		{"alone is a further constraint", upsert.KindOtherConstraint},
		{"is a further constraint", upsert.KindOtherUniqueIndex},
		{"inherits from it", upsert.KindInheritance},
		{"has the rule", upsert.KindRule},
		{"it is a view that PostgreSQL cannot turn", upsert.KindNotATable},
		{"does not take the statement on this view", upsert.KindNotATable},
		{"it is no table", upsert.KindNotATable},
		{"mentions", upsert.KindTrigger},
		{"changes", upsert.KindTrigger},
		{"returns", upsert.KindTrigger},
	} {
		if strings.Contains(message, k.words) {
			if message == "the predicate of index live is another" {
				return upsert.KindPredicate // a wider one, which PostgreSQL takes
			}
			return k.kind
		}
	}
	t.Fatalf("no kind is known of %q", message)
	return 0
}

// What a program accepts knowingly is left out, and nothing is left where that was all.
func TestExcept(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, "CREATE TABLE accounts (tenant text, email text NOT NULL, name text, deleted_at timestamptz, v text)")
	exec(t, pool, "CREATE UNIQUE INDEX ON accounts (tenant, email)")
	stmt := upsert.Into[account]("accounts").OnConflict("tenant", "email").Set("name").Version("v").MustBuild()
	err := upsert.Verify(t.Context(), pool, stmt)
	var found, left *upsert.VerifyError
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Problems, 2)
	require.ErrorAs(t, found.Except(upsert.KindVersionType, upsert.KindTrigger), &left)
	require.Len(t, left.Problems, 1)
	require.Equal(t, upsert.KindColumnNullable, left.Problems[0].Kind)
	require.Equal(t, "1 problem(s)\naccounts: column nullable: "+left.Problems[0].Message+"\n\tfix it with: "+
		left.Problems[0].Fix, left.Error())
	require.NoError(t, found.Except(upsert.KindVersionType, upsert.KindColumnNullable))
	require.Len(t, found.Problems, 2)
}
