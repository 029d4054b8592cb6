package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// crashing is one way to have an effect on a cluster: keys and effects in a shape, and a call.
type crashing struct {
	name    string
	table   dedup.Table
	effects string // the table, of a tenant and what
	place   string // SQL that puts it onto nodes
	deliver func(ctx context.Context, c crashing, pool *pgxpool.Pool, i int) (idem.Outcome, error)
	each    int // how many keys and effects an event has
}

func crashings(p *provided) []crashing {
	byKey := dedup.Table{Spread: "key"}
	byTenant := func(table string) string {
		return `SELECT create_distributed_table('` + table + `', 'tenant', colocate_with => 'none')`
	}
	return []crashing{
		{"two nodes", byKey, "two", byTenant("two"), byRun, 1},
		{
			"beside its key", byKey, "beside",
			`SELECT create_distributed_table('beside', 'what', colocate_with => 'processed_events')`, byRun, 1,
		},
		{
			"by the source",
			dedup.Table{Name: "by_source", Spread: "source"},
			"sourced",
			`SELECT create_distributed_table('sourced', 'tenant', colocate_with => 'by_source')`, byRun, 1,
		},
		{"a schema", dedup.Table{Name: "tenant.processed_events", Spread: "schema"}, "tenant.effects", `SELECT 1`, byRun, 1},
		{"timed", byKey, "timed", byTenant("timed"), byRun, 1},
		{"DoMany", byKey, "many", byTenant("many"), byMany, 3},
		{"Call", byKey, "called", byTenant("called"), p.byCall, 1},
	}
}

// key is that of an event: its tenant is the source.
func (c crashing) key(i, n int) (key idem.Key, tenant, what string) {
	tenant, what = fmt.Sprint("tenant ", i%7), fmt.Sprint("event ", i, " ", n)
	key = idem.Scope{Source: tenant, Operation: c.name}.Key(what)
	if c.name == "timed" {
		key = key.OccurredAt(time.Now().Add(-time.Duration(i) * time.Second))
	}
	return key, tenant, key.ID()
}

// once has a MaxWait, for a key in doubt is locked.
func (c crashing) once() idem.Once { return idem.Once{Table: c.table, MaxWait: time.Second} }

func (c crashing) effect(ctx context.Context, tx pgx.Tx, tenant, what string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+c.effects+` (tenant, what) VALUES ($1, $2)`, tenant, what)
	return err
}

func byRun(ctx context.Context, c crashing, pool *pgxpool.Pool, i int) (idem.Outcome, error) {
	key, tenant, what := c.key(i, 0)
	return c.once().Run(ctx, pool, key,
		func(ctx context.Context, tx pgx.Tx) error { return c.effect(ctx, tx, tenant, what) })
}

func byMany(ctx context.Context, c crashing, pool *pgxpool.Pool, i int) (out idem.Outcome, err error) {
	keys := make([]idem.Key, c.each)
	for n := range keys {
		keys[n], _, _ = c.key(i, n)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		all, err := c.once().DoMany(ctx, tx, keys, func(ctx context.Context, tx pgx.Tx, fresh []int) error {
			for _, n := range fresh {
				_, tenant, what := c.key(i, n)
				if err := c.effect(ctx, tx, tenant, what); err != nil {
					return err
				}
			}
			return nil
		})
		for _, r := range all {
			err = errors.Join(err, r.Err)
			out = r.Outcome
		}
		return err
	})
	return out, err
}

// provided is who is called; it knows each external key.
type provided struct {
	mu      sync.Mutex
	charged map[string]int
}

func (p *provided) byCall(ctx context.Context, c crashing, pool *pgxpool.Pool, i int) (idem.Outcome, error) {
	key, tenant, what := c.key(i, 0)
	_, out, err := idem.Call[int]{
		Once: c.once(), Lease: time.Second, Remembers: time.Hour,
		Send: func(_ context.Context, external string) (int, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.charged[external]++
			return i, nil
		},
		Apply: func(ctx context.Context, tx pgx.Tx, _ int) error { return c.effect(ctx, tx, tenant, what) },
	}.Run(ctx, pool, key)
	return out, err
}

