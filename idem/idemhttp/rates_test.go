package idemhttp_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

type receipt struct {
	ID    int64  `json:"id"`
	Text  string `json:"text"`
	Cents int    `json:"cents"`
}

// receive makes a payment in tx.
func receive(ctx context.Context, tx pgx.Tx) (v receipt, err error) {
	v.Text, v.Cents = strings.Repeat("thanks ", 10), 1200
	err = tx.QueryRow(ctx, `INSERT INTO payments (cents) VALUES (1200) RETURNING id`).Scan(&v.ID)
	return v, err
}

func answer(w http.ResponseWriter, v receipt, err error) {
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(v)
}

// What the middleware costs beside the same handler with idem.Run inside, and what a replay takes: rates of 8 clients
// over HTTP. PGONCE_LONG=1 runs it, on a machine with nothing else to do: under load it is each round trip that counts.
func TestRates(t *testing.T) {
	if os.Getenv("PGONCE_LONG") == "" {
		return // a measurement; what it measures is tested elsewhere
	}
	for name, settings := range map[string]map[string]string{"fsync on": nil, "fsync off": pgserver.FastAndUnsafe()} {
		t.Run(name, func(t *testing.T) { measure(t, settings) })
	}
}

func measure(t *testing.T, settings map[string]string) {
	ctx := t.Context()
	server, err := pgserver.Start(ctx, pgserver.Config{Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	cfg, err := pgxpool.ParseConfig(server.DSN("postgres"))
	require.NoError(t, err)
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, dedup.Migrate(ctx, pool))
	_, err = pool.Exec(ctx, `CREATE TABLE payments (id bigserial PRIMARY KEY, cents int)`)
	require.NoError(t, err)

	scope := idem.Scope{Source: "http", Operation: "pay"}
	keyOf := func(r *http.Request) idem.Key {
		body, _ := io.ReadAll(r.Body)
		return scope.Key(r.Header.Get("Idempotency-Key")).WithPayload(body)
	}
	once, err := idemhttp.New(pool, idem.Once{}, idemhttp.Config{Caller: idemhttp.Anonymous})
	require.NoError(t, err)
	behind := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idemhttp.Tx(r.Context())
		v, err := receive(r.Context(), tx)
		answer(w, v, err)
	}))
	variants := []struct {
		name    string
		replays bool
		h       http.Handler
	}{
		{"idem.Run inside", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var v receipt
			_, err := idem.Run(r.Context(), pool, keyOf(r), func(ctx context.Context, tx pgx.Tx) (err error) {
				v, err = receive(ctx, tx)
				return err
			})
			answer(w, v, err)
		})},
		{"idem.Returning inside", false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v, _, err := idem.Returning[receipt]{Once: idem.Once{MaxWait: time.Second}}.Run(r.Context(), pool, keyOf(r), receive)
			answer(w, v, err)
		})},
		{"the middleware", false, behind},
		{"a replay", true, behind},
	}
	servers := make([]*httptest.Server, len(variants))
	known := make([]string, 100)
	for i, v := range variants {
		servers[i] = httptest.NewServer(v.h)
		t.Cleanup(servers[i].Close)
		servers[i].Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 8
	}
	for i := range known {
		known[i] = rand.Text()
		order(t, servers[len(servers)-1], known[i])
	}
	const turns, slice = 40, 100 * time.Millisecond
	times := make([][]float64, len(variants)) // of a request, in ms
	for range turns {
		for i, v := range variants { // short slices in turn: what else goes on falls on all alike
			var done atomic.Int64
			begun := time.Now()
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for n := w; time.Since(begun) < slice; n++ {
						key := known[n%len(known)]
						if !v.replays {
							key = rand.Text()
						}
						order(t, servers[i], key)
						done.Add(1)
					}
				})
			}
			wg.Wait()
			times[i] = append(times[i], time.Since(begun).Seconds()*1e3*8/float64(done.Load()))
		}
	}
	var median [4][4]float64
	for i, v := range variants {
		var spread []float64
		for k := range variants {
			ratios := make([]float64, turns)
			for n := range ratios {
				ratios[n] = times[i][n] / times[k][n]
			}
			slices.Sort(ratios)
			median[i][k] = ratios[turns/2]
			if k == 0 {
				spread = ratios
			}
		}
		sorted := slices.Sorted(slices.Values(times[i]))
		t.Logf("%s: %.2f ms of a client's time, %.2f (%.2f to %.2f) of idem.Run inside, %.2f of idem.Returning inside",
			v.name, sorted[turns/2], median[i][0], spread[0], spread[turns-1], median[i][1])
	}
	t.Logf("a replay has %.2f times the rate of a first execution", median[2][3])
	if median[2][0] > 1.15 {
		t.Errorf("the middleware costs more than 15 %% beside idem.Run inside: %.2f", median[2][0])
	}
	if median[2][3] < 3 {
		t.Errorf("a replay has less than 3 times the rate: %.2f", median[2][3])
	}
}

// order sends a request that must succeed.
func order(t *testing.T, srv *httptest.Server, key string) {
	body := strings.NewReader(`{"cents": 1200, "account": "alice"}`)
	req, err := http.NewRequest(http.MethodPost, srv.URL+"/payments", body)
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("answered %d", resp.StatusCode)
	}
}
