package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// model is what must have been published: of each key the events in order, and how far it has come.
type model struct {
	queue map[string][]int // appended and committed, not published or given up
	bad   map[string]int   // the event of a key that the broker does not take; 0: none
	n     int
}

// Whatever is appended, rolled back, published, refused by the broker, lost behind it, retried and given up, in any
// order: each key's events are published in order, none but those given up is missing, and the counts are right.
func TestModel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	tables := 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		tables++
		table := outbox.Table{Name: fmt.Sprint("m", tables)}
		require.NoError(rt, outbox.Migrate(ctx, pool, table))
		m := model{queue: map[string][]int{}, bad: map[string]int{}}
		seen := map[string]int{}
		lose := false
		relay := outbox.Relay{Table: table, MaxAttempts: 2, MinRetry: 1, MaxRetry: 1}
		relay.Publisher = outbox.PublisherFunc(func(_ context.Context, events []outbox.Event) error {
			errs := make(outbox.EventErrors, len(events))
			stopped := map[string]bool{}
			for i, e := range events {
				n, _ := strconv.Atoi(string(e.Payload))
				if stopped[e.Key] || m.bad[e.Key] == n {
					stopped[e.Key] = true
					errs[i] = errors.New("not taken")
					continue
				}
				if n > seen[e.Key] {
					// The first time: it is the next of its key that is left.
					q := m.queue[e.Key]
					require.NotEmpty(rt, q, "key %s", e.Key)
					require.Equal(rt, q[0], n, "key %s", e.Key)
					seen[e.Key], m.queue[e.Key] = n, q[1:]
				}
			}
			if lose {
				lose = false
				panic("behind the broker")
			}
			return errs.Err()
		})
		key := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		drainAll := func() {
			for range 4 {
				_, _ = relay.Drain(ctx, pool)
				_, err := pool.Exec(ctx, `UPDATE `+table.Name+`_lanes SET lease_until = '-infinity'`)
				require.NoError(rt, err)
			}
		}
		appends := func(rt *rapid.T, commit bool) {
			keys := rapid.SliceOfN(key, 1, 5).Draw(rt, "keys")
			var events []outbox.Event
			n := m.n
			for _, k := range keys {
				n++
				events = append(events, ev(k, n))
			}
			tx, err := pool.Begin(ctx)
			require.NoError(rt, err)
			require.NoError(rt, table.Append(ctx, tx, events...))
			if !commit {
				require.NoError(rt, tx.Rollback(ctx))
				return
			}
			require.NoError(rt, tx.Commit(ctx))
			for i, k := range keys {
				m.queue[k] = append(m.queue[k], m.n+1+i)
			}
			m.n = n
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append":   func(rt *rapid.T) { appends(rt, true) },
			"rollback": func(rt *rapid.T) { appends(rt, false) },
			"refuse": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				if q := m.queue[k]; len(q) > 0 && m.bad[k] == 0 {
					m.bad[k] = rapid.SampledFrom(q).Draw(rt, "event")
				}
			},
			"lose": func(*rapid.T) { lose = true; drainAll() },
			"drain": func(rt *rapid.T) {
				drainAll()
				parked, held := int64(0), int64(0)
				for k, q := range m.queue {
					if m.bad[k] == 0 {
						require.Empty(rt, q, "key %s waits for nothing", k)
						continue
					}
					require.Equal(rt, m.bad[k], q[0], "key %s stands at the one that is refused", k)
					parked, held = parked+1, held+int64(len(q))
				}
				lag, err := table.Lag(ctx, pool)
				require.NoError(rt, err)
				require.Equal(rt, []int64{held, held, parked}, []int64{lag.Waiting, lag.Held, lag.Parked})
			},
			"retry": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				m.bad[k] = 0
				_, err := table.Retry(ctx, pool)
				require.NoError(rt, err)
			},
			"discard": func(rt *rapid.T) {
				parked, err := table.Parked(ctx, pool, 1)
				require.NoError(rt, err)
				for _, e := range parked {
					n, err := table.Discard(ctx, pool, e.ID)
					require.NoError(rt, err)
					require.EqualValues(rt, 1, n)
					require.Equal(rt, string(e.Payload), fmt.Sprint(m.queue[e.Key][0]))
					m.queue[e.Key], m.bad[e.Key] = m.queue[e.Key][1:], 0
				}
			},
		})
		m.bad = map[string]int{}
		lose = false
		_, err := table.Retry(ctx, pool)
		require.NoError(rt, err)
		drainAll()
		for k, q := range m.queue {
			require.Empty(rt, q, k)
		}
		var left int
		require.NoError(rt, pool.QueryRow(ctx, `SELECT count(*) FROM `+pgx.Identifier{table.Name}.Sanitize()).Scan(&left))
		require.Zero(rt, left)
		_, err = pool.Exec(ctx, `DROP TABLE `+table.Name+`, `+table.Name+`_lanes`)
		require.NoError(rt, err)
	})
}
