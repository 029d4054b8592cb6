package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Deliveries of one event, all at once, on two servers: one effect, and every sender is told so.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	s := senders[0]
	pool := migrated(t)
	servers := []*httptest.Server{
		httptest.NewServer(handler(s.provider(newSecret), pool)),
		httptest.NewServer(handler(s.provider(newSecret), pool)),
	}
	var wg sync.WaitGroup
	for n := range 24 {
		wg.Go(func() {
			srv := servers[n%2]
			res, err := send(t.Context(), http.DefaultClient, srv.URL, s, fmt.Sprintf("evt_%d", n%3))
			if err != nil || res != http.StatusOK {
				t.Errorf("%d, %v", res, err)
			}
		})
	}
	wg.Wait()
	for _, srv := range servers {
		srv.Close()
	}
	require.Equal(t, 3, effects(t, pool))
}

// send makes one attempt to deliver an event, signed anew.
func send(ctx context.Context, client *http.Client, url string, s sender, id string) (int, error) {
	now := time.Now()
	body := s.body(id, "thing.made", now)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	r.Header = s.sign(id, "thing.made", body, now, newSecret)
	res, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}

// lossy is a proxy that loses requests and answers, delivers twice, and is slow.
type lossy struct {
	target string
	mu     sync.Mutex
	rng    *rand.Rand
	lost   [2]atomic.Int64 // requests, answers
}

func (p *lossy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	dice := p.rng.IntN(10)
	p.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	forward := func() (int, error) {
		out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, p.target, bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		out.Header = r.Header.Clone()
		res, err := http.DefaultClient.Do(out)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, errors.Join(err, res.Body.Close())
	}
	switch dice {
	case 0, 1: // the request is lost
		p.lost[0].Add(1)
		panic(http.ErrAbortHandler)
	case 2, 3: // the answer is lost
		p.lost[1].Add(1)
		_, _ = forward()
		panic(http.ErrAbortHandler)
	case 4: // the answer comes too late for the sender's timeout; the first attempt may be at work with the second
		p.lost[1].Add(1)
		_, _ = forward()
		<-r.Context().Done()
		return
	case 5: // the network delivers twice
		_, _ = forward()
	}
	code, err := forward()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(code)
}

// Senders that repeat until they get a 2xx, over a network that loses requests and answers, in a database that cuts
// connections and fails commits at times: each event has one effect.
func TestLossyNetwork(t *testing.T) {
	for _, s := range []sender{senders[0], senders[2]} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			const clients, events = 8, 12
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			pool := migrated(t)
			_, err := pool.Exec(t.Context(), `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN IF random() < 0.2 THEN RAISE EXCEPTION 'not now'; END IF; RETURN NEW; END $$;
				CREATE CONSTRAINT TRIGGER t AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION fail()`)
			require.NoError(t, err)
			srv := httptest.NewServer(handler(s.provider(newSecret), pool))
			defer srv.Close()
			proxy := &lossy{target: srv.URL, rng: rand.New(rand.NewPCG(seed, 1))}
			net := httptest.NewServer(proxy)
			defer net.Close()
			var attempts atomic.Int64
			var wg sync.WaitGroup
			for c := range clients {
				wg.Go(func() {
					client := &http.Client{Timeout: 700 * time.Millisecond}
					for n := range events {
						id := fmt.Sprintf("evt_%d", (n+c/2)%events) // every event is sent by every client
						for {
							attempts.Add(1)
							code, err := send(t.Context(), client, net.URL, s, id)
							if err == nil && code == http.StatusOK {
								break
							}
							if err == nil && code < 500 || t.Context().Err() != nil {
								t.Errorf("%s: %d", id, code)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, events, effects(t, pool))
			require.Equal(t, events, count(t, pool, `SELECT count(DISTINCT id) FROM effects`))
			require.Positive(t, proxy.lost[0].Load())
			require.Positive(t, proxy.lost[1].Load())
			t.Logf("%d attempts for %d deliveries", attempts.Load(), clients*events)
		})
	}
}

// A COMMIT that fails leaves nothing, and one whose reply is lost is settled.
func TestCommit(t *testing.T) {
	t.Parallel()
	s := senders[0]
	t.Run("fails", func(t *testing.T) {
		t.Parallel()
		pool := migrated(t)
		_, err := pool.Exec(t.Context(), `CREATE TABLE parents (id text PRIMARY KEY);
			ALTER TABLE effects ADD FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED`)
		require.NoError(t, err)
		h := handler(s.provider(newSecret), pool)
		require.Equal(t, 500, answer(h, s.request("evt_1", "a", newSecret)).Code)
		require.Zero(t, count(t, pool, `SELECT count(*) FROM processed_events`))
		_, err = pool.Exec(t.Context(), `INSERT INTO parents VALUES ('evt_1')`)
		require.NoError(t, err)
		require.Equal(t, 200, answer(h, s.request("evt_1", "a", newSecret)).Code)
		require.Equal(t, 1, effects(t, pool))
	})
	for _, mode := range []faultconn.Mode{faultconn.DropReply, faultconn.DropBefore} {
		for _, refuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, server away %v", mode, refuse), func(t *testing.T) {
				t.Parallel()
				cfg := pgtest.Config(t)
				pool := pgtest.PoolConfig(t, cfg.Copy())
				setup(t, pool)
				script := &faultconn.Script{When: faultconn.Commit, Mode: mode, Refuse: refuse}
				cfg.MaxConns, cfg.MinConns = 2, 0
				cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
				script.Attach(&cfg.ConnConfig.Config)
				broken, err := pgxpool.NewWithConfig(t.Context(), cfg)
				require.NoError(t, err)
				defer broken.Close()

				h := handler(s.provider(newSecret), broken)
				h.Timeout = 5 * time.Second
				w := answer(h, s.request("evt_1", "a", newSecret))
				require.Equal(t, 1, script.Hits())
				if refuse {
					require.Equal(t, 503, w.Code)
					require.NotEmpty(t, w.Header().Get("Retry-After"))
				} else {
					require.Equal(t, 200, w.Code)
				}
				script.Release()
				require.Equal(t, 200, answer(h, s.request("evt_1", "a", newSecret)).Code)
				require.Equal(t, 1, effects(t, pool))
			})
		}
	}
}

