package idemhttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// trips counts what a client sends: the drivers write once a round trip.
type trips struct{ n atomic.Int64 }

type tripConn struct {
	net.Conn
	t *trips
}

func (c tripConn) Write(b []byte) (int, error) { c.t.n.Add(1); return c.Conn.Write(b) }

func (t *trips) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return tripConn{c, t}, err
}

func (t *trips) Dial(network, address string) (net.Conn, error) {
	return t.DialContext(context.Background(), network, address)
}

func (t *trips) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return t.Dial(network, address)
}

// tripDoors open the middleware on one connection whose round trips are counted.
var tripDoors = map[string]func(t *testing.T, dsn string, tr *trips) wrap{
	"pgx": func(t *testing.T, dsn string, tr *trips) wrap {
		cfg, err := pgxpool.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.MaxConns, cfg.ConnConfig.DialFunc = 1, tr.DialContext
		once, err := idemhttp.New(pgtest.PoolConfig(t, cfg), idem.Once{}, config())
		require.NoError(t, err)
		return once
	},
	"stdlib": func(t *testing.T, dsn string, tr *trips) wrap {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.DialFunc = tr.DialContext
		return tripSQL(t, stdlib.OpenDB(*cfg))
	},
	"pq": func(t *testing.T, dsn string, tr *trips) wrap {
		c, err := pq.NewConnector(dsn)
		require.NoError(t, err)
		c.Dialer(tr)
		return tripSQL(t, sql.OpenDB(c))
	},
}

func tripSQL(t *testing.T, db *sql.DB) wrap {
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	once, err := idemhttp.NewSQL(db, idemsql.Once{}, config())
	require.NoError(t, err)
	return once
}

// local serves a request with a key and a body, without a network.
func local(h http.Handler, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A first request takes a round trip to begin and claim, one to store the response, and one to commit, beside the
// handler's own. A retry that reaches the same process takes one with pgx, and one that reaches another process two.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	type counts struct{ first, again, elsewhere int64 }
	for name, want := range map[string]counts{
		"pgx":    {4, 1, 2},
		"stdlib": {8, 1, 6},
		"pq":     {11, 2, 9},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, doors[0])
			tr := &trips{}
			here := tripDoors[name](t, b.dsn, tr)(http.HandlerFunc(pay))
			there := tripDoors[name](t, b.dsn, tr)(http.HandlerFunc(pay))
			of := func(h http.Handler, key string) int64 {
				before := tr.n.Load()
				require.Equal(t, http.StatusCreated, local(h, key, "b").Code)
				return tr.n.Load() - before
			}
			var got counts
			for n := range 4 { // the last one counts: by then every statement is prepared
				key := fmt.Sprint("k", n)
				got = counts{first: of(here, key), again: of(here, key), elsewhere: of(there, key)}
				if n == 3 {
					require.Equal(t, got.again, of(there, key), "by then it is known there, too")
				}
			}
			require.Equal(t, want, got)
		})
	}
}

// What a process remembers of a key decides nothing: the row does, whatever has become of it.
func TestKnownIsAGuess(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.standard(pay)
		for i, c := range []struct {
			name, change string
			body         string
			status       int
			problem      string
			replayed     bool
		}{
			{"as it was", ``, "b", 201, "", true},
			{"another body", ``, "c", 422, "mismatch", false},
			{"purged", `DELETE FROM processed_events`, "b", 201, "", false},
			{"purged and used again", `UPDATE processed_events SET payload_hash = sha256('other')`, "b", 422, "mismatch", false},
			{"without a value", `UPDATE processed_events SET value = NULL`, "b", 500, "failed", false},
			{"with another value", `UPDATE processed_events SET value = '[1]'`, "b", 500, "failed", false},
			{"reserved", `UPDATE processed_events SET lease_until = now() + interval '1 hour'`, "b", 409, "in-progress", false},
		} {
			b.exec(`TRUNCATE processed_events`)
			key := fmt.Sprint("k", i)
			require.Equal(b, 201, b.post(srv, key, "b").status, c.name)
			require.True(b, b.post(srv, key, "b").replayed(), c.name)
			if c.change != "" {
				b.exec(c.change)
			}
			got := b.post(srv, key, c.body)
			require.Equal(b, []any{c.status, c.replayed}, []any{got.status, got.replayed()}, "%s: %s", c.name, got.body)
			if c.problem != "" {
				b.wantProblem(got, c.status, c.problem)
			}
		}
	})
}

// heard counts what an observer is told.
type heard struct{ executed, duplicates atomic.Int64 }

func (h *heard) Observe(_ context.Context, e dedup.Event) {
	switch e.Outcome {
	case dedup.Executed:
		h.executed.Add(1)
	case dedup.Duplicate:
		h.duplicates.Add(1)
	}
}

// An observer is told of every replay.
func TestReplaysAreObserved(t *testing.T) {
	t.Parallel()
	b := newBench(t, doors[0])
	db := stdlib.OpenDBFromPool(b.pool)
	t.Cleanup(func() { _ = db.Close() })
	var overPgx, overSQL heard
	one, err := idemhttp.New(b.pool, idem.Once{Observer: &overPgx}, config())
	require.NoError(t, err)
	two, err := idemhttp.NewSQL(db, idemsql.Once{Observer: &overSQL}, config())
	require.NoError(t, err)
	for i, once := range []wrap{one, two} {
		h := once(http.HandlerFunc(pay))
		for range 3 {
			require.Equal(t, 201, local(h, fmt.Sprint("k", i), "b").Code)
		}
	}
	for _, h := range []*heard{&overPgx, &overSQL} {
		require.Equal(t, []int64{1, 2}, []int64{h.executed.Load(), h.duplicates.Load()})
	}
}

// A replay allocates little beside what the request does: some of pgx's, some of JSON's, and no buffer for a body.
func TestAllocations(t *testing.T) {
	b := newBench(t, doors[0])
	h := b.wrap(nil, settings{}, config(), pay)
	require.Equal(t, 201, local(h, "k", "b").Code)
	measure := func(h http.Handler) (objects, size uint64) {
		const runs = 200
		local(h, "k", "b")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			local(h, "k", "b")
		}
		runtime.ReadMemStats(&after)
		return (after.Mallocs - before.Mallocs) / runs, (after.TotalAlloc - before.TotalAlloc) / runs
	}
	objects, size := measure(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }))
	objectsOfReplay, sizeOfReplay := measure(h)
	t.Logf("%d allocations of %d bytes beside those of the request", objectsOfReplay-objects, sizeOfReplay-size)
	require.Less(t, objectsOfReplay, objects+120)
	require.Less(t, sizeOfReplay, size+16_000)
}
