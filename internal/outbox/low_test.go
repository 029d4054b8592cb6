package outbox

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/boxes"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.MainLazy(m) }

// A mark counts when every transaction has ended that may hold a lower number, and never passes what is still there.
func TestLowMarks(t *testing.T) {
	var m lowMarks
	m.reset()
	// Number 5 is taken by transaction 103, which runs. Number 6 is of 100, which has ended: a snapshot's xmax is
	// 103.
	m.read(0, 6, 101)
	m.read(0, 7, 103)
	require.Zero(t, m.mark[0], "no id was assigned since: nothing is known")
	m.assigned(104)
	m.read(0, 8, 103)
	require.Zero(t, m.mark[0], "103 runs")
	m.read(0, 5, 105)
	require.EqualValues(t, 4, m.mark[0], "it has ended, and its event is there")
	m.assigned(106)
	m.read(0, 20, 200)
	require.EqualValues(t, 4, m.mark[0], "what the last mark was seen at")
	m.assigned(201)
	m.read(0, 30, 201)
	require.EqualValues(t, 19, m.mark[0])
	m.assigned(202)
	m.read(0, 3, 300)
	require.EqualValues(t, 19, m.mark[0], "it does not go back: what is below is somebody else's mistake")
	require.Zero(t, m.mark[1])
	m.assigned(301)
	require.EqualValues(t, 19, m.mark[0])
	m.assigned(250)
	require.Zero(t, m.mark[0], "ids begin again: it is another server, whose numbers may begin again, too")
	m.read(0, 20, 251)
	m.assigned(252)
	m.read(0, 30, 252)
	require.EqualValues(t, 19, m.mark[0])
	require.Contains(t, m.text(), "{19,0,0")
	m.since = m.since.Add(-2 * keepMarks)
	require.Contains(t, m.text(), "{0,0,0", "marks are forgotten in time")
}

// Every statement is one that this server takes, whatever the table is called.
func TestPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	odd, err := ParseName(`"odd.schema"."ta""ble"`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE SCHEMA "odd.schema";`+Tables().DDL(odd), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for _, sql := range append(For(odd).Texts(),
		append(boxes.Texts(), render(odd, countLanesSQL), render(odd, behindSQL))...) {
		require.NotEmpty(t, sql)
		require.NotContains(t, sql, "outbox", "a table of this name is not meant")
		_, err := conn.Prepare(t.Context(), "", sql)
		require.NoError(t, err, sql)
	}
	require.NotContains(t, Tables().DDL(odd), "/*table*/")
	require.Empty(t, must(verify(t.Context(), pg.FromPgx(conn), odd)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestBackoff(t *testing.T) {
	w := &Worker{Relay: Relay{MinRetry: 1000, MaxRetry: 10_000}}
	for attempts, want := range map[int]int64{1: 1000, 2: 2000, 4: 8000, 5: 10_000, 1_000_000: 10_000} {
		for range 50 {
			d := int64(w.backoff(attempts))
			require.GreaterOrEqual(t, d, want*8/10)
			require.LessOrEqual(t, d, want*12/10)
		}
	}
	require.Equal(t, minRest, restAfter(1))
	require.Equal(t, maxRest, restAfter(1_000_000))
}

// A key is always in the same lane: this is part of the table's format.
func TestLaneOf(t *testing.T) {
	for key, lane := range map[string]int64{"": 5, "a": 12, "order-1": laneOf("order-1")} {
		require.Equal(t, lane, laneOf(key), key)
	}
	seen := map[int64]int{}
	for range 3200 {
		seen[laneOf(NewID())]++
	}
	require.Len(t, seen, Lanes)
	require.True(t, isUUID(NewID()))
}

// What a relay writes does not wait for the disk; what its neighbours in the session write does.
func TestRelayDoesNotWait(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, pgtest.DSN(t))
	require.NoError(t, err)
	defer conn.Close(ctx)
	name := must(ParseName(""))
	_, err = conn.Exec(ctx, Tables().DDL(name), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	s := For(name)
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Append(ctx, pg.FromPgxTx(tx), Event{Topic: "t", Key: "a"}))
	require.NoError(t, tx.Commit(ctx))
	setting := func(q pg.Conn) (v string) {
		require.NoError(t, q.Send(ctx, &pg.Stmt{SQL: `SHOW synchronous_commit`, Dest: []any{&v}}))
		return v
	}
	lane, none := laneOf("a"), "{"+strings.TrimSuffix(strings.Repeat("0,", Lanes), ",")+"}"
	for _, st := range []*pg.Stmt{
		{SQL: s.claim, Args: []any{int64(7), int64(1), none, int64(0)}, Dest: []any{new(int64), new(int64), new(string)}},
		{SQL: s.done, Args: []any{lane, int64(7), "{}"}, Dest: []any{new(int64), new(int64), new(string)}},
		{SQL: s.rest, Args: []any{lane, int64(0), int64(0)}, Dest: restDest()},
	} {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		require.Equal(t, "on", setting(pg.FromPgxTx(tx)))
		require.NoError(t, pg.FromPgxTx(tx).Send(ctx, st))
		require.EqualValues(t, 1, st.Rows)
		require.Equal(t, "off", setting(pg.FromPgxTx(tx)), st.SQL)
		require.NoError(t, tx.Commit(ctx))
	}
}

// The statements on the default table are made once and for all, see the same test of the inbox.
func TestStatementsAreMadeOnce(t *testing.T) {
	name := must(ParseName(""))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = For(name) }))
}
