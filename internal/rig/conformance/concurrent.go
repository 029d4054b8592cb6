package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// crowd runs n calls at once and counts their answers.
func crowd(n int, call func() (idem.Outcome, error)) (executed, duplicate int, errs []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for range n {
		wg.Go(func() {
			<-gate
			out, err := call()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
			case out == idem.Executed:
				executed++
			case out == idem.Duplicate:
				duplicate++
			}
		})
	}
	close(gate)
	wg.Wait()
	return executed, duplicate, errs
}

func concurrent(t *testing.T, door Door) {
	const many = 64

	t.Run("RunOneKey", func(t *testing.T) {
		for _, level := range levels {
			t.Run(level, func(t *testing.T) {
				k := open(t, door)
				executed, duplicate, errs := crowd(many, func() (idem.Outcome, error) {
					return k.db.Run(k.ctx, Settings{Level: level, Tries: 100}, scope.Key("evt_1"), effect("a"))
				})
				require.Empty(t, errs)
				require.Equal(t, 1, executed)
				require.Equal(t, many-1, duplicate)
				k.wantEffects("a", 1)
			})
		}
	})

	// The first holders roll back: the effect is still there once.
	t.Run("RunOneKeyFirstRollBack", func(t *testing.T) {
		k := open(t, door)
		var mu sync.Mutex
		failures := 5
		executed, duplicate, errs := crowd(many, func() (idem.Outcome, error) {
			return k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				if err := effect("a")(ctx, tx); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				if failures > 0 {
					failures--
					return errBusiness
				}
				return nil
			})
		})
		require.Len(t, errs, 5)
		for _, err := range errs {
			require.Same(t, errBusiness, err)
		}
		require.Equal(t, 1, executed)
		require.Equal(t, many-6, duplicate)
		k.wantEffects("a", 1)
	})

	// In the callers' own transactions: each level waits for the holder and gives the answer that the level allows.
	for _, level := range levels {
		for _, end := range []string{"commits", "rolls back"} {
			t.Run("DoWaits/"+level+"/holder "+end, func(t *testing.T) {
				k := open(t, door)
				holder := k.begin("")
				_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)

				second := k.begin(level)
				k.exec(second, `SELECT 1 FROM effects`) // the snapshot, before the holder's end
				waiting := async(func() (idem.Outcome, error) {
					return second.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				})
				k.untilBlocked(1)
				if end == "commits" {
					require.NoError(t, holder.Commit(k.ctx))
				} else {
					require.NoError(t, holder.Rollback(k.ctx))
				}
				got := k.await(waiting)
				switch {
				case end == "rolls back":
					require.NoError(t, got.err)
					require.Equal(t, idem.Executed, got.out)
					require.NoError(t, second.Commit(k.ctx))
				case level == "read committed":
					require.NoError(t, got.err)
					require.Equal(t, idem.Duplicate, got.out)
					k.wantUsable(second, "after")
				default:
					require.True(t, pgerr.Is(got.err, "40001"), "%v", got.err)
					require.True(t, idem.Retryable(got.err))
					k.wantFailed(second)
				}
				k.wantEffects("a", 1)
			})
		}
	}

	// The rival has committed before the call, but after the snapshot: an ordinary duplicate, and still 40001.
	t.Run("CommittedAfterSnapshot", func(t *testing.T) {
		for _, level := range levels[1:] {
			t.Run(level, func(t *testing.T) {
				k := open(t, door)
				tx := k.begin(level)
				k.exec(tx, `SELECT 1 FROM effects`)
				k.once(scope.Key("evt_1"), idem.Executed)
				_, err := tx.Do(k.ctx, Settings{}, scope.Key("evt_1"), k.never())
				require.True(t, pgerr.Is(err, "40001"), "%v", err)
				require.True(t, idem.Retryable(err))
				require.NoError(t, tx.Rollback(k.ctx))
			})
		}
	})

	// Different keys do not wait for each other, of whatever part they differ in.
	t.Run("OthersDoNotWait", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		for _, key := range []idem.Key{
			scope.Key("evt_2"),
			idem.Scope{Source: "paypal", Operation: "activate"}.Key("evt_1"),
			idem.Scope{Source: "stripe", Operation: "cancel"}.Key("evt_1"),
			scope.Key("tenant", "evt_1"),
		} {
			ctx, cancel := context.WithTimeout(k.ctx, 10*time.Second)
			out, err := k.db.Run(ctx, Settings{}, key, effect("b"))
			cancel()
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
		}
		require.NoError(t, holder.Rollback(k.ctx))
	})

	// Two keys in opposite order: one transaction is the deadlock's victim, and Run begins it anew.
	t.Run("Deadlock", func(t *testing.T) {
		k := open(t, door)
		var wg sync.WaitGroup
		first := make(chan struct{}, 2)
		both := make(chan struct{})
		go func() { <-first; <-first; close(both) }()
		for _, order := range [][2]string{{"x", "y"}, {"y", "x"}} {
			wg.Go(func() {
				met := false
				out, err := k.db.Run(k.ctx, Settings{}, scope.Key("deadlock", order[0], order[1]),
					func(ctx context.Context, tx Tx) error {
						for i, id := range order {
							if _, err := tx.Do(ctx, Settings{}, scope.Key(id), effect(id)); err != nil {
								return err
							}
							if i == 0 && !met {
								met = true
								first <- struct{}{}
								<-both
							}
						}
						return nil
					})
				if err != nil || out != idem.Executed {
					k.Errorf("%v, %v", out, err)
				}
			})
		}
		wg.Wait()
		k.wantEffects("x", 1)
		k.wantEffects("y", 1)
	})
}

