package dedup_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Behind PgBouncer in transaction mode, where each transaction may get another session, several purges at a time still
// are one, and each key is deleted and counted once. Only where the machine has pgbouncer; that nothing outlives a
// transaction is shown by TestPurgeLeavesTheSessionAlone everywhere.
func TestPurgeBehindPgBouncer(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("the machine has no pgbouncer")
	}
	direct := pgtest.Pool(t)
	migrated(t, direct)
	fill(t, direct, fillFifth, 10_000)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
		pgx.QueryExecModeCacheDescribe,
	} {
		fill(t, direct, `INSERT INTO processed_events (source, operation, key, processed_at)
			SELECT 'again', 'o', 'k' || i, now() - interval '40 days' FROM generate_series(1, $1::int) AS i ON CONFLICT DO NOTHING`, 2_000)
		due := number(t, direct, `SELECT count(*) FROM processed_events WHERE processed_at < now() - interval '36 days'`)
		pool := bounced(t, bin, direct, mode)
		var mu sync.Mutex
		var sum int64
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 3 { // whoever keeps the sessions changing hands
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := pool.Exec(t.Context(), `SELECT 1`); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var purges sync.WaitGroup
		for range 3 {
			purges.Go(func() {
				for range 3 {
					stats, err := dedup.Cleaner{Batch: 50, Rest: 1}.Purge(t.Context(), pool)
					if err != nil && !errors.Is(err, dedup.ErrBusy) {
						t.Errorf("%v: %v", mode, err)
					}
					mu.Lock()
					sum += stats.Deleted
					mu.Unlock()
				}
			})
		}
		purges.Wait()
		close(stop)
		wg.Wait()
		require.EqualValues(t, due, sum, "%v", mode)
		require.Equal(t, 8_000, number(t, direct, `SELECT count(*) FROM processed_events`))
		require.Zero(t, number(t, direct,
			`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`))
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
	cfg, err := pgxpool.ParseConfig("postgres://any@127.0.0.1:" + strconv.Itoa(port) + "/db?sslmode=disable")
	require.NoError(t, err)
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.MaxConns = 8
	pool := pgtest.PoolConfig(t, cfg)
	require.Eventually(t, func() bool { return pool.Ping(t.Context()) == nil }, 10*time.Second, 20*time.Millisecond)
	return pool
}
