package idem_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// A worker commits, and its session ends before it says so. Citus then says no, with severity ERROR, to a COMMIT that
// took place: it is an unknown one, and Run finds out.
func TestCommittedOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	var pools []*pgxpool.Pool
	for _, dsn := range nodes {
		p, err := pgxpool.New(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		pools = append(pools, p)
	}
	pool := pools[0]
	once := idem.Once{Table: dedup.Table{Spread: "key"}}
	require.NoError(t, dedup.Migrate(t.Context(), pool, once.Table))
	for _, sql := range []string{
		`CREATE TABLE effects (what text COLLATE "C" NOT NULL)`,
		`SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	// waits has the worker wait for a standby when it has committed, and unanswered ends such sessions, once there is one.
	waits := func(ctx context.Context, tx pgx.Tx, key idem.Key) error {
		for _, sql := range []string{
			`SET LOCAL citus.propagate_set_commands = 'local'`,
			`SET LOCAL synchronous_commit = on`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, key.ID())
		return err
	}
	unanswered := func() (wait func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				for _, worker := range pools[1:] {
					var n int
					err := worker.QueryRow(context.Background(), `
						SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
						 WHERE datname = current_database() AND wait_event = 'SyncRep'`).Scan(&n)
					if err != nil {
						t.Error(err)
						return
					}
					if n > 0 {
						return
					}
				}
			}
			t.Error("no COMMIT has waited")
		}()
		return func() { <-done }
	}
	stand := func(key idem.Key) (keys, effects int) {
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM processed_events WHERE key = $1), (SELECT count(*) FROM effects WHERE what = $1)`,
			key.ID()).Scan(&keys, &effects))
		return keys, effects
	}

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	key := stripe.Key("do")
	_, err = once.Do(t.Context(), tx, key, func(ctx context.Context, tx pgx.Tx) error { return waits(ctx, tx, key) })
	require.NoError(t, err)
	wait := unanswered()
	err = tx.Commit(t.Context())
	wait()
	require.True(t, pgerr.Is(err, "XX000"), "%v", err)
	require.True(t, pgerr.CommitUnknown(err), "it took place: %v", err)
	keys, effects := stand(key)
	require.Equal(t, []int{1, 1}, []int{keys, effects})

	key = stripe.Key("run")
	ran := 0
	out, err := once.Run(t.Context(), pool, key, func(ctx context.Context, tx pgx.Tx) error {
		ran++
		err := waits(ctx, tx, key)
		wait = unanswered()
		return err
	})
	wait()
	require.NoError(t, err)
	require.Equal(t, idem.Executed, out, "its own COMMIT")
	keys, effects = stand(key)
	require.Equal(t, []int{1, 1, 1}, []int{ran, keys, effects})
}
