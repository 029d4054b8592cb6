package inbox_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// TestStoreRate compares storing with bare inserts: 4 writers, bodies of 1,000 bytes, in turns, so that what else the
// machine does falls on both alike. PGONCE_LONG=1 runs it; for fsync, name a server in PGONCE_TEST_DATABASE_URL.
func TestStoreRate(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; what it measures is tested elsewhere
	}
	cfg := pgtest.Config(t)
	cfg.MaxConns = 4
	pool := pgtest.PoolConfig(t, cfg)
	require.NoError(t, inbox.Migrate(t.Context(), pool))
	execSQL(t, pool, `CREATE TABLE bare (id text COLLATE "C" PRIMARY KEY, body bytea NOT NULL)`)
	body := make([]byte, 1000)
	var next atomic.Int64
	// scattered, as UUIDv4 are
	name := func() string { return fmt.Sprintf("%016x", uint64(next.Add(1))*0x9e3779b97f4a7c15) }
	ways := []func(ctx context.Context) error{
		func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `INSERT INTO bare (id, body) VALUES ($1, $2)`, name(), body)
			return err
		},
		func(ctx context.Context) error {
			m := inbox.Message{Source: "s", Operation: "o", ID: name(), Body: body}
			_, err := inbox.Store(ctx, pool, m)
			return err
		},
	}
	const turns = 15
	var rates [2][]float64
	var ratios []float64
	for turn := range turns {
		for i := range ways {
			way := (i + turn) % 2
			rates[way] = append(rates[way], perSecond(t, ways[way]))
		}
		ratios = append(ratios, rates[1][turn]/rates[0][turn])
	}
	slices.Sort(ratios)
	for i := range rates {
		slices.Sort(rates[i])
	}
	var fsync string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT current_setting('fsync')`).Scan(&fsync))
	t.Logf("fsync %s: %.0f stored/s, %.0f bare/s; %.2f (%.2f to %.2f)",
		fsync, rates[1][turns/2], rates[0][turns/2], ratios[turns/2], ratios[0], ratios[turns-1])
}

func perSecond(t *testing.T, f func(ctx context.Context) error) float64 {
	ctx := t.Context()
	var done atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for range 4 {
		wg.Go(func() {
			for time.Since(begun) < 2*time.Second {
				if err := f(ctx); err != nil {
					t.Error(err)
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(begun).Seconds()
}

// TestClaimTime compares a claim of 1,000 waiting messages with one of a million: the blocks that it touches, which
// may be one and a half times as many, and medians of 1,000 claims each, rolled back, in turns.
func TestClaimTime(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; see TestManyWaiting
	}
	sizes := []int{1_000, 1_000_000}
	pools := make([]*pgxpool.Pool, len(sizes))
	for i, n := range sizes {
		pools[i] = migrated(t)
		execSQL(t, pools[i], `INSERT INTO inbox (source, operation, message_id, key, body)
			SELECT 's', 'o', gen_random_uuid()::text, '', 'x' FROM generate_series(1, $1::int)`, n)
		execSQL(t, pools[i], `VACUUM ANALYZE inbox`)
	}
	blocks := []int{claimBlocks(t, pools[0]), claimBlocks(t, pools[1])}
	t.Logf("a claim touches %d blocks of %d waiting, %d of %d", blocks[0], sizes[0], blocks[1], sizes[1])
	require.LessOrEqual(t, float64(blocks[1]), 1.5*float64(blocks[0]))
	times := make([][]time.Duration, len(sizes))
	none := func(context.Context, pg.Tx, engine.Message) error { return nil }
	for range 20 {
		for i, pool := range pools {
			for range 50 {
				tx, err := pool.Begin(t.Context())
				require.NoError(t, err)
				w, err := engine.Options{Handle: none}.Worker(pg.FromPgxTx(tx), noDB{})
				require.NoError(t, err)
				a, found, _ := w.Step(t.Context())
				require.True(t, found)
				require.Positive(t, a.Waited)
				times[i] = append(times[i], a.Waited)
				require.NoError(t, tx.Rollback(t.Context()))
			}
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	few, many := times[0][len(times[0])/2], times[1][len(times[1])/2]
	t.Logf("a claim takes %v of %d waiting, %v of %d: %.2f times", few, sizes[0], many, sizes[1],
		float64(many)/float64(few))
}

// noDB begins nothing, so that a step ends behind its claim.
type noDB struct{ pg.DB }

func (noDB) NeedsMark() bool { return false }

func (noDB) Begin(context.Context, ...*pg.Stmt) (pg.OwnTx, error) { return nil, errNothing }

// claimBlocks counts the blocks that a claim touches, by the server's own account of it.
func claimBlocks(t *testing.T, pool *pgxpool.Pool) int {
	ctx := t.Context()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	name, err := engine.ParseName("")
	require.NoError(t, err)
	claim := engine.For(name).Texts()[2]
	require.Contains(t, claim, "picked")
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	explain := `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ` + claim
	for range 2 { // the first one fills caches of the catalog's
		require.NoError(t, tx.QueryRow(ctx, explain, int64(1), int64(1), int64(20), int64(1)).Scan(&plans))
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}