func waiting(t *testing.T, door Door) {
	const wait = 100 * time.Millisecond

	t.Run("InProgressLeavesTransactionUsable", func(t *testing.T) {
		for _, level := range levels {
			t.Run(level, func(t *testing.T) {
				k := open(t, door)
				holder := k.begin("")
				_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)

				tx := k.begin(level)
				k.exec(tx, `SET LOCAL statement_timeout = '17s'`)
				k.exec(tx, `INSERT INTO effects (what) VALUES ('before')`)
				begun := time.Now()
				out, err := tx.Do(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_1"), k.never())
				require.ErrorIs(t, err, idem.ErrInProgress)
				require.Zero(t, out)
				require.True(t, idem.Retryable(err))
				require.GreaterOrEqual(t, time.Since(begun), wait)

				n, err := tx.Int(k.ctx, `SELECT (current_setting('statement_timeout') = '17s')::int`)
				require.NoError(t, err)
				require.EqualValues(t, 1, n, "the caller's own timeout is unchanged")
				k.wantUsable(tx, "after")
				k.wantEffects("before", 1)
				require.NoError(t, holder.Rollback(k.ctx))
			})
		}
	})

	t.Run("TimeoutsUnchangedOnEveryOutcome", func(t *testing.T) {
		k := open(t, door)
		tx := k.begin("")
		k.exec(tx, `SET LOCAL statement_timeout = '17s'`)
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := tx.Do(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_1"), func(ctx context.Context, tx Tx) error {
				n, err := tx.Int(ctx, `SELECT (current_setting('statement_timeout') = '17s')::int`)
				require.EqualValues(t, 1, n, "in fn")
				return err
			})
			require.NoError(t, err)
			require.Equal(t, want, out)
			n, err := tx.Int(k.ctx, `SELECT (current_setting('statement_timeout') = '17s')::int`)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		}
		require.NoError(t, tx.Commit(k.ctx))
		out, err := k.db.Run(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_2"), func(ctx context.Context, tx Tx) error {
			n, err := tx.Int(ctx, `SELECT (current_setting('statement_timeout') = '0')::int`)
			require.EqualValues(t, 1, n, "in fn of Run")
			return err
		})
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
	})

	// A smaller limit of the caller's stays in force, and its end is not taken for ErrInProgress.
	t.Run("SmallerLimitOfTheCaller", func(t *testing.T) {
		for _, limit := range []string{"statement_timeout", "lock_timeout"} {
			t.Run(limit, func(t *testing.T) {
				if door.Spread != "" && limit == "lock_timeout" {
					return // it does not reach the node that waits
				}
				k := open(t, door)
				holder := k.begin("")
				_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)
				tx := k.begin("")
				k.exec(tx, `SET LOCAL `+limit+` = '50ms'`)
				_, err = tx.Do(k.ctx, Settings{MaxWait: 20 * time.Second}, scope.Key("evt_1"), k.never())
				require.NotErrorIs(t, err, idem.ErrInProgress)
				require.Contains(t, []string{"57014", "55P03"}, pgerr.Code(err))
				require.NoError(t, tx.Rollback(k.ctx))
				require.NoError(t, holder.Rollback(k.ctx))
			})
		}
	})

	// The limit is for all holders together: of a row of them that give up, each would renew a lock_timeout.
	t.Run("ManyHolders", func(t *testing.T) {
		k := open(t, door)
		key := scope.Key("evt_1")
		var stop sync.WaitGroup
		ctx, cancel := context.WithCancel(k.ctx)
		for range 4 {
			stop.Go(func() {
				for ctx.Err() == nil {
					_, err := k.db.Run(k.ctx, Settings{}, key, func(context.Context, Tx) error {
						time.Sleep(20 * time.Millisecond) // the holder's work, not a wait of the test's
						return errBusiness
					})
					if !errors.Is(err, errBusiness) {
						k.Error(err)
					}
				}
			})
		}
		for range 5 {
			tx := k.begin("")
			begun := time.Now()
			_, err := tx.Do(k.ctx, Settings{MaxWait: 150 * time.Millisecond}, key,
				func(context.Context, Tx) error { return errBusiness })
			took := time.Since(begun)
			if !errors.Is(err, errBusiness) {
				require.ErrorIs(t, err, idem.ErrInProgress)
			}
			require.Less(t, took, time.Second)
			require.NoError(t, tx.Rollback(k.ctx))
		}
		cancel()
		stop.Wait()
	})

	t.Run("Run", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		begun := time.Now()
		_, err = k.db.Run(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_1"), k.never())
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.GreaterOrEqual(t, time.Since(begun), wait)
		require.Less(t, time.Since(begun), 5*time.Second)
		require.NoError(t, holder.Commit(k.ctx))
		out, err := k.db.Run(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_1"), k.never())
		require.NoError(t, err)
		require.Equal(t, idem.Duplicate, out)
	})

	// Longer than a limit of the server's can be.
	t.Run("Longest", func(t *testing.T) {
		k := open(t, door)
		for i, wait := range []time.Duration{math.MaxInt32 * time.Millisecond, 30 * 24 * time.Hour, math.MaxInt64} {
			s := Settings{MaxWait: wait}
			out, err := k.db.Run(k.ctx, s, scope.Key(fmt.Sprint("run ", i)), effect("a"))
			require.NoError(t, err, "%v", wait)
			require.Equal(t, idem.Executed, out)
			tx := k.begin("")
			out, err = tx.Do(k.ctx, s, scope.Key(fmt.Sprint("do ", i)), effect("b"))
			require.NoError(t, err, "%v", wait)
			require.Equal(t, idem.Executed, out)
			require.NoError(t, tx.Commit(k.ctx))
		}
	})

	// A cancel request ends the claim with its own error; it's not the end of the wait.
	t.Run("CancelRequest", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		call := async(func() (idem.Outcome, error) {
			return k.db.Run(k.ctx, Settings{MaxWait: 20 * time.Second}, scope.Key("evt_1"), k.never())
		})
		k.untilBlocked(1)
		_, err = k.db.Int(k.ctx, k.onNodes(`
			SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
			 WHERE datname = current_database() AND wait_event_type = 'Lock'`))
		require.NoError(t, err)
		got := k.await(call)
		require.True(t, pgerr.Is(got.err, "57014"), "%v", got.err)
		require.NotErrorIs(t, got.err, idem.ErrInProgress)
		require.NoError(t, holder.Rollback(k.ctx))
	})
}
