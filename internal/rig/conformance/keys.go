package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

func keys(t *testing.T, door Door) {
	// Each of these is an effect of its own, though the id is the same in all.
	t.Run("EachPartCounts", func(t *testing.T) {
		k := open(t, door)
		all := []idem.Key{
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("1"),
			idem.Scope{Source: "paypal", Operation: "activate"}.Key("1"),
			idem.Scope{Source: "stripe", Operation: "refund"}.Key("1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("tenant a", "1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("tenant b", "1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("tenant b/1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.HashedKey("1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("1 "),
			idem.Scope{Source: "stripe ", Operation: "activate"}.Key("1"),
			idem.Scope{Source: "Stripe", Operation: "activate"}.Key("1"),
			idem.Scope{Source: "stripea", Operation: "ctivate"}.Key("1"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("e\u0301"),
			idem.Scope{Source: "stripe", Operation: "activate"}.Key("\u00e9"),
		}
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			for _, key := range all {
				out, err := k.db.Run(k.ctx, Settings{}, key, effect("a"))
				require.NoError(t, err)
				require.Equal(t, want, out, "%v", key)
			}
		}
		k.wantEffects("a", len(all))
		k.wantKeys(len(all))
	})

	// Two consumer groups, a table each: both process the message.
	t.Run("TwoTables", func(t *testing.T) {
		if door.OneTable {
			return
		}
		k := open(t, door)
		for _, sql := range strings.SplitAfter(door.ddl("group_b"), ";\n") {
			k.exec(k.db, sql)
		}
		for _, table := range []string{"", "group_b"} {
			for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
				s := Settings{Table: dedup.Table{Name: table}}
				out, err := k.db.Run(k.ctx, s, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)
				require.Equal(t, want, out)
			}
		}
		k.wantEffects("a", 2)
	})

	// The longest values fit, whatever they hold: PostgreSQL compresses repeated bytes and not random ones.
	t.Run("LongestFit", func(t *testing.T) {
		k := open(t, door)
		for _, fill := range []func(n int) string{
			func(n int) string { return strings.Repeat("a", n) },
			func(n int) string {
				b := make([]byte, n)
				_, _ = rand.Read(b)
				return hex.EncodeToString(b)[:n]
			},
		} {
			s := idem.Scope{Source: fill(dedup.MaxScopeBytes), Operation: fill(dedup.MaxScopeBytes)}
			for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
				key := s.Key(fill(dedup.MaxKeyBytes))
				_, err := k.db.Run(k.ctx, Settings{}, key, effect("a"))
				require.NoError(t, err)
				out, err := k.db.Run(k.ctx, Settings{}, key, k.never())
				require.NoError(t, err)
				require.Equal(t, idem.Duplicate, out, "%v", want)
			}
			over := s.Key(fill(dedup.MaxKeyBytes + 1))
			_, err := k.db.Run(k.ctx, Settings{}, over, k.never())
			var bad *idem.KeyError
			require.ErrorAs(t, err, &bad)
		}
	})

	// A bad key is found before any SQL: the transaction does not even notice.
	t.Run("BadKeysBeforeSQL", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		for name, key := range map[string]idem.Key{
			"zero":        {},
			"no parts":    scope.Key(),
			"empty":       scope.Key(""),
			"empty part":  scope.Key("a", ""),
			"NUL":         scope.Key("a\x00b"),
			"not UTF-8":   scope.Key("a\xff"),
			"too long":    scope.Key(strings.Repeat("é", dedup.MaxKeyBytes/2) + "x"),
			"no source":   idem.Scope{Operation: "activate"}.Key("1"),
			"NUL source":  idem.Scope{Source: "\x00", Operation: "activate"}.Key("1"),
			"long source": idem.Scope{Source: strings.Repeat("s", dedup.MaxScopeBytes+1), Operation: "o"}.HashedKey("1"),
			"no op":       idem.Scope{Source: "stripe"}.Key("1"),
			"bad op":      idem.Scope{Source: "stripe", Operation: "\xff"}.HashedKey("1"),
		} {
			var bad *idem.KeyError
			out, err := tx.Do(k.ctx, Settings{}, key, k.never())
			require.ErrorAs(t, err, &bad, name)
			require.Zero(t, out)
			require.False(t, idem.Retryable(err))
			_, err = k.db.Run(k.ctx, Settings{}, key, k.never())
			require.ErrorAs(t, err, &bad, name)
			_, err = k.db.Lookup(k.ctx, Settings{}, key)
			require.ErrorAs(t, err, &bad, name)
			require.ErrorAs(t, tx.Forget(k.ctx, Settings{}, key), &bad, name)
		}
		k.wantUsable(tx, "after")
		k.wantKeys(0)
	})

	t.Run("NothingInjected", func(t *testing.T) {
		k := open(t, door)
		for _, id := range []string{`'); DROP TABLE effects; --`, `\'; SELECT 1`, `$1`, `"`, "a\u2028b", "%s%d", "a\nb"} {
			key := idem.Scope{Source: id, Operation: id}.Key(id)
			out, err := k.db.Run(k.ctx, Settings{}, key, effect("a"))
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			n, err := k.db.Int(k.ctx, `SELECT count(*) FROM processed_events WHERE source = $1::text`, id)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		}
	})
}

