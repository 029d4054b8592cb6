package dedup_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

var weekly = dedup.Table{Layout: dedup.Weekly}

// monday returns the partition of the week n weeks from now.
func monday(t *testing.T, pool *pgxpool.Pool, n int) (name, from, to string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT 'processed_events_w' || to_char(w, 'YYYYMMDD'), to_char(w, 'YYYY-MM-DD'), to_char(w + 7, 'YYYY-MM-DD')
		  FROM CAST(date_trunc('week', now() AT TIME ZONE 'UTC') AS date) AS m, LATERAL (SELECT m + 7 * $1::int) AS x (w)`, n).Scan(&name, &from, &to))
	return name, from, to
}

func leaves(t *testing.T, pool *pgxpool.Pool) (names []string) {
	t.Helper()
	rows, err := pool.Query(t.Context(),
		`SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'processed_events'::regclass ORDER BY 1`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	return names
}

func TestMigrateWeekly(t *testing.T) {
	for _, style := range []string{"ISO, MDY", "German, DMY", "SQL, DMY", "Postgres, MDY"} {
		t.Run(style, func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Config(t)
			cfg.ConnConfig.RuntimeParams["datestyle"] = style
			cfg.ConnConfig.RuntimeParams["timezone"] = "Pacific/Kiritimati"
			pool := pgtest.PoolConfig(t, cfg)
			exec1(t, pool, `CREATE SCHEMA app`)
			tables := []dedup.Table{
				weekly,
				{Name: "app.Events", Layout: dedup.Weekly, Retention: 24 * time.Hour},
				{Name: strings.Repeat("t", 63), Layout: dedup.Weekly},
			}
			for range 2 {
				require.NoError(t, dedup.Migrate(t.Context(), pool, tables...))
				require.NoError(t, dedup.Verify(t.Context(), pool, tables...))
			}
			all := leaves(t, pool)
			first, _, _ := monday(t, pool, -5)
			last, _, _ := monday(t, pool, 8)
			require.Equal(t, []string{first, last}, []string{all[0], all[len(all)-1]})
			require.Len(t, all, 14, "35 days back, and 8 weeks ahead")
			require.Equal(t, "not a table", problems(t, pool, dedup.Table{})[0].Kind.String())
			require.Equal(t, "layout", problems(t, pool, hashed)[0].Kind.String())
		})
	}
}

// weeklyDamages are what Verify must find; %[-1] and the like stand for the partitions of weeks from now.
var weeklyDamages = []struct {
	name, sql string
	kinds     []string
	fixed     bool
}{
	{"sound", ``, nil, true},
	{
		"one CHECK missing", `ALTER TABLE processed_events DROP CONSTRAINT bucket_of_event_time`,
		[]string{"check missing"},
		true,
	},
	{
		"the other CHECK missing", `ALTER TABLE processed_events DROP CONSTRAINT event_time_of_key`,
		[]string{"check missing"},
		true,
	},
	{"another time zone", `ALTER TABLE processed_events DROP CONSTRAINT bucket_of_event_time,
		ADD CONSTRAINT bucket_of_event_time CHECK (bucket = date_trunc('week', event_time AT TIME ZONE 'CET')::date)`, []string{"check missing"}, true},
	{"under another name", `ALTER TABLE processed_events RENAME CONSTRAINT bucket_of_event_time TO b`, nil, true},
	{"CHECK not validated", `ALTER TABLE processed_events DROP CONSTRAINT bucket_of_event_time,
		ADD CONSTRAINT b CHECK (bucket = date_trunc('week', event_time AT TIME ZONE 'UTC')::date) NOT VALID`, []string{"check not validated"}, true},
	{"default partition", `CREATE TABLE d PARTITION OF processed_events DEFAULT`, []string{"default partition"}, false},
	{"key without the bucket's columns", dropKey, []string{"constraint missing"}, true},
	{
		"time nullable", `ALTER TABLE processed_events ALTER COLUMN event_time DROP NOT NULL`,
		[]string{"column nullable"},
		true,
	},
	{"a gap", `DROP TABLE %[1]`, []string{"partition missing"}, true},
	{"the oldest dropped", `DROP TABLE %[-5]`, nil, true},
	{"few ahead", `DROP TABLE %[8], %[7], %[6], %[5], %[4]`, []string{"too few partitions ahead"}, true},
	{"enough ahead", `DROP TABLE %[8], %[7], %[6], %[5]`, nil, true},
	{
		"half detached", `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = '%[-5]'::regclass`,
		[]string{"partition half detached"},
		true,
	},
	{
		"index of a partition", `UPDATE pg_index SET indisvalid = false WHERE indrelid = '%[0]'::regclass`,
		[]string{"index invalid"},
		false,
	},
	{"partition not logged", `ALTER TABLE %[2] SET UNLOGGED`, []string{"not logged"}, true},
	{"by arrival", `DROP TABLE processed_events; CREATE TABLE processed_events (processed_at timestamptz NOT NULL) PARTITION BY RANGE (processed_at)`, []string{"layout"}, false},
	{"plain", `DROP TABLE processed_events; CREATE TABLE processed_events (key text)`, []string{"layout"}, false},
}

func TestVerifyWeekly(t *testing.T) {
	for _, d := range weeklyDamages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			require.NoError(t, dedup.Migrate(t.Context(), pool, weekly))
			sql := d.sql
			for n, name := range map[int]string{
				-5: "%[-5]", 0: "%[0]", 1: "%[1]", 2: "%[2]", 4: "%[4]", 5: "%[5]", 6: "%[6]",
				7: "%[7]", 8: "%[8]",
			} {
				leaf, _, _ := monday(t, pool, n)
				sql = strings.ReplaceAll(sql, name, leaf)
			}
			exec1(t, pool, sql)
			var kinds []string
			found := problems(t, pool, weekly)
			for _, p := range found {
				kinds = append(kinds, p.Kind.String())
				require.Contains(t, []string{"processed_events", "public.processed_events"}, p.Table,
					"the table, not its partition")
				if strings.HasPrefix(d.name, "few") {
					last, _, _ := monday(t, pool, 4)
					require.Contains(t, strings.ReplaceAll(p.Message, "-", ""), last[len(last)-8:], "by name")
				}
			}
			require.ElementsMatch(t, d.kinds, kinds, "%v", found)
			if d.fixed {
				for _, p := range found {
					exec1(t, pool, p.Fix)
				}
				require.Empty(t, problems(t, pool, weekly), "after the fixes were run")
			}
		})
	}
}
