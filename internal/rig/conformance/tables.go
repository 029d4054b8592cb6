package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
)

// tables: what pgonce does in transactions of its own asks for what it needs, whatever the defaults of the session are.
func tables(t *testing.T, door Door) {
	for name, setting := range map[string]string{
		"ReadOnly":     "default_transaction_read_only = on",
		"Serializable": "default_transaction_isolation = serializable",
	} {
		t.Run(name, func(t *testing.T) {
			k := opened(t, door, false)
			k.exec(k.db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+setting+`', current_database()); END $$`)
			k.db.Renew()
			all := []dedup.Table{
				{Name: "defaults_plain", Retention: 10 * 24 * time.Hour},
				{Name: "defaults_hash", Layout: dedup.Hash(2)},
				{Name: "defaults_weekly", Layout: dedup.Weekly, Retention: 10 * 24 * time.Hour},
			}
			require.NoError(k, k.db.Migrate(k.ctx, all...))
			require.NoError(k, k.db.Migrate(k.ctx, all...), "again")

			tx := k.begin("")
			k.exec(tx, `SET TRANSACTION READ WRITE`)
			k.exec(tx, `INSERT INTO defaults_plain (source, operation, key, processed_at) VALUES ('s', 'o', 'k', '2001-01-01')`)
			k.exec(tx, `DO $$ BEGIN EXECUTE format('DROP TABLE %s',
				(SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'defaults_weekly'::regclass)); END $$`)
			require.NoError(k, tx.Commit(k.ctx))
			var stats [3]dedup.Stats
			for i, table := range all {
				var err error
				stats[i], err = k.db.Maintain(k.ctx, dedup.Cleaner{Table: table})
				require.NoError(k, err, table.Name)
			}
			require.EqualValues(k, 1, stats[0].Deleted)
			require.Len(k, stats[2].Made, 1)
		})
	}
}
