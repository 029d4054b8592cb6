package idem_test

import (
	"context"
	"errors"
	"fmt"
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

// again calls f until it succeeds: the coordinator may hold connections to sessions that have ended.
func again(t *testing.T, f func() error) {
	t.Helper()
	for try := 0; ; try++ {
		err := f()
		if err == nil {
			return
		}
		require.Less(t, try, 20, "%v", err)
		time.Sleep(10 * time.Millisecond)
	}
}

// The sessions of the workers end at a moment around COMMIT, where keys lie beside their effects (one node commits),
// and where they do not (two). A COMMIT that says no, by [pgerr.CommitUnknown], did not take place; and Run settles
// the others.
func TestCommitOnCitus(t *testing.T) {
	t.Parallel()
	nodes := pgtest.Cluster(t)
	r := seeded(t)
	rounds := 12
	if pgtest.Full() {
		rounds = 60
	}
	pool, err := pgxpool.New(t.Context(), nodes[0])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	var workers []*pgxpool.Pool
	for _, dsn := range nodes[1:] {
		w, err := pgxpool.New(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(w.Close)
		workers = append(workers, w)
	}
	// kill ends the sessions on the workers after a while, and returns what waits for that.
	kill := func(after time.Duration) (wait func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(after)
			for _, w := range workers {
				_, err := w.Exec(context.Background(), `
					SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					 WHERE datname = current_database() AND backend_type = 'client backend' AND application_name LIKE 'citus_internal%'`)
				if err != nil {
					t.Error(err)
				}
			}
		}()
		return func() { <-done }
	}
	for name, effects := range map[string]string{
		"one node":  `SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events')`,
		"two nodes": `SELECT create_distributed_table('effects', 'tenant', colocate_with => 'none')`,
	} {
		t.Run(name, func(t *testing.T) {
			table := dedup.Table{Spread: "key"}
			for _, sql := range []string{
				`DROP TABLE IF EXISTS effects`, `DROP TABLE IF EXISTS processed_events`,
				`CREATE TABLE effects (tenant int, what text COLLATE "C")`,
			} {
				again(t, func() error {
					_, err := pool.Exec(t.Context(), sql)
					return err
				})
			}
			require.NoError(t, dedup.Migrate(t.Context(), pool, table))
			_, err := pool.Exec(t.Context(), effects)
			require.NoError(t, err)
			require.NoError(t, dedup.Verify(t.Context(), pool, table))
			count := func(table, column, what string) (n int) {
				t.Helper()
				// A transaction in doubt is settled by the coordinator.
				again(t, func() error {
					_, err := pool.Exec(t.Context(), `SELECT recover_prepared_transactions()`)
					return err
				})
				again(t, func() error {
					return pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table+` WHERE `+column+` = $1`, what).Scan(&n)
				})
				return n
			}
			once := idem.Once{Table: table, MaxWait: 2 * time.Second}
			unknown, failed := 0, 0
			for i := range rounds {
				what := fmt.Sprintf("evt_%d", i)
				fn := func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO effects (tenant, what) VALUES ($1, $2)`, i, what)
					return err
				}
				pause := time.Duration(r.IntN(4000)) * time.Microsecond
				var tx pgx.Tx
				again(t, func() (err error) {
					if tx, err = pool.Begin(t.Context()); err == nil {
						if _, err = once.Do(t.Context(), tx, stripe.Key(what), fn); err != nil {
							_ = tx.Rollback(t.Context())
						}
					}
					return err
				})
				wait := kill(pause)
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
				err := tx.Commit(t.Context())
				wait()
				switch n := count("processed_events", "key", stripe.Key(what).ID()); {
				case err == nil:
					require.Equal(t, 1, n)
				case pgerr.CommitUnknown(err):
					unknown++
				default:
					failed++
					require.Zero(t, n, "COMMIT had said no: %v", err)
				}
				require.Equal(t, count("processed_events", "key", stripe.Key(what).ID()), count("effects", "what", what))

				what += "_run"
				var out idem.Outcome
				for try := 0; ; try++ {
					first := try == 0
					wait := func() {}
					out, err = once.Run(t.Context(), pool, stripe.Key(what), func(ctx context.Context, tx pgx.Tx) error {
						if first {
							first = false
							defer func() { wait = kill(pause) }()
						}
						return fn(ctx, tx)
					})
					wait()
					if err == nil {
						break
					}
					if own := new(idem.Error); errors.As(err, &own) && own.Unknown {
						unknown++
					}
					require.Less(t, try, 20, "%v", err)
					count("effects", "what", what)
				}
				require.NotZero(t, out)
				require.Equal(t, 1, count("effects", "what", what))
				require.Equal(t, 1, count("processed_events", "key", stripe.Key(what).ID()))
			}
			t.Logf("%d rounds: of COMMIT %d failed, %d were unknown", rounds, failed, unknown)
		})
	}
}
