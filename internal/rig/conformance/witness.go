package conformance

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// elsewhere makes a schema with a table of the same name, and returns what leads the transaction's search path to it.
func (k kit) elsewhere(door Door) string {
	k.Helper()
	ddl := "DROP SCHEMA IF EXISTS elsewhere CASCADE;\nCREATE SCHEMA elsewhere;\n" + door.ddl("elsewhere.processed_events")
	for _, stmt := range strings.SplitAfter(ddl, ";\n") {
		k.exec(k.db, stmt)
	}
	k.exec(k.db, `
		INSERT INTO elsewhere.processed_events (source, operation, key, value)
		VALUES ('stripe', 'activate', 'evt_1', 'theirs')`)
	return `SET LOCAL search_path = elsewhere, public`
}

// witness holds what the row's own token shows: that the row which a call has claimed is there, and is the one meant.
func witness(t *testing.T, door Door) {
	key := scope.Key("evt_1")
	wantStage := func(k kit, err error, stages ...idem.Stage) {
		k.Helper()
		var own *idem.Error
		require.ErrorAs(k, err, &own)
		require.Contains(k, stages, own.Stage)
		require.False(k, idem.Retryable(err))
	}

	// fn leads the name of the table to another table, which holds the same key: the value is not stored there.
	t.Run("SearchPath", func(t *testing.T) {
		if door.OneTable {
			return
		}
		k := open(t, door)
		other := k.elsewhere(door)
		give := func(ctx context.Context, tx Tx) (Receipt, error) {
			require.NoError(t, tx.Exec(ctx, other))
			return Receipt{"ours", 1}, effect("a")(ctx, tx)
		}
		for _, own := range []bool{false, true} {
			var err error
			if own {
				_, _, err = k.db.RunReturning(k.ctx, Settings{}, key, give)
			} else {
				tx := k.begin("")
				_, _, err = tx.DoReturning(k.ctx, Settings{}, key, give)
				k.wantFailed(tx)
			}
			wantStage(k, err, "store")
			require.ErrorContains(t, err, "search path")
		}
		k.wantKeys(0)
		k.wantEffects("a", 0)
		n, err := k.db.Int(k.ctx, `SELECT count(*) FROM elsewhere.processed_events WHERE value = 'theirs'`)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)

		// What stores nothing afterwards has nothing to write astray.
		tx := k.begin("")
		walk := func(ctx context.Context, tx Tx) error {
			require.NoError(t, tx.Exec(ctx, other))
			return effect("b")(ctx, tx)
		}
		out, err := tx.Do(k.ctx, Settings{}, key, walk)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.NoError(t, tx.Commit(k.ctx))
		out, err = k.db.Run(k.ctx, Settings{}, scope.Key("evt_2"), walk)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		k.wantKeys(2)
		k.wantEffects("b", 2)
	})

	// A reservation's moves find no row where the name leads now, and say so.
	t.Run("SearchPathOfMoves", func(t *testing.T) {
		if door.OneTable {
			return
		}
		k := open(t, door)
		other := k.elsewhere(door)
		held, _, err := k.db.Reserve(k.ctx, Settings{}, scope.Key("evt_2"), time.Hour)
		require.NoError(t, err)
		moves := []Move{
			{Name: "confirm"},
			{Name: "fail"},
			{Name: "extend", Lease: time.Hour},
			{Name: "release"},
			{Name: "void"},
		}
		move := func(tx Tx, m Move) error {
			if m.Name == "confirm" {
				return tx.Confirm(k.ctx, held, nil)
			}
			return tx.Move(k.ctx, held, m)
		}
		for _, m := range moves {
			tx := k.begin("")
			k.exec(tx, other)
			err := move(tx, m)
			require.ErrorIs(t, err, idem.ErrLostLease, m.Name)
			require.ErrorContains(t, err, "search path", m.Name)
			require.NoError(t, tx.Rollback(k.ctx))
		}
		// A row that is there, at another attempt, has another reason.
		k.exec(k.db, `UPDATE processed_events SET attempt = attempt + 1`)
		for _, m := range moves {
			tx := k.begin("")
			err := move(tx, m)
			require.ErrorIs(t, err, idem.ErrLostLease, m.Name)
			require.NotContains(t, err.Error(), "search path", m.Name)
			require.NoError(t, tx.Rollback(k.ctx))
		}
	})

	// fn rolls back to a savepoint that is older than the claim, which takes the key, and goes on.
	t.Run("SavepointBeforeTheClaim", func(t *testing.T) {
		k := open(t, door)
		back := func(ctx context.Context, tx Tx) error {
			require.NoError(t, tx.Exec(ctx, `ROLLBACK TO SAVEPOINT before`))
			return effect("a")(ctx, tx)
		}
		for _, earlier := range []bool{false, true} { // a claim of this transaction
			tx := k.begin("")
			if earlier {
				_, err := tx.Do(k.ctx, Settings{}, scope.Key("earlier"), effect("earlier"))
				require.NoError(t, err)
			}
			k.exec(tx, `SAVEPOINT before`)
			_, _, err := tx.DoReturning(k.ctx, Settings{}, key, func(ctx context.Context, tx Tx) (Receipt, error) {
				return Receipt{}, back(ctx, tx)
			})
			wantStage(k, err, "store", "fn")
			k.wantFailed(tx)
			if !door.Features.AsksServer {
				continue // Do cannot see it, and its doc comment says so
			}
			tx = k.begin("")
			if earlier {
				_, err := tx.Do(k.ctx, Settings{}, scope.Key("earlier"), effect("earlier"))
				require.NoError(t, err)
			}
			k.exec(tx, `SAVEPOINT before`)
			_, err = tx.Do(k.ctx, Settings{}, key, back)
			wantStage(k, err, "fn")
			k.wantFailed(tx)
		}
		k.wantKeys(0)
		k.wantEffects("a", 0)

		// A younger savepoint, or one of an outer call, is nobody's business.
		tx := k.begin("")
		out, err := tx.Do(k.ctx, Settings{}, key, func(ctx context.Context, tx Tx) error {
			require.NoError(t, tx.Exec(ctx, `SAVEPOINT inside`))
			_, err := tx.Do(ctx, Settings{}, scope.Key("inner"), effect("inner"))
			require.NoError(t, err)
			require.NoError(t, tx.Exec(ctx, `ROLLBACK TO SAVEPOINT inside`))
			out, err := tx.Do(ctx, Settings{}, scope.Key("evt_2"), effect("a"))
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			return effect("a")(ctx, tx)
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		require.NoError(t, tx.Commit(k.ctx))
		k.wantKeys(2)
		k.wantEffects("a", 2)
	})

	// fn ends the transaction in SQL text and begins another one, in which its effect would be without the key.
	t.Run("AnotherTransaction", func(t *testing.T) {
		k := open(t, door)
		for _, text := range []string{"ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"} {
			fn := func(ctx context.Context, tx Tx) error {
				require.NoError(t, tx.Exec(ctx, text))
				return effect("a")(ctx, tx)
			}
			_, _, err := k.db.RunReturning(k.ctx, Settings{}, key, func(ctx context.Context, tx Tx) (Receipt, error) {
				return Receipt{}, fn(ctx, tx)
			})
			wantStage(k, err, "store", "fn")
			if door.Features.AsksServer {
				_, err = k.db.Run(k.ctx, Settings{}, key, fn)
				wantStage(k, err, "fn")
			}
		}
		k.wantKeys(0)
		k.wantEffects("a", 0)
	})

	// A table of an older version: no claim can be made, and the error says what makes one possible.
	t.Run("OldTable", func(t *testing.T) {
		k := open(t, door)
		k.exec(k.db, `ALTER TABLE processed_events DROP COLUMN token`)
		_, err := k.db.Run(k.ctx, Settings{}, key, k.never())
		_, _, reserved := k.db.Reserve(k.ctx, Settings{}, key, time.Hour)
		tx := k.begin("")
		_, done := tx.Do(k.ctx, Settings{}, key, k.never())
		for _, err := range []error{err, reserved, done} {
			require.True(t, pgerr.Is(err, "42703"), "%v", err)
			require.ErrorContains(t, err, "dedup.Migrate")
		}
	})
}
