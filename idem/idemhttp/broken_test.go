package idemhttp_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
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
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/pgserver"
	"github.com/pgonce/pgonce/internal/pgtest"
)

// The middleware under everything that a client does: twice, at once, cut at every statement. See package idemtest.
func TestBroken(t *testing.T) {
	t.Parallel()
	config := idemhttp.Config{Caller: idemhttp.Anonymous, OnError: func(*http.Request, error) {}}
	for name, open := range map[string]func(db *idemtest.DB) (wrap, error){
		"pgx": func(db *idemtest.DB) (wrap, error) { return idemhttp.New(db.Pool(), idem.Once{}, config) },
		"sql": func(db *idemtest.DB) (wrap, error) { return idemhttp.NewSQL(db.SQL(), idemsql.Once{}, config) },
	} {
		t.Run(name, func(t *testing.T) {
			k := idemtest.Kit[string]{
				Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
					if err := dedup.Migrate(ctx, pool); err != nil {
						return err
					}
					_, err := pool.Exec(ctx, `CREATE TABLE effects (ref text)`)
					return err
				},
				Handler: idemtest.HTTP(
					func(key string) *http.Request {
						r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("b"))
						r.Header.Set("Idempotency-Key", key)
						return r
					},
					func(db *idemtest.DB) http.Handler {
						once, err := open(db)
						if err != nil {
							t.Error(err)
						}
						return once(http.HandlerFunc(pay))
					}),
				Deliveries: []string{"k1", "k2"},
			}
			if !idemtest.Child() {
				k.DSN = pgtest.DSN(t)
			}
			k.All(t)
		})
	}
}

// Clients send requests again and again until they have an answer, while the server is killed: one effect for each key,
// and every client ends with the first response, byte for byte.
func TestKilledServer(t *testing.T) {
	clients, keys, kills, size := 8, 40, 3, 1000
	if os.Getenv("PGONCE_LONG") != "" {
		keys, kills = 2000, 20
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, dedup.Migrate(ctx, pool))
	_, err = pool.Exec(ctx, `CREATE TABLE effects (ref text NOT NULL)`)
	require.NoError(t, err)
	once, err := idemhttp.New(pool, idem.Once{Tries: 2}, idemhttp.Config{
		Caller: idemhttp.Anonymous, OnError: func(*http.Request, error) {},
	})
	require.NoError(t, err)
	var runs, failed, sent atomic.Int64
	web := httptest.NewServer(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r); err != nil {
			idemhttp.Fail(r.Context(), err)
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "run %d %x", runs.Add(1), strings.Repeat("\x00\xff", size)) // no two runs answer alike
	})))
	defer web.Close()

	// Each key has five requests, of different clients, at different times.
	var deliveries []int
	for k := range keys {
		deliveries = append(deliveries, k, k, k, k, k)
	}
	rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	var mu sync.Mutex
	answers := make([]map[string]bool, keys)
	work := make(chan int)
	b := &bench{T: t}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for k := range work {
				for ctx.Err() == nil {
					sent.Add(1)
					got, err := b.send(web.Client(), http.MethodPost, web.URL, fmt.Sprint("k", k), strings.NewReader("b"))
					if err == nil && got.status == http.StatusCreated {
						mu.Lock()
						if answers[k] == nil {
							answers[k] = map[string]bool{}
						}
						answers[k][got.body] = true
						mu.Unlock()
						break
					}
					failed.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	restarted := make(chan error, 1)
	restarted <- nil
	for i, k := range deliveries {
		if i%((len(deliveries)+kills)/(kills+1)) == 0 && i > 0 { // the clients go on meanwhile
			require.NoError(t, <-restarted)
			require.NoError(t, server.Kill())
			before := failed.Load()
			go func() {
				for failed.Load() == before && ctx.Err() == nil { // somebody has to meet the server that is away
					time.Sleep(time.Millisecond)
				}
				restarted <- server.Restart(ctx)
			}()
		}
		work <- k
	}
	close(work)
	wg.Wait()
	require.NoError(t, <-restarted)
	require.NotZero(t, failed.Load(), "no request met a server that was away")
	require.NoError(t, ctx.Err())
	for k, got := range answers {
		require.Len(t, got, 1, "key %d", k)
	}
	var effects, rows int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM effects`).Scan(&effects))
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM processed_events`).Scan(&rows))
	require.Equal(t, []int{keys, keys}, []int{effects, rows})
	t.Logf("%d requests sent, %d of them failed, %d runs of the handler, %d effects",
		sent.Load(), failed.Load(), runs.Load(), effects)
}
