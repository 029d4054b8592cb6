package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/pgerr"
)

const lockTable = `LOCK TABLE processed_events IN ACCESS EXCLUSIVE MODE`

const lockPartitions = `
DO $$
DECLARE part regclass;
BEGIN
  FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'processed_events'::regclass LOOP
    EXECUTE 'LOCK TABLE ' || part || ' IN ACCESS EXCLUSIVE MODE';
  END LOOP;
END $$`

// slowed has a server that takes so many seconds for each key.
func slowed(seconds string) string {
	return `
DO $$ BEGIN
  CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(` + seconds + `); RETURN NEW; END';
  CREATE TRIGGER slow BEFORE INSERT ON processed_events FOR EACH ROW EXECUTE FUNCTION slow();
END $$`
}

// slow has MaxWait end for each reason that there is. ErrInProgress is the answer where somebody holds the key, and
// nowhere else: of a key that nobody holds it would never become true.
func slow(t *testing.T, door Door) {
	const wait = 40 * time.Millisecond
	const limits = `SELECT (current_setting('statement_timeout') = '17s' AND current_setting('lock_timeout') = '18s')::int`
	for _, c := range []struct {
		name  string
		setUp string // by somebody, and committed
		hold  string // in somebody's transaction; "key": it holds the key
		code  string // of the error
		left  bool   // for tables with partitions
	}{
		{"held", "", "key", "", false},
		{"slow", slowed("0.2"), "", "", false},
		{"too slow", slowed("1.5"), "", pgerr.QueryCanceled, false},
		{"locked", "", lockTable, pgerr.LockNotAvailable, false},
		{"locked partition", "", lockPartitions, pgerr.LockNotAvailable, true},
	} {
		if door.Spread != "" && c.name != "held" && c.name != "locked" || // a cluster has no triggers
			c.left && door.Layout == dedup.Plain {
			continue
		}
		calls := map[string]func(k kit, tx Tx, key idem.Key) (idem.Outcome, error){
			"Do": func(k kit, tx Tx, key idem.Key) (idem.Outcome, error) {
				return tx.Do(k.ctx, Settings{MaxWait: wait}, key, effect("a"))
			},
			"Run": func(k kit, _ Tx, key idem.Key) (idem.Outcome, error) {
				return k.db.Run(k.ctx, Settings{MaxWait: wait}, key, func(ctx context.Context, tx Tx) error {
					n, err := tx.Int(ctx, `SELECT (current_setting('statement_timeout') = '0' AND current_setting('lock_timeout') = '0')::int`)
					require.EqualValues(k, 1, n)
					require.NoError(k, err)
					return effect("a")(ctx, tx)
				})
			},
			"Reserve": func(k kit, _ Tx, key idem.Key) (idem.Outcome, error) {
				_, out, err := k.db.Reserve(k.ctx, Settings{MaxWait: wait}, key, time.Hour)
				if err == nil && out == 0 {
					out = idem.Executed
				}
				return out, err
			},
		}
		for name, call := range calls {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				k := open(t, door)
				if c.setUp != "" {
					k.exec(k.db, c.setUp)
				}
				holder, tx := k.begin(""), k.begin("")
				k.exec(tx, `SET LOCAL statement_timeout = '17s'`)
				k.exec(tx, `SET LOCAL lock_timeout = '18s'`)
				if c.hold != "" {
					// What a driver prepares, it has prepared: that is no part of the wait.
					_ = tx.Nested(k.ctx, func(tx Tx) error {
						_, err := call(k, tx, scope.Key("before"))
						require.NoError(k, err)
						return errBusiness
					})
				}
				switch c.hold {
				case "":
				case "key":
					_, err := holder.Do(k.ctx, Settings{}, scope.Key("evt_1"), effect("b"))
					require.NoError(t, err)
				default:
					k.exec(holder, c.hold)
				}

				if door.Features.Describes && c.hold != "" && c.hold != "key" {
					// The question waits for the table, before any limit is sent.
					waits := async(func() (idem.Outcome, error) { return call(k, tx, scope.Key("evt_1")) })
					k.untilBlocked(1)
					require.NoError(t, holder.Rollback(k.ctx))
					require.Equal(t, answer{idem.Executed, nil}, k.await(waits))
					return
				}
				begun := time.Now()
				out, err := call(k, tx, scope.Key("evt_1"))
				took := time.Since(begun)
				require.GreaterOrEqual(t, took, wait)
				if c.name == "held" || c.code != "" {
					require.Error(t, err)
					require.Equal(t, c.name == "held", errors.Is(err, idem.ErrInProgress), "%v", err)
					if door.Spread != "" && c.name == "locked" {
						// The lock is waited for on each node, where no lock_timeout is.
						require.Contains(t, []string{c.code, pgerr.QueryCanceled}, pgerr.Code(err), "%v", err)
					} else {
						require.Equal(t, c.code, pgerr.Code(err), "%v", err)
					}
					if c.name == "locked" {
						require.ErrorContains(t, err, "was locked")
					}
					require.True(t, idem.Retryable(err), "%v", err)
					require.Zero(t, out)
				} else {
					require.NoError(t, err)
					require.Equal(t, idem.Executed, out)
				}
				require.NoError(t, holder.Rollback(k.ctx))
				if c.code != "" {
					return
				}
				n, err := tx.Int(k.ctx, limits)
				require.NoError(t, err)
				require.EqualValues(t, 1, n, "the caller's own limits are unchanged")
				k.wantUsable(tx, "after")
			})
		}
	}
}
