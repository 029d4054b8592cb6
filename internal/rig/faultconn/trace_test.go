package faultconn_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// trace returns the lines of the trace without the startup phase.
func (b *bench) trace() []string {
	var lines []string
	for _, m := range b.script.Trace() {
		if !m.Outside {
			lines = append(lines, m.String())
		}
	}
	return lines
}

func TestTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t, &faultconn.Script{}, execMode(pgx.QueryExecModeExec))
	require.NoError(t, insert(b.ctx(), b.pool, 7))
	err := insert(b.ctx(), b.pool, 7)
	require.Error(t, err)
	require.Equal(t, strings.Split(strings.TrimSpace(`
F Query begin
B CommandComplete BEGIN
B ReadyForQuery T
F Parse INSERT INTO t (id, note) VALUES ($1, $2)
F Bind
F Describe
F Execute INSERT INTO t (id, note) VALUES ($1, $2)
F Sync
B ParseComplete
B BindComplete
B NoData
B CommandComplete INSERT 0 1
B ReadyForQuery T
F Query commit
B CommandComplete COMMIT
B ReadyForQuery I
F Query begin
B CommandComplete BEGIN
B ReadyForQuery T
F Parse INSERT INTO t (id, note) VALUES ($1, $2)
F Bind
F Describe
F Execute INSERT INTO t (id, note) VALUES ($1, $2)
F Sync
B ParseComplete
B BindComplete
B NoData
B ErrorResponse 23505
B ReadyForQuery E
F Query rollback
B CommandComplete ROLLBACK
B ReadyForQuery I`), "\n"), b.trace())
	require.Equal(t, 14, b.script.Count(faultconn.Frontend))
	require.Equal(t, 18, b.script.Count(faultconn.Backend))
	require.Equal(t, 32, b.script.Count(faultconn.Either))
	require.Equal(t, 32, b.script.Matches())
	require.Zero(t, b.script.Hits())

	startup := b.script.Trace()[0]
	require.Equal(t, "F StartupMessage", startup.String())
	require.True(t, startup.Outside)
	require.Zero(t, startup.N)
	last := b.script.Trace()[len(b.script.Trace())-1]
	require.Equal(t, 18, last.N)
	require.Equal(t, 1, last.Conn)
	require.NotZero(t, last.PID)
}

// In the simple protocol pgx puts the parameters into the SQL text.
func TestTraceKeepsNoParameters(t *testing.T) {
	t.Parallel()
	var seen []string
	s := &faultconn.Script{When: func(m faultconn.Message) bool {
		if faultconn.Statement(m) {
			seen = append(seen, m.SQL)
		}
		return false
	}}
	b := newBench(t, s, execMode(pgx.QueryExecModeSimpleProtocol))
	require.NoError(t, insert(b.ctx(), b.pool, 4711))
	require.Contains(t, strings.Join(seen, "\n"), "4711", "a predicate sees the text as it is")
	for _, m := range b.script.Trace() {
		for _, text := range []string{m.String(), m.SQL} {
			require.NotContains(t, text, "4711")
			require.NotContains(t, text, "secret")
		}
	}
	require.Contains(t, b.script.String(), "F Query INSERT INTO t (id, note) VALUES ( ? , ? )")
}

func TestPauseHidesMessages(t *testing.T) {
	t.Parallel()
	s := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropReply}
	b := newBench(t, s)
	s.Pause()
	require.NoError(t, insert(b.ctx(), b.pool, 1))
	require.Zero(t, s.Count(faultconn.Either))
	require.Empty(t, s.Trace())
	s.Resume()
	b.broken(insert(b.ctx(), b.pool, 2))
	require.Equal(t, 2, b.rows())
}
