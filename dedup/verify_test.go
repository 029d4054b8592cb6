package dedup_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

const dropKey = `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey;`

const triggerFunc = `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; `

// damages are what Verify must find, each by its own kind; fixed says that running the Fix of every problem mends it.
var damages = []struct {
	name, sql string
	kinds     []string
	fixed     bool
}{
	{"sound", ``, nil, true},
	{"sound, as a unique index", dropKey + `CREATE UNIQUE INDEX ON processed_events (source, key, operation)`, nil, true},
	{"constraint dropped", dropKey, []string{"constraint missing"}, true},
	{
		"not unique", dropKey + `CREATE INDEX ON processed_events (key, operation, source)`,
		[]string{"constraint missing"},
		true,
	},
	{
		"deferrable", dropKey + `ALTER TABLE processed_events ADD PRIMARY KEY (key, operation, source) DEFERRABLE`,
		[]string{"constraint deferrable"},
		true,
	},
	{
		"partial", dropKey + `CREATE UNIQUE INDEX i ON processed_events (key, operation, source) WHERE attempt > 0`,
		[]string{"index partial"},
		true,
	},
	{
		"expression", dropKey + `CREATE UNIQUE INDEX i ON processed_events (lower(key), operation, source)`,
		[]string{"index on an expression"},
		true,
	},
	{
		"one column too many", dropKey +
			`ALTER TABLE processed_events ADD PRIMARY KEY (key, operation, source, processed_at)`,
		[]string{"index has more columns"},
		true,
	},
	{
		"one column too few", dropKey + `ALTER TABLE processed_events ADD PRIMARY KEY (key, source)`,
		[]string{"other unique index", "constraint missing"},
		true,
	},
	{
		"another unique index beside it", `CREATE UNIQUE INDEX i ON processed_events (key)`,
		[]string{"other unique index"},
		true,
	},
	{
		"nullable column", dropKey + `ALTER TABLE processed_events ALTER COLUMN source DROP NOT NULL, ADD UNIQUE (key, operation, source)`,
		[]string{"column nullable"},
		true,
	},
	{
		"collation", `ALTER TABLE processed_events ALTER COLUMN key TYPE text COLLATE "en-x-icu"`,
		[]string{"collation"},
		true,
	},
	{
		"nondeterministic collation", `CREATE COLLATION blurred (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		ALTER TABLE processed_events ALTER COLUMN key TYPE text COLLATE blurred`,
		[]string{"collation"},
		true,
	},
	{"table missing", `DROP TABLE processed_events`, []string{"table missing"}, true},
	{
		"column missing", `ALTER TABLE processed_events DROP COLUMN payload_hash, DROP COLUMN failed`,
		[]string{"column missing", "column missing"},
		true,
	},
	{
		"column type", `ALTER TABLE processed_events DROP CONSTRAINT processed_events_payload_hash_check, ALTER COLUMN payload_hash TYPE text`,
		[]string{"column type"},
		false,
	},
	{
		"home-made", `DROP TABLE processed_events; CREATE TABLE processed_events (event_id text PRIMARY KEY)`,
		[]string{"not our table"},
		false,
	},
	{
		"home-made, of the same columns in part",
		`DROP TABLE processed_events; CREATE TABLE processed_events (key text PRIMARY KEY, source text)`,
		[]string{"not our table"},
		false,
	},
	{"not logged", `ALTER TABLE processed_events SET UNLOGGED`, []string{"not logged"}, true},
	{"trigger", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER t BEFORE INSERT OR UPDATE ON processed_events FOR EACH ROW EXECUTE FUNCTION f()`, []string{"trigger"}, true},
	{"triggers of other times", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER a AFTER INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION f();
		CREATE TRIGGER b BEFORE DELETE ON processed_events FOR EACH ROW EXECUTE FUNCTION f();
		CREATE TRIGGER d BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION f();
		ALTER TABLE processed_events DISABLE TRIGGER d`, []string{"trigger after", "trigger"}, true},
	{
		"trigger of a statement", triggerFunc + `CREATE TRIGGER t BEFORE INSERT ON processed_events EXECUTE FUNCTION f()`,
		[]string{"trigger"},
		true,
	},
	{"trigger on UPDATE", triggerFunc +
		`CREATE TRIGGER t BEFORE UPDATE ON processed_events FOR EACH ROW EXECUTE FUNCTION f()`, []string{"trigger"}, true},
	{"deferred trigger", triggerFunc +
		`CREATE CONSTRAINT TRIGGER t AFTER INSERT ON processed_events DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION f()`, []string{"trigger after"}, true},
	{"trigger on TRUNCATE alone", triggerFunc +
		`CREATE TRIGGER t BEFORE TRUNCATE ON processed_events EXECUTE FUNCTION f()`, nil, true},
	{"rule on DELETE", `CREATE RULE r AS ON DELETE TO processed_events DO INSTEAD NOTHING`, []string{"rule"}, true},
	{
		"foreign key to it", `CREATE TABLE p (k text, o text, s text, FOREIGN KEY (k, o, s) REFERENCES processed_events (key, operation, source) ON DELETE CASCADE)`,
		[]string{"foreign key"},
		true,
	},
	{
		"foreign key from it", `CREATE TABLE p (s text PRIMARY KEY); ALTER TABLE processed_events ADD FOREIGN KEY (source) REFERENCES p ON DELETE CASCADE`,
		[]string{"foreign key"},
		true,
	},
	{"EXCLUDE", `ALTER TABLE processed_events ADD EXCLUDE (key WITH =)`, []string{"other constraint"}, true},
	{"inheriting table", `CREATE TABLE c () INHERITS (processed_events)`, []string{"inheritance"}, true},
	{"table inherited from", `CREATE TABLE c (LIKE processed_events INCLUDING ALL); ALTER TABLE processed_events INHERIT c`, []string{"inheritance"}, false},
	{"born failed", `ALTER TABLE processed_events ALTER failed SET DEFAULT true`, []string{"column default"}, true},
	{
		"born for ever", `ALTER TABLE processed_events ALTER processed_at SET DEFAULT 'infinity'`,
		[]string{"column default"},
		true,
	},
	{
		"born expired", `ALTER TABLE processed_events ALTER processed_at SET DEFAULT now() - interval '1 year'`,
		[]string{"column default"},
		true,
	},
	{"another function's time", `CREATE SCHEMA app; CREATE FUNCTION app.now() RETURNS timestamptz LANGUAGE sql AS $$SELECT 'infinity'::timestamptz$$;
		ALTER TABLE processed_events ALTER processed_at SET DEFAULT app.now()`, []string{"column default"}, true},
	{"another attempt", `ALTER TABLE processed_events ALTER attempt SET DEFAULT 7`, []string{"column default"}, true},
	{
		"default that says the same", `ALTER TABLE processed_events ALTER processed_at SET DEFAULT CURRENT_TIMESTAMP`, nil,
		true,
	},
	{"rule", `CREATE RULE r AS ON INSERT TO processed_events DO INSTEAD NOTHING`, []string{"rule"}, true},
	{"rule on UPDATE", `CREATE RULE r AS ON UPDATE TO processed_events DO ALSO NOTHING`, []string{"rule"}, true},
	{
		"collation of the index alone",
		dropKey + `CREATE UNIQUE INDEX i ON processed_events (key COLLATE "en-x-icu", operation, source)`,
		[]string{"collation"},
		true,
	},
	{
		"collation of ours by name only", `CREATE SCHEMA odd; CREATE COLLATION odd."C" (provider = icu, locale = 'und');
		ALTER TABLE processed_events ALTER COLUMN key TYPE text COLLATE odd."C"`, []string{"collation"}, true,
	},
	{
		"defaults", `ALTER TABLE processed_events ALTER COLUMN processed_at DROP DEFAULT, ALTER COLUMN attempt DROP NOT NULL,
		ALTER COLUMN lease_until SET DEFAULT now(), ADD COLUMN note text NOT NULL, ADD COLUMN fine text NOT NULL DEFAULT ''`,
		[]string{"column default", "column nullable", "column default", "column default"},
		true,
	},
	{
		"view", `ALTER TABLE processed_events RENAME TO hidden; CREATE VIEW processed_events AS SELECT * FROM hidden`,
		[]string{"not a table"},
		false,
	},
	{
		"temporary", `CREATE TEMPORARY TABLE processed_events (LIKE processed_events INCLUDING ALL)`,
		[]string{"not logged"},
		false,
	},
	{
		"partitioned", `DROP TABLE processed_events; CREATE TABLE processed_events (key text) PARTITION BY HASH (key)`,
		[]string{"not a table"},
		false,
	},
	{
		"in another schema of the path", `CREATE SCHEMA app; ALTER TABLE processed_events SET SCHEMA app`,
		[]string{"table in another schema"},
		false,
	},
	{
		"a second one in the path", `CREATE SCHEMA app; CREATE TABLE app.processed_events (LIKE processed_events)`,
		[]string{"table in another schema"},
		false,
	},
	{
		"outside of the path", `CREATE SCHEMA away; ALTER TABLE processed_events SET SCHEMA away`,
		[]string{"table in another schema"},
		false,
	},
}

