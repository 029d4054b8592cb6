package faultconn_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// start runs insert and returns where its error will come.
func (b *bench) start(ctx context.Context, id int) <-chan error {
	result := make(chan error, 1)
	go func() { result <- insert(ctx, b.pool, id) }()
	return result
}

// A lock that was kept makes another transaction wait for the same key.
func (b *bench) keyIsLocked(id int) bool {
	b.Helper()
	err := pgx.BeginFunc(b.ctx(), b.admin, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.ctx(), "SET LOCAL lock_timeout = '50ms'"); err != nil {
			return err
		}
		_, err := tx.Exec(b.ctx(), "INSERT INTO t VALUES ($1) ON CONFLICT DO NOTHING", id)
		return errors.Join(err, errRollback)
	})
	var pgErr *pgconn.PgError
	locked := errors.As(err, &pgErr) && pgErr.Code == "55P03"
	require.True(b, locked || errors.Is(err, errRollback) && pgErr == nil, "%v", err)
	return locked
}

var errRollback = errors.New("roll back")

func TestStalledCommitGoesOnAfterRelease(t *testing.T) {
	t.Parallel()
	b := newBench(t, &faultconn.Script{When: faultconn.Commit, Mode: faultconn.Stall})
	result := b.start(b.ctx(), 1)
	await(t, b.script.Fired())
	require.Equal(t, []string{"idle in transaction"}, b.sessions())
	require.True(t, b.keyIsLocked(1))
	require.Empty(t, result, "the client has an answer that nobody gave")
	b.script.Release()
	require.NoError(t, await(t, result))
	require.Equal(t, 1, b.rows())
	require.NoError(t, insert(b.ctx(), b.pool, 2), "the connection is whole again")
}

func TestStalledReplyGoesOnAfterRelease(t *testing.T) {
	t.Parallel()
	b := newBench(t, &faultconn.Script{When: faultconn.CommitReply, Mode: faultconn.Stall})
	result := b.start(b.ctx(), 1)
	await(t, b.script.Fired())
	require.Equal(t, 1, b.rows())
	require.Empty(t, result)
	b.script.Release()
	require.NoError(t, await(t, result))
	require.NoError(t, insert(b.ctx(), b.pool, 2))
}

func TestContextEndsDuringStall(t *testing.T) {
	t.Parallel()
	ends := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 500*time.Millisecond)
		},
	}
	shared := newBench(t, &faultconn.Script{})
	for name, end := range ends {
		for _, test := range []struct {
			name string
			when func(faultconn.Message) bool
			rows int
		}{{"COMMIT", faultconn.Commit, 0}, {"reply", faultconn.CommitReply, 1}} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				b := shared.attach(t, &faultconn.Script{When: test.when, Mode: faultconn.Stall})
				conn, err := b.pool.Acquire(b.ctx())
				require.NoError(t, err)
				defer conn.Release()
				tx, err := conn.Begin(b.ctx())
				require.NoError(t, err)
				_, err = tx.Exec(b.ctx(), "INSERT INTO t VALUES (1)")
				require.NoError(t, err)

				ctx, cancel := end(b.ctx())
				defer cancel()
				result := make(chan error, 1)
				go func() { result <- tx.Commit(ctx) }()
				await(t, b.script.Fired())
				if name == "cancelled" {
					cancel()
				}
				err = await(t, result)
				require.ErrorIs(t, err, ctx.Err())
				require.False(t, pgconn.SafeToRetry(err))
				// pgx gives the server 15 seconds to answer its Terminate, and the pool's place is taken for as long.
				start := time.Now()
				await(t, conn.Conn().PgConn().CleanupDone())
				require.Less(t, time.Since(start), 10*time.Second)
				b.noSessions()
				require.Equal(t, test.rows, b.rows())
				b.script.Release() // what was held is not sent any more
				require.Equal(t, test.rows, b.rows())
			})
		}
	}
}

func TestServerDoesNotNotice(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, test := range []struct {
		name  string
		mode  faultconn.Mode
		when  func(faultconn.Message) bool
		state string
		rows  int
	}{
		{"lost COMMIT", faultconn.DropBefore, faultconn.Commit, "idle in transaction", 0},
		{"lost reply", faultconn.DropReply, faultconn.Commit, "idle", 1},
		{"stalled COMMIT", faultconn.Stall, faultconn.Commit, "idle in transaction", 0},
		{"stalled reply", faultconn.Stall, faultconn.CommitReply, "idle", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shared.attach(t, &faultconn.Script{When: test.when, Mode: test.mode, KeepServer: true, Refuse: true})
			ctx, cancel := context.WithCancel(b.ctx())
			defer cancel()
			result := b.start(ctx, 1)
			await(t, b.script.Fired())
			if test.mode == faultconn.Stall {
				cancel()
			}
			b.broken(await(t, result))
			b.pool.Close() // waits until pgx has closed the connection
			require.Equal(t, test.rows, b.rows())
			require.Equal(t, test.rows == 0, b.keyIsLocked(1))
			require.Equal(t, []string{test.state}, b.sessions())
			b.script.Release()
			b.noSessions()
			require.False(t, b.keyIsLocked(1))
			require.Equal(t, test.rows, b.rows())
		})
	}
}

