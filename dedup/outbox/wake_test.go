package outbox_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// A notification wakes a relay that would not look for an hour; without one the next look finds the event.
func TestWake(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	run, stop := context.WithCancel(ctx)
	wake := make(chan struct{}, 1)
	listened, relayed := make(chan error, 1), make(chan error, 1)
	go func() { listened <- outbox.Listen(run, conn, wake) }()
	b := &broker{}
	go func() {
		relayed <- outbox.Relay{Publisher: b, Poll: time.Hour, Wake: wake}.Run(run, pool)
	}()
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	for n := range 5 {
		add(t, pool, ev("k", n))
		require.NoError(t, outbox.Notify(ctx, pool))
		require.Eventually(t, func() bool { return len(b.payloads()) == n+1 }, 10*time.Second, time.Millisecond)
	}
	stop()
	require.ErrorIs(t, <-relayed, context.Canceled)
	require.ErrorIs(t, <-listened, context.Canceled)

	// A channel that is closed wakes once.
	run, stop = context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	closed := make(chan struct{})
	close(closed)
	require.ErrorIs(t, outbox.Relay{Publisher: b, Wake: closed}.Run(run, pool), context.DeadlineExceeded)
}

// An append notifies nobody: its COMMIT takes no lock of the whole server, and cannot fail because the server's queue
// of notifications is full.
func TestAppendDoesNotNotify(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, `LISTEN pgonce_outbox`)
	require.NoError(t, err)
	add(t, pool, ev("k", 1), ev("k", 2))
	_, err = pool.Exec(ctx, `SELECT pg_notify('pgonce_outbox', 'the end')`)
	require.NoError(t, err)
	got, err := conn.WaitForNotification(ctx)
	require.NoError(t, err)
	require.Equal(t, "the end", got.Payload, "they come in the order of the COMMITs")
}

// In an idle system an event is published soon after its COMMIT, with nothing but looks. The times are logged; that
// most of them are short holds on a busy machine as well.
func TestPollIsQuick(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	run, stop := context.WithCancel(t.Context())
	got := make(chan time.Time, 1)
	done := make(chan error, 1)
	go func() {
		done <- outbox.Relay{Publisher: outbox.PublisherFunc(func(context.Context, []outbox.Event) error {
			got <- time.Now()
			return nil
		})}.Run(run, pool)
	}()
	var took []time.Duration
	for n := range 60 {
		time.Sleep(7 * time.Millisecond) // events come at any moment of the interval
		add(t, pool, ev("k", n))
		committed := time.Now()
		took = append(took, max(0, (<-got).Sub(committed)))
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
	slices.Sort(took)
	t.Logf("p50 %v, p99 %v", took[30], took[59])
	require.Less(t, took[30], 500*time.Millisecond)
}

// A relay does not work in a transaction of somebody else's: its lease would not be seen.
func TestRelayInTransaction(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	add(t, pool, ev("k", 1))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	b := &broker{}
	_, err = outbox.Relay{Publisher: b}.Drain(t.Context(), conn)
	require.Error(t, err)
	require.Error(t, outbox.Migrate(t.Context(), conn))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Empty(t, b.payloads())
	s, err := outbox.Relay{Publisher: b}.Drain(t.Context(), conn)
	require.NoError(t, err, "a connection of its own will do")
	require.EqualValues(t, 1, s.Published)
}

// Behind PgBouncer in transaction mode everything works but Listen. Only where the machine has pgbouncer.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("the machine has no pgbouncer")
	}
	direct := migrated(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		pgx.QueryExecModeCacheDescribe,
	} {
		pool := bounced(t, bin, direct, mode)
		failed := false
		b := &broker{fail: func(e outbox.Event) error {
			if !failed && e.Key == "k1" {
				failed = true
				return fmt.Errorf("once")
			}
			return nil
		}}
		for n := 1; n <= 20; n++ {
			add(t, pool, ev("k0", n), ev("k1", n), ev("k2", n))
		}
		require.NoError(t, outbox.Notify(t.Context(), pool))
		r := quick(b)
		r.Workers, r.Batch = 3, 5
		run, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(run, pool) }()
		require.Eventually(t, func() bool { return count(t, direct, `SELECT count(*) FROM outbox`) == 0 }, 20*time.Second,
			5*time.Millisecond)
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		inOrder(t, b, 3, 20)
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
