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

const (
	claimSQL  = `INSERT INTO processed_events (source, operation, key) VALUES ('s', 'o', 'k')`
	claimsSQL = `INSERT INTO processed_events (source, operation, key) SELECT 's', 'o', i::text FROM generate_series(1, 9) AS i`
	deleteSQL = `DELETE FROM processed_events`
	published = `CREATE PUBLICATION p FOR TABLE processed_events; `
	payments  = `CREATE TABLE payments (id int PRIMARY KEY); `
	rowBefore = ` BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION f(); `
)

// meddling is what somebody else does to a table, and the problem that it is; 0: none.
type meddling struct {
	name, sql string
	kind      dedup.Kind
	layout    dedup.Layout
	harm      string // a statement of this library's that fails for it
	code      string // with this one
	says      string
	since     int // the server's version that knows the SQL
}

var meddlings = []meddling{
	{
		name: "a CHECK on the key", kind: dedup.KindOtherConstraint,
		sql: `ALTER TABLE processed_events ADD CHECK (key <> 'k')`, harm: claimSQL, code: "23514",
	},
	{
		name: "a CHECK on what a reservation changes", kind: dedup.KindOtherConstraint,
		sql:  claimSQL + `; ALTER TABLE processed_events ADD CHECK (attempt < 2)`,
		harm: `UPDATE processed_events SET attempt = attempt + 1`, code: "23514",
	},
	{
		name: "a CHECK that reads as ours", kind: dedup.KindOtherConstraint,
		sql: `CREATE SCHEMA app; CREATE FUNCTION app.octet_length(text) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0';
			ALTER TABLE processed_events ADD CHECK (app.octet_length(key) >= 1 AND app.octet_length(key) <= 1024)`,
		harm: claimSQL, code: "23514",
	},
	{
		name: "a CHECK that says what ours says",
		sql:  `ALTER TABLE processed_events ADD CHECK (octet_length(key) BETWEEN 1 AND 1024)`,
	},
	{
		name: "a CHECK of a partition", kind: dedup.KindOtherConstraint, layout: dedup.Hash(2),
		sql:  `ALTER TABLE processed_events_h0 ADD CHECK (attempt < 0); ALTER TABLE processed_events_h1 ADD CHECK (attempt = 1)`,
		harm: claimsSQL, code: "23514",
	},
	{
		name: "a CHECK that is not enforced", since: 180000,
		sql: `ALTER TABLE processed_events ADD CHECK (key <> 'k') NOT ENFORCED`,
	},
	{
		name: "a CHECK of ours that is not enforced", kind: dedup.KindCheckMissing, layout: dedup.Weekly, since: 180000,
		sql: `ALTER TABLE processed_events DROP CONSTRAINT bucket_of_event_time,
			ADD CONSTRAINT bucket_of_event_time CHECK (bucket = date_trunc('week', event_time AT TIME ZONE 'UTC')::date) NOT ENFORCED`,
	},
	{
		name: "EXCLUDE", kind: dedup.KindOtherConstraint, sql: `ALTER TABLE processed_events ADD EXCLUDE (operation WITH =)`,
		harm: claimsSQL, code: "23P01",
	},
	{
		name: "EXCLUDE of a partition", kind: dedup.KindOtherConstraint, layout: dedup.Hash(2),
		sql: `ALTER TABLE processed_events_h0 ADD EXCLUDE (source WITH =)`, harm: claimsSQL, code: "23P01",
	},

	{
		name: "no replica identity", kind: dedup.KindReplicaIdentity, harm: deleteSQL, code: "55000",
		sql: published + claimSQL + `; ALTER TABLE processed_events REPLICA IDENTITY NOTHING`,
	},
	{
		name: "no replica identity without a primary key", kind: dedup.KindReplicaIdentity, harm: deleteSQL, code: "55000",
		sql: `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey, ADD UNIQUE (key, operation, source);
			CREATE PUBLICATION p FOR ALL TABLES; ` + claimSQL,
	},
	{
		name: "the index of the replica identity dropped", kind: dedup.KindReplicaIdentity, harm: deleteSQL, code: "55000",
		sql: published + claimSQL + `; CREATE UNIQUE INDEX i ON processed_events (source, operation, key);
			ALTER TABLE processed_events REPLICA IDENTITY USING INDEX i; DROP INDEX i`,
	},
	{
		name: "no replica identity of a partition", kind: dedup.KindReplicaIdentity, layout: dedup.Hash(2), harm: deleteSQL,
		code: "55000",
		sql:  published + claimsSQL + `; ALTER TABLE processed_events_h0 REPLICA IDENTITY NOTHING`,
	},
	{
		name: "no replica identity, published with its schema", kind: dedup.KindReplicaIdentity, since: 150000,
		harm: deleteSQL, code: "55000",
		sql: `CREATE PUBLICATION p FOR TABLES IN SCHEMA public; ` + claimSQL +
			`; ALTER TABLE processed_events REPLICA IDENTITY NOTHING`,
	},
	{name: "no replica identity, nothing published", sql: `ALTER TABLE processed_events REPLICA IDENTITY NOTHING`},
	{
		name: "no replica identity of the table above its partitions", layout: dedup.Hash(2),
		sql: published + `ALTER TABLE processed_events REPLICA IDENTITY NOTHING; ` + claimsSQL + `; ` + deleteSQL,
	},
	{
		name: "no replica identity, inserts published",
		sql: `CREATE PUBLICATION p FOR TABLE processed_events WITH (publish = 'insert');
			ALTER TABLE processed_events REPLICA IDENTITY NOTHING`,
	},
	{
		name: "a unique index for a replica identity",
		sql: published + `CREATE UNIQUE INDEX i ON processed_events (source, operation, key);
			ALTER TABLE processed_events REPLICA IDENTITY USING INDEX i`,
	},

	{name: "not published", kind: dedup.KindNotPublished, sql: payments + `CREATE PUBLICATION p FOR TABLE payments`},
	{
		name: "deletes published", kind: dedup.KindNotPublished, sql: payments + `CREATE PUBLICATION a FOR TABLE payments;
			CREATE PUBLICATION p FOR TABLE processed_events WITH (publish = 'delete')`,
	},
	{
		name: "not published, a schema is", kind: dedup.KindNotPublished, since: 150000,
		sql: `CREATE SCHEMA app; CREATE PUBLICATION p FOR TABLES IN SCHEMA app`,
	},
	{
		name: "a schema published, and the table", since: 150000,
		sql: `CREATE SCHEMA app; CREATE PUBLICATION p FOR TABLES IN SCHEMA app, TABLE processed_events`,
	},
	{name: "published with its schema", since: 150000, sql: payments + `CREATE PUBLICATION p FOR TABLES IN SCHEMA public`},
	{
		name: "rows published", kind: dedup.KindNotPublished, since: 150000,
		sql: payments + `CREATE PUBLICATION a FOR TABLE payments; CREATE PUBLICATION p FOR TABLE processed_events WHERE (key <> 'k')`,
	},
	{
		name: "rows published of each", kind: dedup.KindNotPublished, since: 150000,
		sql: payments + `CREATE PUBLICATION p FOR TABLE payments, processed_events WHERE (key <> 'k')`,
	},
	{
		name: "columns published", kind: dedup.KindNotPublished, since: 150000,
		sql: payments + `CREATE PUBLICATION a FOR TABLE payments; CREATE PUBLICATION p FOR TABLE processed_events (key, operation, source)`,
	},
	{
		name: "one partition published", kind: dedup.KindNotPublished, layout: dedup.Hash(2),
		sql: payments + `CREATE PUBLICATION p FOR TABLE payments, processed_events_h0`,
	},
	{
		name: "each partition published", layout: dedup.Hash(2),
		sql: payments + `CREATE PUBLICATION p FOR TABLE payments, processed_events_h0, processed_events_h1`,
	},
	{
		name: "published by another one", layout: dedup.Weekly,
		sql: payments + published + `CREATE PUBLICATION a FOR TABLE payments`,
	},
	{name: "published alone", sql: published},
	{name: "everything published", layout: dedup.Hash(2), sql: payments + `CREATE PUBLICATION p FOR ALL TABLES`},

	{
		name: "a value that must be given", kind: dedup.KindColumnDefault, harm: claimSQL, code: "23502",
		sql: `ALTER TABLE processed_events ALTER payload_hash SET NOT NULL`,
	},
	{
		name: "attempts that count the keys", kind: dedup.KindColumnGenerated,
		sql: `ALTER TABLE processed_events ALTER attempt DROP DEFAULT, ALTER attempt ADD GENERATED BY DEFAULT AS IDENTITY`,
	},
	{
		name: "tokens that count the keys", kind: dedup.KindColumnGenerated,
		sql:  `ALTER TABLE processed_events DROP token, ADD token bigint GENERATED ALWAYS AS IDENTITY`,
		harm: `INSERT INTO processed_events (source, operation, key, token) VALUES ('s', 'o', 'k', 1)`, code: "428C9",
	},
	{
		name: "a state that is computed", kind: dedup.KindColumnGenerated, harm: `UPDATE processed_events SET failed = true`,
		code: "428C9",
		sql:  `ALTER TABLE processed_events DROP failed, ADD failed boolean NOT NULL GENERATED ALWAYS AS (key = 'k') STORED`,
	},
	{
		name: "a value that is computed", kind: dedup.KindColumnGenerated,
		harm: `UPDATE processed_events SET value = NULL::bytea`, code: "428C9",
		sql: `ALTER TABLE processed_events DROP value, ADD value bytea GENERATED ALWAYS AS ('\x00'::bytea) STORED`,
	},
	{
		name: "a value that is computed when it is read", kind: dedup.KindColumnGenerated, since: 180000,
		sql:  `ALTER TABLE processed_events DROP value, ADD value bytea GENERATED ALWAYS AS ('\x00'::bytea) VIRTUAL`,
		harm: `UPDATE processed_events SET value = NULL::bytea`, code: "428C9",
	},
	{
		name: "NULLs that are not distinct", kind: dedup.KindColumnNullable, since: 150000, says: "no claim sends",
		sql: `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey, ADD UNIQUE NULLS NOT DISTINCT (key, operation, source),
			ALTER source DROP NOT NULL`,
	},

	{
		name: "a trigger enabled on a partition alone", kind: dedup.KindTrigger, layout: dedup.Hash(2),
		sql: triggerFunc + `CREATE TRIGGER t` + rowBefore + `ALTER TABLE processed_events DISABLE TRIGGER t;
			ALTER TABLE processed_events_h0 ENABLE TRIGGER t`,
	},
	{
		name: "a trigger disabled", layout: dedup.Hash(2),
		sql: triggerFunc + `CREATE TRIGGER t` + rowBefore + `ALTER TABLE processed_events DISABLE TRIGGER t;
			ALTER TABLE processed_events_h0 DISABLE TRIGGER t; ALTER TABLE processed_events_h1 DISABLE TRIGGER t`,
	},
	{
		name: "a trigger after, of a partition", kind: dedup.KindTriggerAfter, layout: dedup.Hash(2),
		sql: triggerFunc + `CREATE TRIGGER t AFTER INSERT ON processed_events_h0 FOR EACH ROW EXECUTE FUNCTION f()`,
	},
	{
		name: "a rule of a partition", kind: dedup.KindRule, layout: dedup.Hash(2),
		sql: `CREATE RULE r AS ON DELETE TO processed_events_h0 DO INSTEAD NOTHING`,
	},
	{
		name: "a foreign key of a partition", kind: dedup.KindForeignKey, layout: dedup.Hash(2), harm: claimsSQL,
		code: "23503",
		sql:  `CREATE TABLE s (id text PRIMARY KEY); ALTER TABLE processed_events_h0 ADD FOREIGN KEY (source) REFERENCES s`,
	},
	{
		name: "a unique index of a partition, on part of the key", kind: dedup.KindOtherUniqueIndex, layout: dedup.Hash(2),
		harm: claimsSQL, code: "23505",
		sql: `CREATE UNIQUE INDEX i ON processed_events_h0 (source) INCLUDE (key, operation)`,
	},
	{
		name: "a unique index of a partition, that takes different keys for equal", kind: dedup.KindOtherUniqueIndex,
		layout: dedup.Hash(2),
		sql: `CREATE COLLATION blurred (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			CREATE UNIQUE INDEX i ON processed_events_h0 (key COLLATE blurred, operation, source)`,
	},
	{
		name: "a unique index of a partition, on an expression", kind: dedup.KindOtherUniqueIndex, layout: dedup.Hash(2),
		harm: claimsSQL, code: "23505",
		sql: `CREATE UNIQUE INDEX i ON processed_events_h0 (length(key), operation, source)`,
	},
}

