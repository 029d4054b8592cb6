package conformance_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemhttp/conformance"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is a server that can crash: what it had in memory is gone, and its requests are broken off.
type service struct {
	start   func() http.Handler
	front   *httptest.Server // keeps its address
	mu      sync.Mutex
	backend *httptest.Server
}

func newService(t *testing.T, start func() http.Handler) *service {
	s := &service{start: start, backend: httptest.NewServer(start())}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			u, _ := url.Parse(s.backend.URL)
			r.SetURL(u)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s.front = httptest.NewServer(proxy)
	t.Cleanup(func() { s.front.Close(); s.backend.Close() })
	return s
}

func (s *service) crash(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend.CloseClientConnections()
	s.backend.Close()
	s.backend = httptest.NewServer(s.start())
	return nil
}

func (s *service) target(effects func(context.Context) (int, error)) conformance.Target {
	return conformance.Target{
		URL: s.front.URL + "/payments", Body: `{"cents": 1}`, Crash: s.crash, Effects: effects,
		Caller: http.Header{"Caller": {"alice"}}, Other: http.Header{"Caller": {"bob"}},
	}
}

// Ours passes whole, through each door.
func TestOurs(t *testing.T) {
	t.Parallel()
	for _, door := range []string{"pgx", "database/sql"} {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			db, err := sql.Open("pgx", dsn)
			require.NoError(t, err)
			t.Cleanup(func() { _ = db.Close() })
			require.NoError(t, idemsql.Migrate(t.Context(), db))
			_, err = db.ExecContext(t.Context(), `CREATE TABLE effects (id serial)`)
			require.NoError(t, err)
			const insert = `INSERT INTO effects DEFAULT VALUES RETURNING id`
			c := idemhttp.Config{
				Caller:  func(r *http.Request) (string, error) { return r.Header.Get("Caller"), nil },
				OnError: func(*http.Request, error) {},
			}
			poolConfig, err := pgxpool.ParseConfig(dsn)
			require.NoError(t, err)
			pool := pgtest.PoolConfig(t, poolConfig)
			pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var id int
				var err error
				if tx, ok := idemhttp.Tx(r.Context()); ok {
					err = tx.QueryRow(r.Context(), insert).Scan(&id)
				} else if tx, ok := idemhttp.SQLTx(r.Context()); ok {
					err = tx.QueryRowContext(r.Context(), insert).Scan(&id)
				}
				if err != nil {
					idemhttp.Fail(r.Context(), err)
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				time.Sleep(5 * time.Millisecond)
				fmt.Fprint(w, id)
			})
			s := newService(t, func() http.Handler {
				once, err := idemhttp.New(pool, idem.Once{}, c)
				if door != "pgx" {
					once, err = idemhttp.NewSQL(db, idemsql.Once{}, c)
				}
				if err != nil {
					t.Error(err)
				}
				return once(pay)
			})
			report := conformance.Run(t.Context(), s.target(func(ctx context.Context) (n int, err error) {
				err = db.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n)
				return n, err
			}))
			t.Logf("\n%s", report)
			require.True(t, report.OK(), "\n%s", report)
		})
	}
}

// naive is what is often written: look the key up, run, keep the response.
type naive struct {
	mu   sync.Mutex
	seen map[string][]byte
	next func() []byte
}

func (n *naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	n.mu.Lock()
	kept, ok := n.seen[key]
	n.mu.Unlock()
	if ok {
		_, _ = w.Write(kept)
		return
	}
	answer := n.next()
	n.mu.Lock()
	n.seen[key] = answer
	n.mu.Unlock()
	_, _ = w.Write(answer)
}

// A naive middleware passes where it should, and fails where it should.
func TestNaive(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64 // in a database, which outlives the process
	s := newService(t, func() http.Handler {
		return &naive{seen: map[string][]byte{}, next: func() []byte {
			n := effects.Add(1)
			time.Sleep(20 * time.Millisecond)
			return bytes.Repeat([]byte{'x'}, int(n))
		}}
	})
	count := func(context.Context) (int, error) { return int(effects.Load()), nil }
	report := conformance.Run(t.Context(), s.target(count))
	got := map[string]conformance.Verdict{}
	for _, r := range report {
		got[r.Check] = r.Verdict
	}
	require.Equal(t, map[string]conformance.Verdict{
		"missing": conformance.Fail, "malformed": conformance.Fail, "replay": conformance.Pass, "mismatch": conformance.Fail,
		"concurrent": conformance.Fail, "crash": conformance.Fail, "callers": conformance.Fail,
	}, got, "\n%s", report)
	require.False(t, report.OK())
}

// What cannot be checked is said, and is no pass.
func TestNotRun(t *testing.T) {
	t.Parallel()
	same := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "always") }))
	defer same.Close()
	report := conformance.Run(t.Context(), conformance.Target{URL: same.URL})
	require.Equal(t, conformance.NotRun, report[2].Verdict, "\n%s", report)
	require.Equal(t, conformance.NotRun, report[6].Verdict, "\n%s", report)
	require.False(t, report.OK())
	require.False(t, conformance.Report{}.OK())

	away := conformance.Run(t.Context(), conformance.Target{URL: "http://127.0.0.1:1"})
	require.Equal(t, conformance.Fail, away[0].Verdict)
}

// A redirect is an answer, and not followed: the callers' credentials are for one host.
func TestRedirected(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	for _, client := range []*http.Client{nil, srv.Client()} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		report := conformance.Run(ctx, conformance.Target{
			URL: srv.URL, Caller: http.Header{"X-Api-Key": {"secret"}}, Client: client,
		})
		cancel()
		require.Equal(t, conformance.Fail, report[0].Verdict, "\n%s", report)
		require.Equal(t, conformance.NotRun, report[2].Verdict, "\n%s", report)
	}
	require.Zero(t, elsewhere.Load())
	require.Nil(t, srv.Client().CheckRedirect, "the user's client stays as it is")
}
