package inbox_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// A notification wakes a worker that would not look for an hour.
func TestWake(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	run, stop := context.WithCancel(ctx)
	wake := make(chan struct{}, 1)
	listened, worked := make(chan error, 1), make(chan error, 1)
	go func() { listened <- inbox.Listen(run, conn, wake) }()
	go func() { worked <- inbox.Worker{Poll: time.Hour, Wake: wake}.Run(run, pool, insert) }()
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	for n := range 5 {
		store(t, pool, msg("", fmt.Sprint(n)))
		require.NoError(t, inbox.Notify(ctx, pool))
		require.Eventually(t, func() bool { return count(t, pool, `SELECT count(*) FROM effects`) == n+1 }, 10*time.Second,
			time.Millisecond)
	}
	stop()
	require.ErrorIs(t, <-worked, context.Canceled)
	require.ErrorIs(t, <-listened, context.Canceled)

	// A channel that is closed wakes once.
	run, stop = context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	closed := make(chan struct{})
	close(closed)
	require.ErrorIs(t, inbox.Worker{Wake: closed}.Run(run, pool, insert), context.DeadlineExceeded)
}

// A worker does not work in a transaction of somebody else's.
func TestInTransaction(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	store(t, pool, msg("", "1"))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = inbox.Worker{}.Drain(t.Context(), conn, insert)
	require.Error(t, err)
	require.Error(t, inbox.Migrate(t.Context(), conn))
	store(t, conn, msg("", "rolled back"))
	require.NoError(t, tx.Rollback(t.Context()))
	s, err := inbox.Worker{}.Drain(t.Context(), conn, insert)
	require.NoError(t, err, "a connection of its own will do")
	require.EqualValues(t, 1, s.Handled)
}

// Behind PgBouncer in transaction mode everything works but Listen. Only where the machine has pgbouncer.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("the machine has no pgbouncer")
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		pgx.QueryExecModeCacheDescribe,
	} {
		direct := migrated(t)
		pool := bounced(t, bin, direct, mode)
		want := map[string][]string{}
		for _, key := range []string{"a", "b"} {
			messages, ids := numbered(key, 20)
			store(t, pool, messages...)
			again(t, pool, messages[0])
			want[key] = ids
		}
		require.NoError(t, inbox.Notify(t.Context(), pool))
		var o order
		w := quick()
		w.Workers = 4
		run, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- w.Run(run, pool, func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				if m.Attempt == 1 && m.ID[len(m.ID)-1] == '7' {
					return errNothing
				}
				o.add(m)
				return insert(ctx, tx, m)
			})
		}()
		require.Eventually(t, func() bool { return depth(t, direct) == inbox.Depth{} }, 20*time.Second, 5*time.Millisecond)
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, want, o.ids)
		require.Equal(t, 40, count(t, direct, `SELECT count(*) FROM effects`))
	}
}

// bounced returns a pool that goes through a pgbouncer of its own, with two sessions for all.
func bounced(t *testing.T, bin string, direct *pgxpool.Pool, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	c := direct.Config().ConnConfig
	dir, err := os.MkdirTemp("", "pgbouncer")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(ini, []byte(fmt.Sprintf(`[databases]
db = host=%s port=%d dbname=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
`, c.Host, c.Port, c.Database, c.User, c.Password, port)), 0o644))
	require.NoError(t, os.Chmod(dir, 0o755))
	args := []string{"-q", ini}
	if os.Getuid() == 0 {
		args = append([]string{"-u", "nobody"}, args...)
	}
	cmd := exec.Command(bin, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	cfg, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://any@127.0.0.1:%d/db?sslmode=disable", port))
	require.NoError(t, err)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.MaxConns = 8
	pool := pgtest.PoolConfig(t, cfg)
	require.Eventually(t, func() bool { return pool.Ping(t.Context()) == nil }, 10*time.Second, 20*time.Millisecond)
	return pool
}