// Verify names each, by a kind of its own, and its fix takes it away. Migrate ignores what keeps no version from being
// made, and refuses the rest.
func TestVerifyWhatOthersDo(t *testing.T) {
	for _, m := range meddlings {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			pool, table := pgtest.Pool(t), dedup.Table{Layout: m.layout}
			if number(t, pool, `SELECT current_setting('server_version_num')::int`) < m.since {
				return // there is no such SQL
			}
			migrated(t, pool, table)
			exec1(t, pool, m.sql)
			if m.harm != "" {
				_, err := pool.Exec(t.Context(), m.harm)
				require.True(t, pgerr.Is(err, m.code), "%v", err)
			}
			found := problems(t, pool, table)
			for _, p := range found {
				require.Equal(t, m.kind, p.Kind, "%v", found)
				require.Contains(t, p.Message, m.says)
			}
			require.Equal(t, m.kind != 0, len(found) > 0, "%v", found)
			wantMigrated(t, pool, table, found)
			for _, p := range found {
				exec1(t, pool, p.Fix)
			}
			require.Empty(t, problems(t, pool, table), "after the fixes %v", found)
		})
	}
}

// wantMigrated demands that Migrate refuses a table for the problems that Verify has found, but for those that it
// ignores.
func wantMigrated(t *testing.T, pool *pgxpool.Pool, table dedup.Table, found []dedup.Problem) {
	t.Helper()
	var want []dedup.Problem
	for _, p := range found {
		switch p.Kind {
		case dedup.KindTriggerAfter, dedup.KindForeignKey, dedup.KindOtherConstraint, dedup.KindReplicaIdentity,
			dedup.KindNotPublished:
		default:
			want = append(want, p)
		}
	}
	err := dedup.Migrate(t.Context(), pool, table)
	if len(want) == 0 {
		require.NoError(t, err)
		return
	}
	var bad *dedup.VerifyError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, want, bad.Problems)
}

