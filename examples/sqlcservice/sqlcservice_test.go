package main

import (
	"database/sql"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// What Run gives to fn is what sqlc asks for.
var _ DBTX = idemsql.Tx(nil)

func start(t *testing.T) worker {
	t.Helper()
	db, err := sql.Open("pgx", pgtest.DSN(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	w, err := newWorker(t.Context(), db)
	require.NoError(t, err)
	return w
}

func (w worker) balances(t *testing.T) (alice, bob int64) {
	t.Helper()
	alice, err := New(w.db).Balance(t.Context(), "alice")
	require.NoError(t, err)
	bob, err = New(w.db).Balance(t.Context(), "bob")
	require.NoError(t, err)
	return alice, bob
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
		out, err := w.handle(t.Context(), message{"msg_1", "alice", "bob", 30})
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	alice, bob := w.balances(t)
	require.EqualValues(t, 70, alice)
	require.EqualValues(t, 130, bob)

	// The withdrawal has been made when the deposit fails: both are undone, and the key is free again.
	_, err := w.handle(t.Context(), message{"msg_2", "alice", "carol", 30})
	require.ErrorIs(t, err, errNoAccount)
	alice, _ = w.balances(t)
	require.EqualValues(t, 70, alice)
	require.NoError(t, New(w.db).OpenAccount(t.Context(), OpenAccountParams{ID: "carol"}))
	out, err := w.handle(t.Context(), message{"msg_2", "alice", "carol", 30})
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out)
}

func TestDeliveriesAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := start(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := w.handle(t.Context(), message{"msg_1", "alice", "bob", 30}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	alice, bob := w.balances(t)
	require.EqualValues(t, 70, alice)
	require.EqualValues(t, 130, bob)
}

// The program itself, with a database of its own.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), "", strings.NewReader(shipped), &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines) // the workers are at it at the same time
	require.Equal(t, []string{
		"alice has 20",
		"bob has 180",
		"msg_1 duplicate - acknowledge",
		"msg_1 executed - acknowledge",
		"msg_2 duplicate - acknowledge",
		"msg_2 executed - acknowledge",
		"msg_3 " + errNoFunds.Error() + " - to the dead letters",
	}, lines)
}
