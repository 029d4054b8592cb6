package conformance

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/pgerr"
)

// Breakable is a database that is reached soundly, and over connections that a script breaks. It has the tables and the
// [Schema] of the suite.
type Breakable struct {
	Sound DB

	// Broken opens the same over a script, for at most two connections, made by need only, so that messages can be
	// counted. gone waits until none of them is taken, and closes it.
	Broken func(s *faultconn.Script) (db DB, gone func())
}

// breaking is a Breakable in a test.
type breaking struct {
	*testing.T
	Breakable
	ctx context.Context
}

func breakable(t *testing.T, open func(*testing.T) Breakable) breaking {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return breaking{t, open(t), ctx}
}

// counted is effect, and counts its calls.
func counted(key idem.Key, calls *atomic.Int32) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		calls.Add(1)
		return effect(key.ID())(ctx, tx)
	}
}

func (s breaking) int(query string, key idem.Key) int {
	s.Helper()
	n, err := s.Sound.Int(s.ctx, query, key.ID())
	require.NoError(s, err)
	return int(n)
}

func (s breaking) effects(key idem.Key) int {
	s.Helper()
	return s.int(`SELECT count(*) FROM effects WHERE what = $1`, key)
}

// deliver runs the key soundly, wants one of the outcomes, and one effect afterwards.
func (s breaking) deliver(key idem.Key, want ...idem.Outcome) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	out, err := s.Sound.Run(ctx, Settings{}, key, effect(key.ID()))
	require.NoError(s, err, "the same key again")
	require.Contains(s, want, out)
	require.Equal(s, 1, s.effects(key))
}

// end releases a script and its database, and wants that nothing of it is left open.
func (s breaking) end(script *faultconn.Script, gone func()) {
	s.Helper()
	script.Release()
	gone()
	require.True(s, s.Sound.Idle(s.ctx), "a transaction is still open")
}

// LostCommit loses a COMMIT, and the reply to one: it is settled by claiming again.
func LostCommit(t *testing.T, open func(*testing.T) Breakable) {
	s := breakable(t, open)
	for fault, runs := range map[faultconn.Mode]int32{
		faultconn.DropReply: 1, faultconn.DropBefore: 2,
		faultconn.Reset: 2,
	} {
		script := &faultconn.Script{When: faultconn.Commit, Mode: fault}
		db, gone := s.Broken(script)
		var calls atomic.Int32
		key := scope.Key(fault.String())
		out, err := db.Run(s.ctx, Settings{}, key, counted(key, &calls))
		require.NoError(t, err, "%v: %v", fault, script)
		require.Equal(t, idem.Executed, out, "%v", fault)
		require.Equal(t, 1, script.Hits(), "%v", fault)
		require.Equal(t, 1, s.effects(key), "%v", fault)
		require.Equal(t, runs, calls.Load(), "how often fn ran: %v", fault)
		s.end(script, gone)
		s.deliver(key, idem.Duplicate)
	}
}

// UnknownCommit is LostCommit where no new connection can be had: unknown is said to be unknown, and the same key later
// gets the right answer.
func UnknownCommit(t *testing.T, open func(*testing.T) Breakable) {
	for fault, later := range map[faultconn.Mode]idem.Outcome{
		faultconn.DropReply:  idem.Duplicate,
		faultconn.DropBefore: idem.Executed,
	} {
		t.Run(fault.String(), func(t *testing.T) {
			s := breakable(t, open)
			script := &faultconn.Script{When: faultconn.Commit, Mode: fault, Refuse: true}
			db, gone := s.Broken(script)
			key := scope.Key("evt_1")
			out, err := db.Run(s.ctx, Settings{Tries: 3}, key, effect(key.ID()))
			WantUnknown(t, out, err)
			s.end(script, gone)
			s.deliver(key, later)
		})
	}
}

// EndsDuringCommit ends the context while COMMIT is under way: Run returns soon after, and does not claim to know.
func EndsDuringCommit(t *testing.T, open func(*testing.T) Breakable) {
	for name, c := range map[string]struct {
		when  func(faultconn.Message) bool
		later idem.Outcome
		ends  bool // by its deadline
	}{
		"deadline, before it arrives": {faultconn.Commit, idem.Executed, true},
		"deadline, before its reply":  {faultconn.CommitReply, idem.Duplicate, true},
		"cancel, before it arrives":   {faultconn.Commit, idem.Executed, false},
		"cancel, before its reply":    {faultconn.CommitReply, idem.Duplicate, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := breakable(t, open)
			ctx, cancel := context.WithCancel(s.ctx)
			script := &faultconn.Script{When: c.when, Mode: faultconn.Stall}
			if c.ends {
				ctx, cancel = context.WithTimeout(s.ctx, 500*time.Millisecond)
			} else {
				script.Do = func(faultconn.Message) { cancel() }
			}
			defer cancel()
			defer script.Release()
			db, gone := s.Broken(script)
			key := scope.Key("evt_1")
			begun := time.Now()
			out, err := db.Run(ctx, Settings{}, key, effect(key.ID()))
			WantUnknown(t, out, err)
			require.Less(t, time.Since(begun), patience, "Run does not return")
			require.Equal(t, 1, script.Hits(), "%v", script)
			gone() // a COMMIT that is let go afterwards meets no connection
			s.end(script, func() {})
			s.deliver(key, c.later)
		})
	}
}

// WantUnknown wants the answer of a call whose COMMIT may have taken place.
func WantUnknown(t testing.TB, out idem.Outcome, err error) {
	t.Helper()
	require.Zero(t, out)
	require.True(t, pgerr.CommitUnknown(err), "%v", err)
	require.True(t, pgerr.CommitUnknown(fmt.Errorf("wrapped: %w", err)))
	require.True(t, idem.Retryable(err))
	require.False(t, pgerr.Retryable(err), "without the key, nobody may run it again")
	var own *idem.Error
	require.ErrorAs(t, err, &own)
	require.True(t, own.Unknown)
	require.Equal(t, idem.StageCommit, own.Stage)
	require.ErrorContains(t, err, "unknown")
}
