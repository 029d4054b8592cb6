package faultconn_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// queueCommit is a transaction in one batch, its COMMIT an ordinary statement of it.
func queueCommit(ctx context.Context, pool *pgxpool.Pool, id int) error {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	batch.Queue("INSERT INTO t (id) VALUES ($1)", id)
	batch.Queue(" /* the end */ Commit")
	return pool.SendBatch(ctx, batch).Close()
}

func TestCommitInEveryExecMode(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(context.Context, *pgxpool.Pool, int) error{
		"Tx":    insert,
		"Batch": queueCommit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shared := newBench(t, &faultconn.Script{})
			for _, mode := range execModes {
				for drop, want := range map[faultconn.Mode]int{faultconn.DropBefore: 0, faultconn.DropReply: 1} {
					s := &faultconn.Script{When: faultconn.Commit, Mode: drop}
					b := shared.attach(t, s, execMode(mode))
					b.broken(work(b.ctx(), b.pool, 1))
					require.Equal(t, 1, s.Matches(), "one COMMIT is one message\n%v", s)
					b.noSessions()
					require.Equal(t, want, b.rows(), "%v %v\n%v", mode, drop, s)
					require.NoError(t, work(b.ctx(), b.pool, 2), "later connections are whole")
					require.Equal(t, want+1, b.rows())
					b.pool.Close()
				}
			}
		})
	}
}

// A lost reply to COMMIT must not look safe to retry. pgx 5.9 to 5.12 said that it was, which is why a later version is
// required.
func TestLostCommitReplyIsNotSafeToRetry(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, when := range []func(faultconn.Message) bool{faultconn.Commit, faultconn.CommitReply} {
		b := shared.attach(t, &faultconn.Script{When: when, Mode: faultconn.DropReply})
		err := insert(b.ctx(), b.pool, 1)
		b.broken(err)
		require.False(t, pgconn.SafeToRetry(err), "%v", err)
		require.Equal(t, 1, b.rows())
	}
}

func TestLostCommitIsNotSafeToRetry(t *testing.T) {
	t.Parallel()
	b := newBench(t, &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropBefore})
	err := insert(b.ctx(), b.pool, 1)
	b.broken(err)
	require.False(t, pgconn.SafeToRetry(err), "the client cannot know that nothing arrived: %v", err)
	b.noSessions()
	require.Zero(t, b.rows())
}

// The effect of one transaction is known for a cut at each of its messages.
func TestCutAtEveryMessage(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			shared := newBench(t, &faultconn.Script{}, execMode(mode))
			require.NoError(t, insert(shared.ctx(), shared.pool, 1))
			shared.pool.Close()
			commit := 0
			for _, m := range shared.script.Trace() {
				if faultconn.Commit(m) {
					commit = m.N
				}
			}
			requests, replies := shared.script.Count(faultconn.Frontend), shared.script.Count(faultconn.Backend)
			cut := func(s *faultconn.Script, committed bool) {
				t.Helper()
				b := shared.attach(t, s, execMode(mode))
				defer b.pool.Close()
				b.broken(insert(b.ctx(), b.pool, 1))
				b.noSessions()
				want := 0
				if committed {
					want = 1
				}
				require.Equal(t, want, b.rows(), "%v", s)
				require.NoError(t, insert(b.ctx(), b.pool, 2))
			}
			for _, drop := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Reset} {
				for n := 1; n <= requests; n++ {
					done := n == commit && drop == faultconn.DropReply
					cut(&faultconn.Script{From: faultconn.Frontend, N: n, Mode: drop}, done)
				}
				for n := 1; n <= replies; n++ {
					done := n > replies-2 // the two replies to COMMIT
					cut(&faultconn.Script{From: faultconn.Backend, N: n, Mode: drop}, done)
				}
			}
		})
	}
}