// An error of the effect's is not one about the event, whatever it wraps: the sender repeats.
func TestErrorsOfEffect(t *testing.T) {
	t.Parallel()
	s := senders[0]
	pool := migrated(t)
	for _, c := range []struct {
		err  error
		code int
	}{
		{idem.ErrPayloadMismatch, 500},
		{idem.ErrExpired, 500},
		{&idem.FinalError{}, 500},
		{webhook.ErrSignature, 500},
		{idem.ErrInProgress, 503},
		{webhook.ErrMalformed, 422},
	} {
		h := handler(s.provider(newSecret), pool)
		h.Sink = webhook.Effect{DB: pool, Fn: func(context.Context, pgx.Tx, webhook.Event) error {
			return fmt.Errorf("around: %w", c.err)
		}}
		var told error
		h.Report = func(_ context.Context, _ webhook.Event, _ idem.Outcome, err error) { told = err }
		require.Equal(t, c.code, answer(h, s.request("evt_1", "a", newSecret)).Code, c.err)
		require.ErrorIs(t, told, c.err)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM processed_events`))
}

// Two events of one change are one by object and type, where the type is listed, and nowhere else.
func TestByObject(t *testing.T) {
	t.Parallel()
	s := senders[0]
	pool := migrated(t)
	h := handler(webhook.Stripe{Secrets: []string{newSecret}, ByObject: []string{"charge.succeeded"}}, pool)
	for _, id := range []string{"evt_1", "evt_2", "evt_1"} { // both of ch_1
		require.Equal(t, 200, answer(h, s.request(id, "charge.succeeded", newSecret)).Code)
	}
	require.Equal(t, 1, effects(t, pool))
	for _, id := range []string{"evt_3", "evt_4", "evt_3"} {
		require.Equal(t, 200, answer(h, s.request(id, "charge.updated", newSecret)).Code)
	}
	require.Equal(t, 3, effects(t, pool))
}

// What is delivered again after its key was purged is refused, not run again.
func TestExpired(t *testing.T) {
	t.Parallel()
	s := senders[0]
	pool := migrated(t)
	h := handler(webhook.Stripe{Secrets: []string{newSecret}, Dated: true}, pool)
	short := dedup.Table{Retention: time.Hour, ShortRetention: true}
	h.Sink = webhook.Effect{DB: pool, Fn: book, Once: idem.Once{Table: short}}
	deliver := func(id string, made time.Time) int {
		now := time.Now()
		body := s.body(id, "a", made)
		r := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader([]byte(body)))
		r.Header = s.sign(id, "a", body, now, newSecret)
		return answer(h, r).Code
	}
	require.Equal(t, 422, deliver("evt_1", time.Now().Add(-2*time.Hour)))
	require.Equal(t, 503, deliver("evt_1", time.Now().Add(24*time.Hour)), "a clock is wrong, and may be put right")
	require.Zero(t, effects(t, pool))
	require.Equal(t, 200, deliver("evt_1", time.Now()))

	h.Provider = s.provider(newSecret) // an old event, delivered for the first time: by hand, or of a test
	require.Equal(t, 200, deliver("evt_2", time.Now().Add(-300*24*time.Hour)))
	require.Equal(t, 2, effects(t, pool))
}

// A table of layout Weekly takes keys with a time, and no others. That is the setup's fault, not the event's.
func TestWeekly(t *testing.T) {
	t.Parallel()
	s := senders[0]
	pool := migrated(t)
	table := dedup.Table{Name: "weekly_events", Layout: dedup.Weekly}
	require.NoError(t, dedup.Migrate(t.Context(), pool, table))
	for dated, code := range map[bool]int{true: 200, false: 500} {
		h := handler(webhook.Stripe{Secrets: []string{newSecret}, Dated: dated}, pool)
		h.Sink = webhook.Effect{DB: pool, Fn: book, Once: idem.Once{Table: table}}
		require.Equal(t, code, answer(h, s.request("evt_1", "a", newSecret)).Code)
	}
	require.Equal(t, 1, effects(t, pool))
}

// The handlers under everything that a network and a database can do. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	for _, s := range []sender{senders[0], senders[1], senders[2]} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := idemtest.Kit[string]{
				Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
					if err := dedup.Migrate(ctx, pool); err != nil {
						return err
					}
					_, err := pool.Exec(ctx, schema)
					return err
				},
				Handler: idemtest.HTTP(
					func(id string) *http.Request { return s.request(id, "thing.made", newSecret) },
					func(db *idemtest.DB) http.Handler { return handler(s.provider(newSecret), db.Pool()) }),
				Deliveries: []string{"evt_1", "evt_2"},
				Keys: []func(string) idem.Key{func(id string) idem.Key {
					return idem.Scope{Source: s.name, Operation: "book"}.Key(id)
				}},
			}
			if !idemtest.Child() {
				k.DSN = pgtest.DSN(t)
			}
			k.All(t)
		})
	}
}
