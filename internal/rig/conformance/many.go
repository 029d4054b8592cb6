package conformance

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// leave returns an fn of a batch that leaves a row in effects for each new key.
func leave(what string) func(context.Context, Tx, []int) error {
	return func(ctx context.Context, tx Tx, fresh []int) error {
		for range fresh {
			if err := effect(what)(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}
}

// batch claims keys in a transaction of its own, and returns the answers as words.
func (k kit) batch(what string, keys ...idem.Key) []string {
	k.Helper()
	tx := k.begin("")
	all, err := tx.DoMany(k.ctx, Settings{}, keys, leave(what))
	require.NoError(k, err)
	require.NoError(k, tx.Commit(k.ctx))
	return words(all)
}

// manyOf makes an fn of a batch of one of a single call.
func manyOf(fn func(context.Context, Tx) error) func(context.Context, Tx, []int) error {
	return func(ctx context.Context, tx Tx, _ []int) error { return fn(ctx, tx) }
}

func (k kit) neverMany() func(context.Context, Tx, []int) error { return manyOf(k.never()) }

func words(all []idem.Result) []string {
	said := make([]string, len(all))
	for i, r := range all {
		said[i] = r.Outcome.String()
		if r.Err != nil {
			said[i] = "error"
		}
	}
	return said
}

func ids(n int, of string) []idem.Key {
	all := make([]idem.Key, n)
	for i := range all {
		all[i] = scope.Key(fmt.Sprint(of, i))
	}
	return all
}

func many(t *testing.T, door Door) {
	t.Run("Outcomes", func(t *testing.T) {
		k := open(t, door)
		old := idem.Scope{Source: "shop", Operation: "ship"}.Key("old").WithPayload([]byte("a"))
		k.once(old, idem.Executed)
		held := k.reserve("held")
		refused := k.reserve("refused")
		require.NoError(t, k.db.Move(k.ctx, refused, Move{Name: "fail", Value: []byte("why")}))
		payload := scope.Key("b").WithPayload([]byte("1"))

		keys := []idem.Key{
			scope.Key("z"), old,
			{},
			scope.Key("a"), scope.Key("z"), scope.Key("held"), scope.Key("refused"),
			old.WithPayload([]byte("b")), scope.Key("late").OccurredAt(time.Unix(1, 0)),
			scope.Key("early").OccurredAt(time.Now().Add(48 * time.Hour)), scope.Key("timed").OccurredAt(time.Now()),
			payload, payload.WithPayload([]byte("2")), payload,
		}
		tx := k.begin("")
		var fresh []int
		all, err := tx.DoMany(k.ctx, Settings{}, keys, func(ctx context.Context, tx Tx, places []int) error {
			fresh = places
			return leave("a")(ctx, tx, places)
		})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(k.ctx))
		require.Equal(t, []string{
			"executed", "duplicate", "error", "executed", "duplicate", "error", "error",
			"error", "error", "error", "executed", "executed", "error", "duplicate",
		}, words(all))
		require.Equal(t, []int{0, 3, 10, 11}, fresh)
		k.wantEffects("a", 4)
		var bad *idem.KeyError
		require.ErrorAs(t, all[2].Err, &bad)
		require.ErrorIs(t, all[5].Err, idem.ErrInProgress)
		var final *idem.FinalError
		require.ErrorAs(t, all[6].Err, &final)
		require.Equal(t, "why", string(final.Value))
		require.ErrorIs(t, all[7].Err, idem.ErrPayloadMismatch)
		require.ErrorIs(t, all[8].Err, idem.ErrExpired)
		require.ErrorIs(t, all[9].Err, idem.ErrFuture)
		require.ErrorIs(t, all[12].Err, idem.ErrPayloadMismatch)

		require.NoError(t, k.confirm(held, "held"))
		require.Equal(t, []string{"duplicate", "duplicate"}, k.batch("never", scope.Key("held"), scope.Key("a")))
		k.wantEffects("never", 0)
	})

	// Of a key that is in the batch twice the later one is answered as a call behind the first would be.
	t.Run("Repeated", func(t *testing.T) {
		k := open(t, door)
		old, a := scope.Key("old").WithPayload([]byte("a")), scope.Key("a")
		k.once(old, idem.Executed)
		bare, other := scope.Key("old"), old.WithPayload([]byte("b"))
		past, future := a.OccurredAt(time.Unix(1, 0)), a.OccurredAt(time.Now().Add(48*time.Hour))
		soon := a.OccurredAt(time.Now())
		for _, c := range []struct {
			keys []idem.Key
			said []string
		}{
			{[]idem.Key{bare, other, old}, []string{"duplicate", "error", "duplicate"}},
			{[]idem.Key{other, old, bare, other}, []string{"error", "duplicate", "duplicate", "error"}},
			{[]idem.Key{past, past, future, past}, []string{"error", "error", "error", "error"}},
			{
				[]idem.Key{past, future, soon, past, bare, soon},
				[]string{"error", "error", "executed", "", "duplicate", "duplicate"},
			},
		} {
			said := k.batch("a", c.keys...)
			if len(c.said) > 3 && c.said[3] == "" {
				c.said[3] = "duplicate"
				if door.Layout == dedup.Weekly {
					c.said[3] = "error" // the past is another row there
				}
			}
			require.Equal(t, c.said, said)
		}
		k.wantEffects("a", 1)
	})

	t.Run("Nothing", func(t *testing.T) {
		k := open(t, door)
		require.Empty(t, k.batch("never"))
		require.Equal(t, []string{"error"}, k.batch("never", idem.Key{}))
		k.wantKeys(0)
	})

	t.Run("AwkwardKeys", func(t *testing.T) {
		k := open(t, door)
		var keys []idem.Key
		for _, id := range []string{
			`"`, `\`, `\"`, `,`, `{}`, `{`, "NULL", "null", " a", "é", "a\nb", "a/b", `\x00`, "'",
			"$1", "🙂",
		} {
			keys = append(keys, scope.Key(id), idem.Scope{Source: "s" + id, Operation: id + "o"}.Key("1"))
		}
		for _, want := range []string{"executed", "duplicate"} {
			for _, said := range k.batch("a", keys...) {
				require.Equal(t, want, said)
			}
		}
		k.wantEffects("a", len(keys))
		for _, key := range keys { // the same rows as those of single calls
			k.once(key, idem.Duplicate)
		}
	})

	t.Run("FnFails", func(t *testing.T) {
		for name, fn := range map[string]func(context.Context, Tx, []int) error{
			"returns an error": func(ctx context.Context, tx Tx, fresh []int) error {
				_ = leave("a")(ctx, tx, fresh)
				return errBusiness
			},
			"panics": func(context.Context, Tx, []int) error { panic(1) },
			"swallows an SQL error": func(ctx context.Context, tx Tx, _ []int) error {
				_ = tx.Exec(ctx, `SELECT * FROM no_such_table`)
				return nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				k := open(t, door)
				tx := k.begin("")
				k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
				failed := func(tx Tx) {
					protect(func() {
						all, err := tx.DoMany(k.ctx, Settings{}, ids(3, "evt"), fn)
						require.Error(t, err)
						require.Nil(t, all)
					})
				}
				require.Error(t, tx.Nested(k.ctx, func(tx Tx) error {
					failed(tx)
					require.Error(t, tx.Exec(k.ctx, `SELECT 1`), "the transaction has failed")
					return errBusiness
				}))
				require.NoError(t, tx.Commit(k.ctx))
				k.wantEffects("before", 1)
				k.wantEffects("a", 0)
				k.wantKeys(0)
			})
		}
	})

	t.Run("Nested", func(t *testing.T) {
		k := open(t, door)
		k.once(scope.Key("old"), idem.Executed)
		tx := k.begin("")
		_, err := tx.DoMany(k.ctx, Settings{}, append(ids(3, "evt"), scope.Key("old")),
			func(ctx context.Context, tx Tx, _ []int) error {
				old, err := tx.Do(ctx, Settings{}, scope.Key("old"), k.never())
				require.NoError(t, err, "it is not new")
				require.Equal(t, idem.Duplicate, old)
				out, err := tx.Do(ctx, Settings{}, scope.Key("other"), effect("a"))
				require.NoError(t, err)
				require.Equal(t, idem.Executed, out)
				_, err = tx.DoMany(ctx, Settings{}, []idem.Key{scope.Key("another"), scope.Key("evt1")}, leave("a"))
				require.ErrorIs(t, err, idem.ErrNested)
				return nil
			})
		require.ErrorIs(t, err, idem.ErrNested)
		k.wantFailed(tx)
	})

	// Two batches that share keys wait for each other, and never both at once.
	t.Run("OppositeOrder", func(t *testing.T) {
		k := open(t, door)
		const rounds = 20 // TestBatchesInOppositeOrder has more
		for round := range rounds {
			keys := ids(20, fmt.Sprint("r", round, "_"))
			turned := slices.Clone(keys)
			slices.Reverse(turned)
			batches := make(chan []idem.Key, 2)
			batches <- keys
			batches <- turned
			executed, duplicate, errs := crowd(2, func() (idem.Outcome, error) {
				tx := k.begin("")
				all, err := tx.DoMany(k.ctx, Settings{}, <-batches, leave("a"))
				if err != nil {
					return 0, err
				}
				for _, r := range all {
					if r != all[0] {
						return 0, fmt.Errorf("parts of a batch: %v", words(all))
					}
				}
				return all[0].Outcome, tx.Commit(k.ctx)
			})
			require.Empty(t, errs, "round %d", round)
			require.Equal(t, []int{1, 1}, []int{executed, duplicate})
		}
		k.wantEffects("a", 20*rounds)
	})

	// Both have begun, and wait for a third that holds a key in the middle: in the callers' order each would hold then
	// what the other one wants.
	t.Run("OppositeOrderBehindAnother", func(t *testing.T) {
		k := open(t, door)
		rival := k.begin("")
		_, err := rival.Do(k.ctx, Settings{}, scope.Key("m"), effect("rival"))
		require.NoError(t, err)
		keys := []idem.Key{scope.Key("b"), scope.Key("m"), scope.Key("z")}
		turned := []idem.Key{keys[2], keys[1], keys[0]}
		answers := make(chan error, 2)
		for _, keys := range [][]idem.Key{keys, turned} {
			tx := k.begin("")
			go func() {
				_, err := tx.DoMany(k.ctx, Settings{}, keys, leave("a"))
				if err == nil {
					err = tx.Commit(k.ctx)
				}
				answers <- err
			}()
		}
		k.untilBlocked(2)
		require.NoError(t, rival.Rollback(k.ctx))
		require.NoError(t, <-answers)
		require.NoError(t, <-answers)
		k.wantEffects("a", 3)
	})

	t.Run("HeldByAnother", func(t *testing.T) {
		k := open(t, door)
		rival := k.begin("")
		_, err := rival.Do(k.ctx, Settings{}, scope.Key("evt3"), effect("rival"))
		require.NoError(t, err)
		tx := k.begin("")
		k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
		all, err := tx.DoMany(k.ctx, Settings{MaxWait: 50 * time.Millisecond}, ids(5, "evt"), leave("a"))
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.Nil(t, all)
		k.wantUsable(tx, "after")
		k.wantKeys(0)
		require.NoError(t, rival.Rollback(k.ctx))

		tx = k.begin("")
		all, err = tx.DoMany(k.ctx, Settings{MaxWait: time.Minute}, ids(5, "evt"), leave("a"))
		require.NoError(t, err)
		require.Len(t, all, 5)
		require.NoError(t, tx.Commit(k.ctx))
		k.wantEffects("a", 5)
	})

	// At the higher levels a rival that has committed since the snapshot is a serialization failure, as for Do.
	t.Run("AfterTheSnapshot", func(t *testing.T) {
		k := open(t, door)
		for _, level := range levels[1:] {
			if door.Spread != "" {
				continue // a cluster has no snapshot of all its nodes: there the rival's key is a duplicate
			}
			tx := k.begin(level)
			k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
			k.once(scope.Key(level), idem.Executed)
			_, err := tx.DoMany(k.ctx, Settings{}, []idem.Key{scope.Key("new" + level), scope.Key(level)}, leave("a"))
			require.True(t, pgerr.Is(err, "40001"), "%s: %v", level, err)
			require.True(t, idem.Retryable(err))
			k.wantFailed(tx)
		}
	})

	t.Run("Observed", func(t *testing.T) {
		k := open(t, door)
		rec := &recorder{}
		tx := k.begin("")
		_, err := tx.DoMany(k.ctx, Settings{Observer: rec}, []idem.Key{scope.Key("a"), scope.Key("a"), {}}, leave("a"))
		require.NoError(t, err)
		require.Len(t, rec.events, 2)
		require.Equal(t, dedup.Executed, rec.events[0].Outcome)
		require.Equal(t, dedup.Duplicate, rec.events[1].Outcome)
		_, err = tx.DoMany(k.ctx, Settings{Observer: rec}, ids(2, "b"),
			func(context.Context, Tx, []int) error { return errBusiness })
		require.Error(t, err)
		require.Len(t, rec.events, 4)
		require.Equal(t, dedup.Failed, rec.events[3].Outcome)
		require.Equal(t, err, rec.events[3].Err)
	})

	t.Run("Large", func(t *testing.T) {
		k := open(t, door)
		const n = 2_000
		keys := ids(n, "evt")
		tx := k.begin("")
		all, err := tx.DoMany(k.ctx, Settings{}, keys, func(_ context.Context, _ Tx, fresh []int) error {
			require.Len(t, fresh, n)
			return nil
		})
		require.NoError(t, err)
		require.Len(t, all, n)
		require.NoError(t, tx.Commit(k.ctx))
		k.wantKeys(n)
		for _, said := range k.batch("never", keys...) {
			require.Equal(t, "duplicate", said)
		}
	})

	t.Run("Setup", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		all, err := tx.DoMany(k.ctx, Settings{Table: dedup.Table{Name: "no_such_table"}}, ids(1, "a"), leave("a"))
		require.ErrorContains(t, err, "dedup.Migrate")
		require.Nil(t, all)
		k.wantFailed(tx)
		_, err = k.begin("").DoMany(k.ctx, Settings{Table: dedup.Table{Name: "a.b.c"}}, ids(1, "a"), leave("a"))
		var own *idem.Error
		require.ErrorAs(t, err, &own)
		require.Equal(t, idem.StageTable, own.Stage)
	})
}