// Nodes of a cluster are killed and restarted under load, workers and the coordinator, for each shape of tables and
// each kind of call. The workers of the test deliver again what failed: effects = distinct events.
func TestKilledNodeOnCitus(t *testing.T) {
	t.Parallel()
	kills, events := 4, 60
	if long {
		kills, events = 100, 600
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	// What a killed node has left in doubt is settled by the coordinator, after a minute as it comes.
	cluster := pgtest.NewOwnCluster(t, map[string]string{"citus.recover_2pc_interval": "1s"})
	pool, err := pgxpool.New(ctx, cluster.DSNs[0])
	require.NoError(t, err)
	defer pool.Close()
	exec := func(sql string) {
		t.Helper()
		_, err := pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`CREATE SCHEMA tenant`)
	provider := &provided{charged: map[string]int{}}
	all := crashings(provider)
	for _, c := range all {
		require.NoError(t, dedup.Migrate(ctx, pool, c.table))
		exec(`CREATE TABLE ` + c.effects + ` (tenant text COLLATE "C" NOT NULL, what text COLLATE "C" NOT NULL)`)
		exec(c.place)
	}

	r := seeded(t)
	type delivery struct{ c, i int }
	var deliveries []delivery
	for c := range all {
		for i := range events {
			deliveries = append(deliveries, delivery{c, i}, delivery{c, i}, delivery{c, i})
		}
	}
	// Near each other as redeliveries are, with all kinds at once.
	slices.SortStableFunc(deliveries, func(a, b delivery) int { return a.i - b.i })
	queue := make(chan delivery, len(deliveries)) // never full: a failed delivery is put back
	for _, d := range deliveries {
		queue <- d
	}
	total := int64(len(deliveries))
	var left, executed, duplicate, again, unknown atomic.Int64
	left.Store(total)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				select {
				case d := <-queue:
					out, err := all[d.c].deliver(ctx, all[d.c], pool, d.i)
					switch {
					case err != nil: // a consumer of a broker does not acknowledge, whatever it is
						again.Add(1)
						queue <- d
					case out == idem.Executed:
						executed.Add(1)
						left.Add(-1)
					default:
						duplicate.Add(1)
						left.Add(-1)
					}
					if own := new(idem.Error); errors.As(err, &own) && own.Unknown {
						unknown.Add(1)
					}
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	begun := time.Now()
	nodes := make([]int, kills)
	for i := range nodes {
		nodes[i] = i % len(cluster.DSNs)
	}
	r.Shuffle(kills, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for i, node := range nodes {
		want := total - total*int64(i+1)/int64(kills+2)
		require.Eventually(t, func() bool { return left.Load() <= want }, 3*time.Minute, time.Millisecond)
		require.NoError(t, cluster.Kill(node))
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond) // as a machine that comes again
		require.NoError(t, cluster.Restart(ctx, node))
	}
	wg.Wait()
	require.Zero(t, left.Load(), "the workers did not recover")
	// What is in doubt is not seen yet.
	require.Eventually(t, func() bool {
		var open int
		err := pool.QueryRow(ctx, `SELECT sum(result::int)::int FROM run_command_on_all_nodes('SELECT count(*) FROM pg_prepared_xacts')`).Scan(&open)
		return err == nil && open == 0
	}, time.Minute, 100*time.Millisecond)
	coordinator := len(slices.DeleteFunc(slices.Clone(nodes), func(n int) bool { return n != 0 }))
	t.Logf("%d kills, %d of them of the coordinator: %d deliveries, %d executed, %d duplicates, %d delivered again, %d "+
		"calls of unknown outcome; %v",
		kills, coordinator, total, executed.Load(), duplicate.Load(), again.Load(), unknown.Load(),
		time.Since(begun).Round(time.Second))
	for _, c := range all {
		name := c.table.Name
		if name == "" {
			name = "processed_events"
		}
		var effects, distinct, keys, open int
		require.NoError(t, pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT what) FROM `+c.effects).Scan(&effects,
			&distinct))
		require.NoError(t, pool.QueryRow(ctx, `SELECT count(*), count(lease_until) FROM `+name+` WHERE operation = $1`,
			c.name).Scan(&keys, &open))
		want := events * c.each
		t.Logf("%s: %d keys, %d effects, %d distinct", c.name, keys, effects, distinct)
		require.Equal(t, []int{want, want, want, 0}, []int{keys, distinct, effects, open},
			"%s: keys, distinct effects, effects, open reservations", c.name)
	}
	require.Len(t, provider.charged, events, "external keys")
}