func setup(t *testing.T, door Door) {
	fn := func(context.Context, Tx) error { return nil }

	t.Run("TableMissing", func(t *testing.T) {
		k := open(t, door)
		for _, name := range []string{"no_such_table", "no_such_schema.t"} {
			s := Settings{Table: dedup.Table{Name: name}}
			tx := k.begin("")
			_, err := tx.Do(k.ctx, s, scope.Key("evt_1"), fn)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, "dedup.Migrate")
			require.False(t, idem.Retryable(err))
			k.wantFailed(tx)
			_, err = k.db.Run(k.ctx, s, scope.Key("evt_1"), fn)
			require.ErrorContains(t, err, "dedup.Migrate")
			_, err = k.db.Lookup(k.ctx, s, scope.Key("evt_1"))
			require.ErrorContains(t, err, "dedup.Migrate")
		}
	})

	// A statement that the driver has cached survives a column that is added.
	t.Run("ColumnAdded", func(t *testing.T) {
		k := open(t, door)
		for i, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
			out, err := k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), fn)
			require.NoError(t, err)
			require.Equal(t, want, out)
			_, err = k.db.Lookup(k.ctx, Settings{}, scope.Key("evt_1"))
			require.NoError(t, err)
			if i == 1 {
				k.exec(k.db, `ALTER TABLE processed_events ADD COLUMN note text`)
			}
		}
	})

	t.Run("ConstraintMissing", func(t *testing.T) {
		for name, add := range map[string]string{
			"dropped": ``,
			"deferrable": `ALTER TABLE processed_events ADD CONSTRAINT processed_events_pkey PRIMARY KEY (` + door.primary() +
				`) DEFERRABLE`,
			"more": `ALTER TABLE processed_events ADD CONSTRAINT processed_events_pkey PRIMARY KEY (` + door.primary() +
				`, processed_at)`,
		} {
			t.Run(name, func(t *testing.T) {
				k := open(t, door)
				k.exec(k.db, `ALTER TABLE processed_events DROP CONSTRAINT processed_events_pkey`)
				if add != "" {
					k.exec(k.db, add)
				}
				tx := k.begin("")
				_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
				require.ErrorContains(t, err, "dedup.Verify")
				require.NoError(t, tx.Rollback(k.ctx))
				_, err = k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
				require.ErrorContains(t, err, "processed_events")
				k.wantKeys(0)
			})
		}
	})

	// A row that can be neither inserted nor read: bounded tries, then an error; never a guess.
	t.Run("HiddenByTrigger", func(t *testing.T) {
		if door.Spread != "" {
			return // a cluster has no triggers
		}
		k := open(t, door)
		k.exec(k.db, `CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		k.exec(k.db, `CREATE TRIGGER t BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION drop_row()`)
		tx := k.begin("")
		out, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		require.ErrorContains(t, err, "dedup.Verify")
		require.Zero(t, out)
		k.wantUsable(tx, "after")
		out, err = k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		require.ErrorContains(t, err, "dedup.Verify")
		require.Zero(t, out)
		require.False(t, idem.Retryable(err))
	})

	// A key without a partition is a matter for an operator, and not a value that a CHECK of the user's refuses.
	t.Run("PartitionMissing", func(t *testing.T) {
		if door.Layout == dedup.Plain {
			return // it has none
		}
		k := open(t, door)
		k.exec(k.db, `
			DO $$
			DECLARE leaf regclass;
			BEGIN
			  FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'processed_events'::regclass LOOP
			    EXECUTE format('DROP TABLE %s', leaf);
			  END LOOP;
			END $$`)
		tx := k.begin("")
		_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		wantMissing := func(err error) {
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.ErrorContains(t, err, "processed_events")
			if door.Spread != "" {
				require.True(t, pgerr.Is(err, "23514"), "%v", err) // a cluster names a shard, which may be anybody's
				return
			}
			require.ErrorContains(t, err, "Maintain")
			require.NotContains(t, err.Error(), "evt_1")
			require.Empty(t, pgerr.Code(err))
			require.False(t, idem.Retryable(err))
		}
		wantMissing(err)
		k.wantFailed(tx)
		_, err = k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
		wantMissing(err)
		tx = k.begin("")
		_, err = tx.Do(k.ctx, Settings{MaxWait: patience}, scope.Key("evt_1"), k.never())
		wantMissing(err)
		require.NoError(t, tx.Rollback(k.ctx))
	})

	t.Run("BadTable", func(t *testing.T) {
		k := open(t, door)
		for _, table := range []dedup.Table{
			{Name: "a.b.c"},
			{Name: ".a"},
			{Name: `"a`},
			{Name: strings.Repeat("t", 64)},
			{Name: "a\x00"},
			{Layout: 99},
			{Retention: -1},
		} {
			tx := k.begin("")
			_, err := tx.Do(k.ctx, Settings{Table: table}, scope.Key("evt_1"), k.never())
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageTable, own.Stage)
			k.exec(tx, `SELECT 1`)
			require.NoError(t, tx.Rollback(k.ctx))
		}
	})
}
