package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// migrated returns a pool on a new database with the tables.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	require.NoError(t, outbox.Migrate(t.Context(), pool))
	return pool
}

// ev returns an event whose payload is n.
func ev(key string, n int) outbox.Event {
	return outbox.Event{Topic: "t", Key: key, Payload: []byte(fmt.Sprint(n))}
}

// add appends events in one transaction.
func add(t testing.TB, pool *pgxpool.Pool, events ...outbox.Event) {
	t.Helper()
	addTo(t, pool, outbox.Table{}, events...)
}

func addTo(t testing.TB, pool *pgxpool.Pool, table outbox.Table, events ...outbox.Event) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return table.Append(t.Context(), tx, events...)
	}))
}

// broker keeps what was published, in order. fail says of an event what becomes of it.
type broker struct {
	mu   sync.Mutex
	got  []outbox.Event
	fail func(outbox.Event) error
}

func (b *broker) Publish(_ context.Context, events []outbox.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs, failed := make(outbox.EventErrors, len(events)), map[string]error{}
	for i, e := range events {
		if err := failed[e.Key]; err != nil && e.Key != "" {
			errs[i] = err
			continue
		}
		if b.fail != nil {
			if errs[i] = b.fail(e); errs[i] != nil {
				failed[e.Key] = errs[i]
				continue
			}
		}
		b.got = append(b.got, e)
	}
	return errs.Err()
}

// payloads returns what was published, as "key:payload", of these keys or of all.
func (b *broker) payloads(keys ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []string{}
	for _, e := range b.got {
		if len(keys) == 0 || slices.Contains(keys, e.Key) {
			all = append(all, e.Key+":"+string(e.Payload))
		}
	}
	return all
}

// firsts returns, of each id, the first time that it was published, and how often there was another one.
func (b *broker) firsts() (events []outbox.Event, again int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range b.got {
		if seen[e.ID] {
			again++
			continue
		}
		seen[e.ID] = true
		events = append(events, e)
	}
	return events, again
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// drain publishes what is due, and fails the test on an error of the database's.
func drain(t testing.TB, pool *pgxpool.Pool, r outbox.Relay) outbox.Stats {
	t.Helper()
	s, err := r.Drain(t.Context(), pool)
	require.NoError(t, err)
	return s
}

// quick is a relay that does not wait between attempts.
func quick(p outbox.Publisher) outbox.Relay {
	return outbox.Relay{Publisher: p, MinRetry: time.Microsecond, MaxRetry: time.Microsecond}
}

// problems returns the fixes of what Verify found.
func problems(t testing.TB, err error) (fixes []string) {
	t.Helper()
	var found *dedup.VerifyError
	require.ErrorAs(t, err, &found)
	for _, p := range found.Problems {
		fixes = append(fixes, p.Fix)
	}
	return fixes
}