// Of several messages in one Write, those before the cut arrive.
func TestEarlierMessagesOfAWriteArrive(t *testing.T) {
	t.Parallel()
	// Refuse, or pgx's cancel request might hit the first statement.
	s := &faultconn.Script{When: faultconn.Containing("insert into t values (2"), Mode: faultconn.DropBefore, Refuse: true}
	b := newBench(t, s)
	conn, err := b.pool.Acquire(b.ctx())
	require.NoError(t, err)
	defer conn.Release()
	pipeline := conn.Conn().PgConn().StartPipeline(b.ctx())
	for _, sql := range []string{"INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)"} {
		pipeline.SendQueryParams(sql, nil, nil, nil, nil)
		require.NoError(t, pipeline.Sync())
	}
	b.broken(pipeline.Close())
	b.eventually("the first statement is done", func() bool { return b.rows() == 1 })
	b.noSessions()
	require.Equal(t, 1, b.rows())
	require.Contains(t, b.trace(), "F Sync [dropped]")
}

// A lost reply comes after the server is done, however early it begins to answer.
func TestReplyIsLostWhenTheServerIsDone(t *testing.T) {
	t.Parallel()
	insert := faultconn.Containing("insert into t values (1")
	shared := newBench(t, &faultconn.Script{})
	rowReply := func(m faultconn.Message) bool { return m.From == faultconn.Backend && m.Tag == "INSERT 0 1" }
	for _, when := range []func(faultconn.Message) bool{insert, rowReply} {
		b := shared.attach(t, &faultconn.Script{When: when, Mode: faultconn.DropReply})
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO t VALUES (1)")
		batch.Queue("SELECT repeat('x', 100000)") // more than the server buffers
		batch.Queue("SELECT pg_sleep(0.3)")       // the transaction is not committed yet; pgx's cancel request would end it
		b.broken(b.pool.SendBatch(b.ctx(), batch).Close())
		require.Equal(t, 1, b.rows(), "%v", b.script)
	}
}

func TestRepeat(t *testing.T) {
	t.Parallel()
	s := &faultconn.Script{When: faultconn.Commit, N: 2, Mode: faultconn.DropReply, Repeat: true}
	b := newBench(t, s)
	require.NoError(t, insert(b.ctx(), b.pool, 1))
	require.Error(t, insert(b.ctx(), b.pool, 2))
	require.Error(t, insert(b.ctx(), b.pool, 3))
	require.Equal(t, 2, s.Hits())
	require.Equal(t, 3, b.rows())
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	s := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropReply, Refuse: true}
	b := newBench(t, s)
	b.broken(insert(b.ctx(), b.pool, 1))
	err := insert(b.ctx(), b.pool, 2)
	var connecting *pgconn.ConnectError
	require.True(t, errors.As(err, &connecting), "%v", err)
	require.ErrorContains(t, err, "refused")
	s.Release()
	require.NoError(t, insert(b.ctx(), b.pool, 2))
	require.Equal(t, 2, b.rows())
}

// Many connections share a script, and faults hit them all the time. What a worker was told is so, and a stall that is
// released harms nobody.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Reset, faultconn.Stall} {
		var seen atomic.Int64
		s := &faultconn.Script{Mode: mode, Repeat: true, When: func(faultconn.Message) bool { return seen.Add(1)%53 == 0 }}
		b := shared.attach(t, s, func(cfg *pgxpool.Config) { cfg.MaxConns = 8 })
		var workers sync.WaitGroup
		var mu sync.Mutex
		told := map[int]error{}
		for worker := range 8 {
			workers.Go(func() {
				for i := range 12 {
					id := worker*100 + i
					err := insert(b.ctx(), b.pool, id)
					mu.Lock()
					told[id] = err
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		go func() {
			workers.Wait()
			close(done)
		}()
		if mode == faultconn.Stall {
			b.eventually("stalls are released", func() bool {
				s.Release()
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
		}
		await(t, done)
		require.Greater(t, s.Hits(), 10)
		b.pool.Close()
		b.noSessions()
		rows, err := b.admin.Query(b.ctx(), "SELECT id FROM t")
		require.NoError(t, err)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		for id, err := range told {
			if mode == faultconn.Stall {
				require.NoError(t, err)
			}
			require.True(t, err != nil || slices.Contains(ids, id), "%d was committed and is lost\n%v", id, s)
		}
	}
}
