package idemhttp_test

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asServer makes the test binary a web server on this database, for as long as whoever started it lives.
const asServer = "IDEMHTTP_TEST_SERVE"

// storming is a handler whose runs all answer differently, with 3 kB.
func storming(db idem.DB) (http.Handler, error) {
	once, err := idemhttp.New(db, idem.Once{Tries: 2}, idemhttp.Config{
		Caller: idemhttp.Anonymous, OnError: func(*http.Request, error) {},
	})
	if err != nil {
		return nil, err
	}
	return once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r); err != nil {
			idemhttp.Fail(r.Context(), err)
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, crand.Text(), strings.Repeat("\x00\xff", 1500))
	})), nil
}

func serveAsProcess(dsn string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err == nil {
		var h http.Handler
		if h, err = storming(pool); err == nil {
			err = http.ListenAndServe(os.Args[1], h) //nolint:gosec // a test, on loopback
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// storm is what clients do: each of eight sends requests, five of each key in all, again and again until they are
// answered with 201. Some give up early, and so have sent a request whose answer is lost. Meanwhile kill is called.
func storm(t *testing.T, pool *pgxpool.Pool, url string, kill func(ctx context.Context, missed func()) error) {
	keys, kills := 40, 3
	if os.Getenv("PGONCE_LONG") != "" {
		keys, kills = 2000, 20
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var deliveries []int
	for k := range keys {
		deliveries = append(deliveries, k, k, k, k, k)
	}
	rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	var mu sync.Mutex
	answers := make([]map[string]bool, keys)
	work := make(chan int)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	var sent, failed atomic.Int64
	send := func(k int) (done bool) {
		patience := 30 * time.Second
		if rand.N(8) == 0 {
			patience = rand.N(10 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		sent.Add(1)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("b"))
		if err != nil {
			return false
		}
		req.Header.Set("Idempotency-Key", fmt.Sprint("k", k))
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusCreated {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if answers[k] == nil {
			answers[k] = map[string]bool{}
		}
		answers[k][string(body)] = true
		return true
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for k := range work {
				for ctx.Err() == nil && !send(k) {
					failed.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	killed := make(chan error, 1)
	killed <- nil
	for i, k := range deliveries {
		if i%((len(deliveries)+kills)/(kills+1)) == 0 && i > 0 { // the clients go on meanwhile
			require.NoError(t, <-killed)
			before := failed.Load()
			go func() {
				killed <- kill(ctx, func() { // somebody has to meet the server that is away
					for failed.Load() == before && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				})
			}()
		}
		work <- k
	}
	close(work)
	wg.Wait()
	require.NoError(t, <-killed)
	require.NoError(t, ctx.Err())
	require.NotZero(t, failed.Load(), "no request met a server that was away")
	for k, got := range answers {
		require.Len(t, got, 1, "key %d", k)
	}
	pool.Reset() // of sessions that ended with the server
	var effects, rows int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM effects`).Scan(&effects))
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM processed_events`).Scan(&rows))
	require.Equal(t, []int{keys, keys}, []int{effects, rows})
	t.Logf("%d requests sent, %d of them failed, %d kills, %d effects", sent.Load(), failed.Load(), kills, effects)
}

// prepared makes the tables of a storm.
func prepared(t *testing.T, pool *pgxpool.Pool) {
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), `CREATE TABLE effects (ref text NOT NULL)`)
	require.NoError(t, err)
}

// While PostgreSQL is killed: one effect for each key, and every client ends with the first response, byte for byte.
func TestKilledServer(t *testing.T) {
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	pool, err := pgxpool.New(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	prepared(t, pool)
	h, err := storming(pool)
	require.NoError(t, err)
	web := httptest.NewServer(h)
	defer web.Close()
	storm(t, pool, web.URL, func(ctx context.Context, missed func()) error {
		if err := server.Kill(); err != nil {
			return err
		}
		missed()
		return server.Restart(ctx)
	})
}

// The same while the web server is killed, by SIGKILL: nothing that it knew outlives it.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	prepared(t, pool)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var cmd *exec.Cmd
	start := func(ctx context.Context) error {
		cmd = exec.Command(os.Args[0], address)
		cmd.Env = append(os.Environ(), asServer+"="+pool.Config().ConnString())
		cmd.Stderr = os.Stderr
		if _, err := cmd.StdinPipe(); err != nil { // closed when this process ends, in whatever way
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		for ctx.Err() == nil {
			if conn, err := net.Dial("tcp", address); err == nil {
				return conn.Close()
			}
			time.Sleep(5 * time.Millisecond)
		}
		return ctx.Err()
	}
	kill := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	require.NoError(t, start(t.Context()))
	t.Cleanup(func() { kill() })
	storm(t, pool, "http://"+address, func(ctx context.Context, missed func()) error {
		kill()
		missed()
		return start(ctx)
	})
}