// Release before the client has noticed: the connection is an ordinary one again, and closing it ends the session.
func TestReleaseEndsKeepServer(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, when := range []func(faultconn.Message) bool{faultconn.Commit, faultconn.CommitReply} {
		b := shared.attach(t, &faultconn.Script{When: when, Mode: faultconn.Stall, KeepServer: true})
		result := b.start(b.ctx(), 1)
		await(t, b.script.Fired())
		b.script.Release()
		require.NoError(t, await(t, result))
		b.pool.Close()
		b.noSessions()
	}
}

func TestHookCancelsContext(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, test := range []struct {
		name string
		when func(faultconn.Message) bool
		rows int
	}{{"before COMMIT", faultconn.Commit, 0}, {"before its reply", faultconn.CommitReply, 1}} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			awaited := false
			b := shared.attach(t, &faultconn.Script{When: test.when, Do: func(m faultconn.Message) {
				cancel()
				awaited = m.AwaitDeadline()
			}})
			require.ErrorIs(t, insert(ctx, b.pool, 1), context.Canceled)
			b.hit()
			require.True(t, awaited)
			b.noSessions()
			require.Equal(t, test.rows, b.rows())
		})
	}
}

func TestHookTerminatesSession(t *testing.T) {
	t.Parallel()
	var b *bench
	b = newBench(t, &faultconn.Script{When: faultconn.Commit, Do: func(m faultconn.Message) {
		_, err := b.admin.Exec(context.Background(), "SELECT pg_terminate_backend($1)", m.PID)
		require.NoError(t, err)
		b.noSessions()
	}})
	b.broken(insert(b.ctx(), b.pool, 1))
	require.Zero(t, b.rows())
	require.NoError(t, insert(b.ctx(), b.pool, 2))
}

func TestReset(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for _, test := range []struct {
		name string
		when func(faultconn.Message) bool
		rows int
	}{{"COMMIT", faultconn.Commit, 0}, {"reply", faultconn.CommitReply, 1}} {
		t.Run(test.name, func(t *testing.T) {
			b := shared.attach(t, &faultconn.Script{When: test.when, Mode: faultconn.Reset})
			err := insert(b.ctx(), b.pool, 1)
			b.broken(err)
			require.Equal(t, test.rows == 0, errors.Is(err, syscall.ECONNRESET), "pgx passes on errors of writing only: %v", err)
			require.Equal(t, test.rows == 0, pgconn.SafeToRetry(err), "nothing was sent, or something was: %v", err)
			b.hit()
			b.noSessions()
			require.Equal(t, test.rows, b.rows())
		})
	}
}

// What the server's socket sees: an RST for Reset, the end of the stream for DropBefore.
func TestResetIsNotTheEndOfTheStream(t *testing.T) {
	t.Parallel()
	for mode, want := range map[faultconn.Mode]error{faultconn.Reset: syscall.ECONNRESET, faultconn.DropBefore: nil} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		got := make(chan error, 1)
		go func() {
			nc, err := l.Accept()
			if err == nil {
				defer nc.Close()
				_, err = nc.Read(make([]byte, 1))
			}
			got <- err
		}()
		s := &faultconn.Script{Outside: true, Mode: mode}
		nc, err := s.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer nc.Close()
		_, err = nc.Write([]byte{0, 0, 0, 8, 0, 3, 0, 0})
		if want == nil {
			require.NoError(t, err)
			require.ErrorContains(t, await(t, got), "EOF")
		} else {
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, await(t, got), want)
		}
		require.Equal(t, 1, s.Hits())
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	copyRows := func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}, {2}}))
		return err
	}
	typed := func(name string) func(faultconn.Message) bool {
		return func(m faultconn.Message) bool { return m.From == faultconn.Frontend && m.Type == name }
	}
	for _, test := range []struct {
		name string
		when func(faultconn.Message) bool
		mode faultconn.Mode
		rows int
	}{
		{"reply to COPY", faultconn.Containing("copy "), faultconn.DropReply, 2},
		{"data", typed("CopyData"), faultconn.DropBefore, 0},
		{"end", typed("CopyDone"), faultconn.DropBefore, 0},
		{"reply to data", typed("CopyData"), faultconn.DropReply, 2},
		{"reply to end", typed("CopyDone"), faultconn.DropReply, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := shared.attach(t, &faultconn.Script{When: test.when, Mode: test.mode})
			b.broken(copyRows(b.ctx(), b.pool))
			b.noSessions()
			require.Equal(t, test.rows, b.rows(), "%v", b.script)
			require.NoError(t, b.ctx().Err())
		})
	}
}