// A partition that was detached CONCURRENTLY, and is one again, has a CHECK of its bounds. So may one that was made
// by hand.
func TestVerifyBoundsAsChecks(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"ISO, MDY", "German, DMY"} {
		cfg := pgtest.Config(t)
		cfg.ConnConfig.RuntimeParams["datestyle"] = style
		pool := pgtest.PoolConfig(t, cfg)
		migrated(t, pool, weekly)
		leaf, from, to := monday(t, pool, 0)
		exec1(t, pool, `ALTER TABLE processed_events DETACH PARTITION `+leaf+` CONCURRENTLY`)
		exec1(t, pool, `ALTER TABLE processed_events ATTACH PARTITION `+leaf+` FOR VALUES FROM ('`+from+`') TO ('`+to+`')`)
		const own = `SELECT count(*) FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'c' AND coninhcount = 0`
		require.Equal(t, 1, number(t, pool, own, leaf), "what DETACH has left")
		exec1(t, pool, `ALTER TABLE `+leaf+` ADD CHECK (bucket >= '`+from+`' AND bucket < '`+to+`')`)
		require.Empty(t, problems(t, pool, weekly), style)
		migrated(t, pool, weekly)
		next, _, _ := monday(t, pool, 1)
		exec1(t, pool, `ALTER TABLE `+next+` ADD CHECK (bucket >= '`+from+`' AND bucket < '`+to+`')`)
		found := problems(t, pool, weekly)
		require.Len(t, found, 1, "the bounds of another week keep every key out")
		require.Equal(t, dedup.KindOtherConstraint, found[0].Kind)
		require.True(t, strings.Contains(found[0].Fix, next), found[0].Fix)
	}
}