func TestVerify(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Config(t)
			cfg.MaxConns = 1 // a temporary table is one session's
			cfg.ConnConfig.RuntimeParams["search_path"] = "public, app"
			pool := pgtest.PoolConfig(t, cfg)
			require.NoError(t, dedup.Migrate(t.Context(), pool))
			exec1(t, pool, d.sql)
			problems := verify(t, pool)
			var kinds []string
			for _, p := range problems {
				kinds = append(kinds, p.Kind.String())
				require.NotEmpty(t, p.Message)
				require.Contains(t, p.Fix, ";")
				require.Contains(t, p.Table, "processed_events")
				require.NotRegexp(t, "DROP (TABLE|VIEW)", p.Fix, "Migrate would make an empty one")
			}
			require.ElementsMatch(t, d.kinds, kinds, "%v", problems)
			if slices.Contains(kinds, "not our table") {
				require.Contains(t, problems[0].Fix, "home_made")
				require.True(t, strings.HasPrefix(problems[0].Fix, "--"), "nothing that drops its only uniqueness")
			}
			if d.name != "table missing" && d.name != "outside of the path" { // Migrate makes it
				wantMigrated(t, pool, dedup.Table{}, problems)
			}
			if d.fixed {
				for _, p := range problems {
					exec1(t, pool, p.Fix)
				}
				require.Empty(t, verify(t, pool), "after the fixes were run")
			}
		})
	}
}

