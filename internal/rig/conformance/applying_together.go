package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

// applyTogether holds what becomes of an Apply that is not alone.
func applyTogether(t *testing.T, door Door) {
	const many = 64

	t.Run("OneKey", func(t *testing.T) {
		for _, level := range levels {
			t.Run(level, func(t *testing.T) {
				k := open(t, door)
				executed, duplicate, errs := crowd(many, func() (idem.Outcome, error) {
					return k.db.Apply(k.ctx, Settings{Level: level, Tries: 100}, scope.Key("evt_1"), left("a")...)
				})
				require.Empty(t, errs)
				require.Equal(t, []int{1, many - 1}, []int{executed, duplicate})
				k.wantEffects("a", 1)
			})
		}
	})

	// One in four has an effect that fails, and one in four is a Run.
	t.Run("OneKeySomeFail", func(t *testing.T) {
		k := open(t, door)
		k.exec(k.db, `INSERT INTO business (id) VALUES ('x')`)
		var n atomic.Int32
		executed, duplicate, errs := crowd(many, func() (idem.Outcome, error) {
			switch n.Add(1) % 4 {
			case 0:
				return k.db.Run(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
			case 1:
				return k.apply(scope.Key("evt_1"), left("half", Effect{`INSERT INTO business (id) VALUES ('x')`, nil})...)
			}
			return k.apply(scope.Key("evt_1"), left("a")...)
		})
		for _, err := range errs {
			require.True(t, pgerr.Is(err, "23505"), "%v", err)
		}
		require.Equal(t, 1, executed)
		require.Equal(t, many-1-len(errs), duplicate)
		k.wantEffects("a", 1)
		k.wantEffects("half", 0)
	})

	for _, level := range levels {
		for _, end := range []string{"commits", "rolls back"} {
			t.Run("Waits/"+level+"/holder "+end, func(t *testing.T) {
				k := open(t, door)
				holder := k.begin("")
				_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
				require.NoError(t, err)
				waiting := async(func() (idem.Outcome, error) {
					return k.db.Apply(k.ctx, Settings{Level: level}, scope.Key("evt_1"), left("a")...)
				})
				k.untilBlocked(1)
				want := idem.Duplicate
				if end == "commits" {
					require.NoError(t, holder.Commit(k.ctx))
				} else {
					want = idem.Executed
					require.NoError(t, holder.Rollback(k.ctx))
				}
				require.Equal(t, answer{want, nil}, k.await(waiting))
				k.wantEffects("a", 1)
			})
		}
	}

	t.Run("MaxWait", func(t *testing.T) {
		const wait = 50 * time.Millisecond
		unlimited := Effect{`SELECT 1/(current_setting('statement_timeout') = '0' AND current_setting('lock_timeout') = '0')::int`, nil}
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		begun := time.Now()
		out, err := k.db.Apply(k.ctx, Settings{MaxWait: wait}, scope.Key("evt_1"), left("never", unlimited)...)
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.True(t, idem.Retryable(err))
		require.Zero(t, out)
		require.GreaterOrEqual(t, time.Since(begun), wait)
		require.NoError(t, holder.Commit(k.ctx))
		k.wantKeys(1)
		for key, want := range map[string]idem.Outcome{"evt_1": idem.Duplicate, "evt_2": idem.Executed} {
			out, err = k.db.Apply(k.ctx, Settings{MaxWait: time.Minute}, scope.Key(key), left(key, unlimited)...)
			require.NoError(t, err)
			require.Equal(t, want, out)
		}
		k.wantEffects("evt_2", 1)
		k.wantEffects("never", 0)

		// nobody holds the key of a server that is slow: the last look claims it, and has the effects done
		if door.Spread == "" {
			k.exec(k.db, slowed("0.2"))
			out, err = k.db.Apply(k.ctx, Settings{MaxWait: wait}, scope.Key("slow"), left("slow", unlimited)...)
			require.NoError(t, err)
			require.Equal(t, idem.Executed, out)
			k.wantEffects("slow", 1)
			_, err = k.db.Apply(k.ctx, Settings{MaxWait: wait}, scope.Key("slow2"),
				left("half", Effect{`SELECT 1/count(*) FROM business`, nil})...)
			require.True(t, pgerr.Is(err, "22012"), "%v", err)
			require.ErrorContains(t, err, "effect 1 of the batch")
			k.wantEffects("half", 0)
		}
	})

	t.Run("DoneContext", func(t *testing.T) {
		k := open(t, door)
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		_, err := k.db.Apply(ctx, Settings{}, scope.Key("evt_1"), left("a")...)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, pgerr.CommitUnknown(err))
		k.wantKeys(0)
	})

	// The server has the effects and may commit them: whether it did is open, and the next delivery finds out.
	t.Run("ContextDoneWhileWaiting", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("evt_1"))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(k.ctx)
		call := async(func() (idem.Outcome,
			error,
		) {
			return k.db.Apply(ctx, Settings{}, scope.Key("evt_1"), left("evt_1")...)
		})
		k.untilBlocked(1)
		cancel()
		got := k.await(call)
		require.ErrorIs(t, got.err, context.Canceled)
		// a cluster has been sent the claim alone
		require.Equal(t, door.Spread == "", pgerr.CommitUnknown(got.err), "%v", got.err)
		require.True(t, idem.Retryable(got.err))
		require.NoError(t, holder.Rollback(k.ctx))
		k.until("one of them has done it", func() bool {
			out, err := k.apply(scope.Key("evt_1"), left("evt_1")...)
			return err == nil && out != 0
		})
		k.wantEffects("evt_1", 1)
	})

	// The session is ended while the claim waits: it is made again.
	t.Run("BackendKilled", func(t *testing.T) {
		k := open(t, door)
		holder := k.begin("")
		_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("a"))
		require.NoError(t, err)
		call := async(func() (idem.Outcome, error) { return k.apply(scope.Key("evt_1"), left("a")...) })
		k.untilBlocked(1)
		_, err = k.db.Int(k.ctx, k.onNodes(`
			SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			 WHERE datname = current_database() AND wait_event_type = 'Lock'`))
		require.NoError(t, err)
		require.NoError(t, holder.Rollback(k.ctx))
		got := k.await(call)
		// There is no other connection on which to find out. On a cluster it may be a node's alone that was lost.
		if door.Features.OneConn && (door.Spread == "" || got.err != nil) {
			require.True(t, pgerr.CommitUnknown(got.err), "%v", got.err)
			require.True(t, idem.Retryable(got.err))
			got.out, got.err = k.apply(scope.Key("evt_1"), left("a")...)
		}
		require.Equal(t, answer{idem.Executed, nil}, got)
		k.wantEffects("a", 1)
	})

	t.Run("SerializationFailure", func(t *testing.T) {
		if door.Spread != "" {
			return // a trigger on a spread table fails on another node
		}
		k := open(t, door)
		k.exec(k.db, `
			DO $$ BEGIN
			  CREATE SEQUENCE tries;
			  CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
			    'BEGIN IF nextval(''tries'') < 4 THEN RAISE EXCEPTION ''no'' USING ERRCODE = ''40001''; END IF; RETURN NEW; END';
			  CREATE TRIGGER fails BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION fails();
			END $$`)
		out, err := k.apply(scope.Key("evt_1"), left("a")...)
		require.NoError(t, err)
		require.Equal(t, idem.Executed, out)
		k.exec(k.db, `ALTER SEQUENCE tries RESTART`)
		_, err = k.db.Apply(k.ctx, Settings{Tries: 2}, scope.Key("evt_2"), left("a")...)
		require.True(t, pgerr.Is(err, "40001"), "%v", err)
		require.True(t, idem.Retryable(err))
		k.wantEffects("a", 1)
		k.wantKeys(1)
	})

	// A claim that cannot be proven runs nothing: the row is dropped, renamed, or has another token.
	for name, body := range map[string]string{
		"drops": `RETURN NULL`, "renames": `NEW.key := NEW.key || ''x''; RETURN NEW`,
		"changes": `NEW.token := NULL; RETURN NEW`,
	} {
		t.Run("Trigger/"+name, func(t *testing.T) {
			if door.Spread != "" {
				return
			}
			k := open(t, door)
			k.exec(k.db, `
				DO $$ BEGIN
				  CREATE FUNCTION meddles() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN `+body+`; END';
				  CREATE TRIGGER meddles BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION meddles();
				END $$`)
			_, err := k.apply(scope.Key("evt_1"), left("a")...)
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			// The server itself refuses a row that would have to move to another partition.
			if !pgerr.Is(err, "0A000") || name != "renames" || door.Layout == dedup.Plain {
				require.ErrorContains(t, err, "dedup.Verify")
			}
			k.wantKeys(0)
			k.wantEffects("a", 0)
		})
	}

	t.Run("Observed", func(t *testing.T) {
		k := open(t, door)
		rec := &recorder{}
		for _, want := range []dedup.Outcome{dedup.Executed, dedup.Duplicate} {
			_, err := k.db.Apply(k.ctx, Settings{Observer: rec}, scope.Key("evt_1"), left("a")...)
			require.NoError(t, err)
			e := rec.last()
			require.Equal(t, want, e.Outcome)
			require.Equal(t, []string{"stripe", "activate", "processed_events"}, []string{e.Source, e.Operation, e.Table})
			require.Positive(t, e.Waited)
		}
		require.Len(t, rec.events, 2)
		_, err := k.db.Apply(k.ctx, Settings{Observer: rec, Table: dedup.Table{Name: "no_such_table"}}, scope.Key("evt_1"),
			left("a")...)
		require.Equal(t, err, rec.last().Err)
		require.EqualValues(t, idem.StageClaim, rec.last().Stage)
		require.Equal(t, "42P01", rec.last().Code)
		require.False(t, errors.Is(err, idem.ErrInProgress), fmt.Sprint(err))
	})
}
