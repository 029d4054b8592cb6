package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// kit is one test's database and what the tests say in one line.
type kit struct {
	*testing.T
	ctx context.Context
	db  DB

	door Door
}

// patience bounds everything that a test waits for.
const patience = 30 * time.Second

func open(t *testing.T, door Door) kit { return opened(t, door, true) }

// opened is open; keep is false for a test that leaves sessions behind which others cannot use.
func opened(t *testing.T, door Door, keep bool) kit {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	db := door.shelf.take(ctx, t)
	k := kit{t, ctx, db, door}
	t.Cleanup(func() {
		// Whatever a test did, nothing of it may still be open.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !k.db.Idle(ctx) {
			t.Error("a connection or a transaction is still open")
		}
		if keep && !t.Failed() {
			door.shelf.put(db)
		}
	})
	return k
}

// effect returns an fn that leaves a row in effects.
func effect(what string) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		return tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, what)
	}
}

// never returns an fn that must not be called.
func (k kit) never() func(context.Context, Tx) error {
	return func(context.Context, Tx) error {
		k.Error("fn was called")
		return nil
	}
}

func (k kit) begin(level string) Tx {
	k.Helper()
	tx, err := k.db.Begin(k.ctx, level)
	require.NoError(k, err)
	k.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = tx.Rollback(ctx)
	})
	return tx
}

func (k kit) exec(q Querier, sql string, args ...any) {
	k.Helper()
	require.NoError(k, q.Exec(k.ctx, sql, args...))
}

func (k kit) effects(what string) int64 {
	k.Helper()
	n, err := k.db.Int(k.ctx, `SELECT count(*) FROM effects WHERE what = $1`, what)
	require.NoError(k, err)
	return n
}

func (k kit) wantEffects(what string, n int) {
	k.Helper()
	require.EqualValues(k, n, k.effects(what), "effects of %s", what)
}

func (k kit) wantKeys(n int) {
	k.Helper()
	got, err := k.db.Int(k.ctx, `SELECT count(*) FROM processed_events`)
	require.NoError(k, err)
	require.EqualValues(k, n, got, "rows in processed_events")
}

// once runs key in a transaction that commits, and wants this outcome.
func (k kit) once(key idem.Key, want idem.Outcome) {
	k.Helper()
	tx := k.begin("")
	out, err := tx.Do(k.ctx, Settings{}, key, effect(key.ID()))
	require.NoError(k, err)
	require.Equal(k, want, out)
	require.NoError(k, tx.Commit(k.ctx))
}

// wantUsable writes to tx and commits it.
func (k kit) wantUsable(tx Tx, what string) {
	k.Helper()
	k.exec(tx, `INSERT INTO effects (what) VALUES ($1)`, what)
	require.NoError(k, tx.Commit(k.ctx))
	k.wantEffects(what, 1)
}

// wantFailed wants a transaction that cannot be committed, as after an SQL error.
func (k kit) wantFailed(tx Tx) {
	k.Helper()
	require.Error(k, tx.Exec(k.ctx, `INSERT INTO effects (what) VALUES ('after')`), "a statement after the failure")
	require.Error(k, tx.Commit(k.ctx), "commit after the failure")
	k.wantEffects("after", 0)
}

// until polls cond, which must hold before the test's patience ends.
func (k kit) until(what string, cond func() bool) {
	k.Helper()
	for !cond() {
		select {
		case <-k.ctx.Done():
			k.Fatalf("waited in vain until %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// untilBlocked waits until n sessions of this database wait for a lock.
func (k kit) untilBlocked(n int64) {
	k.Helper()
	k.until("a session waits for a lock", func() bool {
		got, err := k.db.Int(k.ctx, k.onNodes(`
			SELECT count(*) FROM pg_stat_activity
			 WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'`))
		require.NoError(k, err)
		return got >= n
	})
}

// onNodes is a query for a number. On a cluster it asks every node, for their sum: the lock that a statement waits
// for is where its row is.
func (k kit) onNodes(sql string) string {
	if k.door.Spread == "" {
		return sql
	}
	return "SELECT sum(result::int8)::int8 FROM run_command_on_all_nodes($$" + sql + "$$)"
}

// answer is what a call in another goroutine returned.
type answer struct {
	out idem.Outcome
	err error
}

func async(call func() (idem.Outcome, error)) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		out, err := call()
		ch <- answer{out, err}
	}()
	return ch
}

func (k kit) await(ch <-chan answer) answer {
	k.Helper()
	select {
	case a := <-ch:
		return a
	case <-k.ctx.Done():
		k.Fatal("the call did not return")
		return answer{}
	}
}