func verify(t *testing.T, pool *pgxpool.Pool) []dedup.Problem {
	t.Helper()
	err := dedup.Verify(t.Context(), pool)
	if err == nil {
		return nil
	}
	var bad *dedup.VerifyError
	require.ErrorAs(t, err, &bad)
	for _, p := range bad.Problems {
		require.ErrorContains(t, err, p.Fix[:20], "the message shows what mends it")
	}
	return bad.Problems
}

// An index that a failed CREATE INDEX CONCURRENTLY left behind.
func TestVerifyInvalidIndex(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	exec1(t, pool, dropKey)
	exec1(t, pool, `INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', 'k'), ('s', 'o', 'k')`)
	_, err := pool.Exec(t.Context(), `CREATE UNIQUE INDEX CONCURRENTLY half ON processed_events (key, operation, source)`)
	require.Error(t, err)
	problems := verify(t, pool)
	require.Len(t, problems, 1)
	require.Equal(t, "index invalid", problems[0].Kind.String())
	exec1(t, pool, `DELETE FROM processed_events`)
	exec1(t, pool, problems[0].Fix)
	require.Empty(t, verify(t, pool))
}

// Verify answers for the role that asks.
func TestVerifyRole(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	role := "reader_" + pool.Config().ConnConfig.Database
	exec1(t, pool, `CREATE ROLE `+role)
	exec1(t, pool, `GRANT SELECT ON processed_events TO `+role)
	exec1(t, pool, `ALTER TABLE processed_events ENABLE ROW LEVEL SECURITY`)
	defer func() {
		exec1(t, pool, `DROP OWNED BY `+role)
		exec1(t, pool, `DROP ROLE `+role)
	}()
	require.Empty(t, verify(t, pool), "the owner is not subject to row security")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET ROLE `+role)
	require.NoError(t, err)
	var bad *dedup.VerifyError
	require.ErrorAs(t, dedup.Verify(t.Context(), conn), &bad)
	require.Equal(t, []string{"rights missing", "row security"},
		[]string{bad.Problems[0].Kind.String(), bad.Problems[1].Kind.String()})
	_, err = conn.Exec(t.Context(), `RESET ROLE`)
	require.NoError(t, err)
	for _, p := range bad.Problems {
		exec1(t, pool, p.Fix)
	}
	_, err = conn.Exec(t.Context(), `SET ROLE `+role)
	require.NoError(t, err)
	require.NoError(t, dedup.Verify(t.Context(), conn))
	_, err = conn.Exec(t.Context(), `RESET ROLE`)
	require.NoError(t, err)
}

// What is committed asynchronously can be lost after it was acknowledged. That is the session's, not the table's:
// Migrate does not mind, and a program may accept it by name.
func TestVerifySession(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool := pgtest.PoolConfig(t, cfg)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	var found *dedup.VerifyError
	require.ErrorAs(t, dedup.Verify(t.Context(), pool), &found)
	require.Len(t, found.Problems, 1)
	require.Equal(t, "asynchronous commit", found.Problems[0].Kind.String())
	require.NoError(t, found.Except(dedup.KindAsynchronousCommit))
	exec1(t, pool, dropKey)
	require.ErrorAs(t, dedup.Verify(t.Context(), pool), &found)
	require.Len(t, found.Problems, 2)
	require.ErrorContains(t, found.Except(dedup.KindAsynchronousCommit), "constraint missing")
	require.Error(t, found.Except(dedup.KindConstraintMissing))
}

// A server that may lose or damage what was committed is named, unless it says that nobody will miss its data.
func TestVerifyDurable(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	cfg.ConnConfig.RuntimeParams["pgonce.throwaway"] = "off"
	pool := pgtest.PoolConfig(t, cfg)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	off := `SELECT coalesce(string_agg('ALTER SYSTEM SET ' || name || ' = on; -- then SELECT pg_reload_conf()', ' ' ORDER BY name), '')
		FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'`
	var want string
	require.NoError(t, pool.QueryRow(t.Context(), off).Scan(&want))
	var fixes []string
	for _, p := range verify(t, pool) {
		require.Equal(t, "not durable", p.Kind.String())
		fixes = append(fixes, p.Fix)
	}
	require.Equal(t, want, strings.Join(fixes, " "))
}
