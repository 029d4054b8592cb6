package dedup_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestHashLayouts(t *testing.T) {
	t.Parallel()
	for n, valid := range map[int]bool{
		-1 << 40: false, -1: false, 0: false, 1: false, 2: true, 1024: true, 1025: false,
		1 << 40: false,
	} {
		err := dedup.Table{Layout: dedup.Hash(n)}.Validate()
		require.Equal(t, valid, err == nil, "%d: %v", n, err)
	}
	require.NotEqual(t, dedup.Hash(2), dedup.Hash(3))
	require.Equal(t, dedup.Hash(2), dedup.Hash(2))
}

// hashDamages are what Verify must find in a table of 4 partitions.
var hashDamages = []struct {
	name, sql string
	kinds     []string
	fixed     bool
}{
	{"sound", ``, nil, true},
	{"sound, more partitions than the layout says", `DROP TABLE processed_events_h0;
		CREATE TABLE a PARTITION OF processed_events FOR VALUES WITH (MODULUS 8, REMAINDER 0);
		CREATE TABLE b PARTITION OF processed_events FOR VALUES WITH (MODULUS 8, REMAINDER 4)`, nil, true},
	{"a partition missing", `DROP TABLE processed_events_h2`, []string{"partition missing"}, true},
	{"half of one missing", `DROP TABLE processed_events_h0;
		CREATE TABLE b PARTITION OF processed_events FOR VALUES WITH (MODULUS 8, REMAINDER 4)`, []string{"partition missing"}, true},
	{
		"all missing", `DROP TABLE processed_events_h0, processed_events_h1, processed_events_h2, processed_events_h3`,
		[]string{"partition missing"},
		true,
	},
	{"key dropped", dropKey, []string{"constraint missing"}, true},
	{
		"key of more columns", dropKey + `ALTER TABLE processed_events ADD PRIMARY KEY (key, operation, source, attempt)`,
		[]string{"index has more columns"},
		true,
	},
	{
		"index of the table invalid, for a partition has none",
		dropKey + `CREATE UNIQUE INDEX i ON ONLY processed_events (key, operation, source)`,
		[]string{"index invalid"},
		true,
	},
	{
		"unique index of a partition alone", `CREATE UNIQUE INDEX i ON processed_events_h1 (key, source)`,
		[]string{"other unique index"},
		true,
	},
	{
		"harmless unique index of a partition", `CREATE UNIQUE INDEX i ON processed_events_h1 (source, operation, key)`, nil,
		true,
	},
	{"trigger of a partition", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER t BEFORE INSERT ON processed_events_h3 FOR EACH ROW EXECUTE FUNCTION f()`, []string{"trigger"}, true},
	{"trigger of the table", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER t BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION f()`, []string{"trigger"}, true},
	{"partition not logged", `ALTER TABLE processed_events_h3 SET UNLOGGED`, []string{"not logged"}, true},
	{"partition of partitions", `DROP TABLE processed_events_h3;
		CREATE TABLE processed_events_h3 PARTITION OF processed_events FOR VALUES WITH (MODULUS 4, REMAINDER 3) PARTITION BY HASH (key);
		CREATE TABLE sub PARTITION OF processed_events_h3 FOR VALUES WITH (MODULUS 1, REMAINDER 0)`, []string{"not a table"}, false},
	{"plain", `DROP TABLE processed_events; CREATE TABLE processed_events (key text)`, []string{"layout"}, false},
	{"view", `DROP TABLE processed_events; CREATE VIEW processed_events AS SELECT 1`, []string{"not a table"}, false},
	{
		"by another strategy", `DROP TABLE processed_events; ` +
			strings.Replace(strings.Split(dedup.Table{}.DDL(), "-- Version 2")[0], "\n);", "\n) PARTITION BY LIST (key);", 1),
		[]string{"layout"},
		false,
	},
	{
		"nullable column", dropKey + `ALTER TABLE processed_events ALTER COLUMN source DROP NOT NULL, ADD UNIQUE (key, operation, source)`,
		[]string{"column nullable"},
		true,
	},
}

var hashed = dedup.Table{Layout: dedup.Hash(4)}

func problems(t *testing.T, pool *pgxpool.Pool, table dedup.Table) []dedup.Problem {
	t.Helper()
	err := dedup.Verify(t.Context(), pool, table)
	if err == nil {
		return nil
	}
	var bad *dedup.VerifyError
	require.ErrorAs(t, err, &bad)
	return bad.Problems
}

func TestVerifyHash(t *testing.T) {
	for _, d := range hashDamages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			require.NoError(t, dedup.Migrate(t.Context(), pool, hashed))
			exec1(t, pool, d.sql)
			var kinds []string
			found := problems(t, pool, hashed)
			for _, p := range found {
				kinds = append(kinds, p.Kind.String())
				require.Contains(t, []string{"processed_events", "public.processed_events"}, p.Table,
					"the table, not its partition")
			}
			require.ElementsMatch(t, d.kinds, kinds, "%v", found)
			if d.fixed {
				for _, p := range found {
					exec1(t, pool, p.Fix)
				}
				require.Empty(t, problems(t, pool, hashed), "after the fixes were run")
			}
		})
	}
}

func TestMigrateHash(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec1(t, pool, `CREATE SCHEMA "My.App"`)
	tables := []dedup.Table{
		hashed,
		{Name: `"My.App".events`, Layout: dedup.Hash(2)},
		{Name: "Mixed", Layout: dedup.Hash(16)},
		// Names that are too long for a suffix, and that would be one when cut.
		{Name: strings.Repeat("é", 31) + "a", Layout: dedup.Hash(3)},
		{Name: strings.Repeat("é", 31) + "b", Layout: dedup.Hash(3)},
	}
	for range 2 {
		require.NoError(t, dedup.Migrate(t.Context(), pool, tables...))
		require.NoError(t, dedup.Verify(t.Context(), pool, tables...))
	}
	for i, n := range []int{4, 2, 16, 3, 3} {
		var got int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_inherits WHERE inhparent = $1::text::regclass`,
			[]string{
				"processed_events", `"My.App".events`, `"Mixed"`, strings.Repeat("é", 31) + "a",
				strings.Repeat("é", 31) + "b",
			}[i]).Scan(&got))
		require.Equal(t, n, got, "%v", tables[i])
	}
	// The DDL by itself makes the same; and another layout is told apart.
	pool = pgtest.Pool(t)
	exec1(t, pool, hashed.DDL())
	exec1(t, pool, hashed.DDL())
	require.NoError(t, dedup.Verify(t.Context(), pool, hashed))
	require.Equal(t, "not a table", problems(t, pool, dedup.Table{})[0].Kind.String())
	require.Error(t, dedup.Migrate(t.Context(), pool))
}

// One primary key over all partitions: the same key clashes wherever it is inserted, and the partitions share the load.
func TestHashIsOneKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool, hashed))
	for i := range 200 {
		for n, want := range []int64{1, 0} {
			tag, err := pool.Exec(t.Context(), `
				INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', $1) ON CONFLICT (key, operation, source) DO NOTHING`, fmt.Sprint(i))
			require.NoError(t, err)
			require.Equal(t, want, tag.RowsAffected(), "insert %d of %d", n, i)
		}
	}
	var used int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(DISTINCT tableoid) FROM processed_events`).Scan(&used))
	require.Equal(t, 4, used)
}
