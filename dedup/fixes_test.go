package dedup_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// ourColumns are the columns of layout Plain, without anything that makes a key unique.
const ourColumns = `source text COLLATE "C" NOT NULL, operation text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL,
	processed_at timestamptz NOT NULL DEFAULT now(), payload_hash bytea, value bytea, lease_until timestamptz,
	attempt integer NOT NULL DEFAULT 1, failed boolean NOT NULL DEFAULT false, token bigint`

const (
	oneKey = `INSERT INTO processed_events (key, operation, source) VALUES ('k', 'o', 's')`
	oneID  = `INSERT INTO processed_events (event_id) VALUES ('k')`
)

// homeMade are tables that somebody else made, each with one kind of uniqueness; once is an insert that the table takes
// once. What is advised says that the statements are no more than advice: Verify is not content behind them.
var homeMade = []struct {
	name, table, once string
	advised           bool
}{
	{"one id", `(event_id text PRIMARY KEY)`, oneID, true},
	{
		"one id and a source", `(event_id text PRIMARY KEY, source text NOT NULL DEFAULT 'x', processed_at timestamptz)`,
		oneID, true,
	},
	{
		"the columns of the key, and one of them unique", `(key text PRIMARY KEY, operation text, source text)`, oneKey,
		true,
	},
	{"the same, and a number", `(id bigserial PRIMARY KEY, key text UNIQUE, operation text, source text)`, oneKey, true},
	{
		"the key itself, and nothing else", `(key text, operation text, source text, PRIMARY KEY (source, operation, key))`,
		oneKey, false,
	},
	{"ours, and part of the key", `(` + ourColumns + `, PRIMARY KEY (key, source))`, oneKey, false},
	{"ours, and part of the key in three ways", `(` + ourColumns + `, PRIMARY KEY (key), UNIQUE (key, source));
		CREATE UNIQUE INDEX i ON processed_events (key, operation)`, oneKey, false},
	{
		"ours, an index of part of the key", `(` + ourColumns + `); CREATE UNIQUE INDEX i ON processed_events (key)`, oneKey,
		false,
	},
	{"ours, and a number", `(id bigserial PRIMARY KEY, ` + ourColumns + `, UNIQUE (key, operation))`, oneKey, false},
	{
		"ours, DEFERRABLE, and a number",
		`(id bigserial PRIMARY KEY, ` + ourColumns + `, UNIQUE (key, operation, source) DEFERRABLE)`, oneKey, false,
	},
	{"ours, DEFERRABLE twice", `(` + ourColumns +
		`, PRIMARY KEY (key, operation, source) DEFERRABLE, UNIQUE (source, operation, key) DEFERRABLE)`, oneKey, false},
	{"ours, with a WHERE", `(` + ourColumns +
		`); CREATE UNIQUE INDEX i ON processed_events (key, operation, source) WHERE NOT failed`, oneKey, false},
	{"ours, with a WHERE and a number", `(id bigserial PRIMARY KEY, ` + ourColumns + `);
		CREATE UNIQUE INDEX i ON processed_events (key, operation, source) WHERE NOT failed`, oneKey, false},
	{"ours, on an expression", `(` + ourColumns +
		`); CREATE UNIQUE INDEX i ON processed_events (lower(key), operation, source);
		CREATE UNIQUE INDEX j ON processed_events (md5(key), operation, source)`, oneKey, false},
	{
		"ours, by another collation",
		`(` + ourColumns + `); CREATE UNIQUE INDEX i ON processed_events (key COLLATE "en-x-icu", operation, source);
		CREATE UNIQUE INDEX j ON processed_events (key, operation, source COLLATE "en-x-icu")`, oneKey, false,
	},
	{
		"ours, with a tenant", `(tenant text NOT NULL, ` + ourColumns + `, PRIMARY KEY (tenant, key, operation, source))`,
		`INSERT INTO processed_events (tenant, key, operation, source) VALUES ('t', 'k', 'o', 's')`, false,
	},
	{
		"ours, by EXCLUDE", `(` + ourColumns + `, EXCLUDE USING btree (key WITH =, operation WITH =, source WITH =))`,
		oneKey, false,
	},
	{"ours, pointed to", `(` + ourColumns + `, PRIMARY KEY (key, source));
		CREATE TABLE p (k text, s text, FOREIGN KEY (k, s) REFERENCES processed_events (key, source))`, oneKey, false},
	{
		"ours, of other types", `(key uuid NOT NULL, operation varchar(20) NOT NULL, source char(4) NOT NULL,
		processed_at timestamptz NOT NULL DEFAULT now(), payload_hash bytea, value bytea, lease_until timestamptz,
		attempt smallint NOT NULL DEFAULT 1, failed boolean NOT NULL DEFAULT false, token integer, PRIMARY KEY (key, operation, source))`,
		`INSERT INTO processed_events (key, operation, source) VALUES ('00000000-0000-7000-8000-000000000000', 'o', 's')`,
		false,
	},
	{"ours, nullable", `(key text, operation text, source text,
		processed_at timestamptz DEFAULT now(), payload_hash bytea, value bytea, lease_until timestamptz,
		attempt integer DEFAULT 1, failed boolean DEFAULT false, token bigint, UNIQUE (key, operation, source))`, oneKey, false},
}

// The fixes of a table that is in use, run one after the other, never let a key in that the table refused before.
func TestFixesKeepTheKeyUnique(t *testing.T) {
	for _, h := range homeMade {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			exec1(t, pool, `CREATE TABLE processed_events `+h.table)
			exec1(t, pool, h.once)
			wantRefused(t, pool, h.once, "before any fix")
			found, added := verify(t, pool), 0
			require.NotEmpty(t, found)
			for _, p := range found {
				added += strings.Count(p.Fix, "ADD PRIMARY KEY")
				for _, statement := range strings.SplitAfter(p.Fix, "; ") {
					exec1(t, pool, statement)
					wantRefused(t, pool, h.once, statement)
				}
			}
			require.LessOrEqual(t, added, 1, "%v", found)
			if h.advised {
				require.Len(t, found, 1)
				require.Equal(t, dedup.KindNotOurTable, found[0].Kind)
				require.True(t, strings.HasPrefix(found[0].Fix, "--"), found[0].Fix)
				require.Contains(t, found[0].Fix, "home_made")
			} else {
				require.Empty(t, verify(t, pool), "after the fixes %v", found)
			}
			require.Equal(t, 1, number(t, pool, `SELECT count(*) FROM processed_events`))
		})
	}
}

func wantRefused(t *testing.T, pool *pgxpool.Pool, insert, after string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), insert)
	require.Error(t, err, "a second row of one key, after %s", after)
	require.Contains(t, []string{"23505", "23P01"}, pgerr.Code(err), "%v, after %s", err, after)
}
