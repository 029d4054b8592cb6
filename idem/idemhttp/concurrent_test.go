package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemhttp"
)

// gate holds the first run of a handler.
type gate struct{ entered, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}), make(chan struct{})} }

func (g *gate) pass() {
	close(g.entered)
	<-g.open
}

// Beside a running request another one waits: it gets the response of one that commits, and runs where that is
// rolled back.
func TestWaiter(t *testing.T) {
	everyDoor(t, func(b *bench) {
		for _, commits := range []bool{true, false} {
			b.exec(`TRUNCATE effects, processed_events`)
			b.runs.Store(0)
			g := newGate()
			srv := b.serve(b.wrap(nil, settings{wait: time.Minute}, config(), func(w http.ResponseWriter, r *http.Request) {
				if b.runs.Load() == 1 {
					require.NoError(t, effect(r))
					g.pass()
					if !commits {
						http.Error(w, "no", http.StatusBadGateway)
						return
					}
					fmt.Fprint(w, "first")
					return
				}
				pay(w, r)
			}))
			first, second := make(chan reply, 1), make(chan reply, 1)
			go func() { first <- b.post(srv, "k", "b") }()
			<-g.entered
			go func() { second <- b.post(srv, "k", "b") }()
			b.blocked()
			close(g.open)
			if one, two := <-first, <-second; commits {
				require.Equal(t, []any{200, "first", false}, []any{one.status, one.body, one.replayed()})
				require.Equal(t, []any{200, "first", true}, []any{two.status, two.body, two.replayed()})
				b.wants(1, 1, 1)
			} else {
				require.Equal(t, 502, one.status)
				require.Equal(t, []any{201, "paid 1 bytes", false}, []any{two.status, two.body, two.replayed()})
				b.wants(2, 1, 1)
			}
		}
	})
}

// blocked waits for a session that waits for another one.
func (b *bench) blocked() {
	b.Helper()
	require.Eventually(b, func() bool {
		return b.count(`pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, 30*time.Second, 5*time.Millisecond)
}

// Who has waited for MaxWait is told to come again.
func TestInProgress(t *testing.T) {
	everyDoor(t, func(b *bench) {
		g := newGate()
		short := settings{wait: 20 * time.Millisecond}
		srv := b.serve(b.wrap(nil, short, config(), func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			pay(w, r)
		}))
		first := make(chan reply, 1)
		go func() { first <- b.post(srv, "k", "b") }()
		<-g.entered
		got := b.post(srv, "k", "b")
		b.wantProblem(got, 409, "in-progress")
		require.Equal(t, "1", got.header.Get("Retry-After"))
		close(g.open)
		require.Equal(t, 201, (<-first).status)
		require.True(t, b.post(srv, "k", "b").replayed())
		b.wants(1, 1, 1)
	})
}

// Many requests with one key make one effect, and one response for all.
func TestStorm(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.serve(b.wrap(nil, settings{wait: time.Minute}, config(), func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			fmt.Fprintf(w, "run %d", b.runs.Load())
		}))
		var wg sync.WaitGroup
		replies := make([]reply, 12)
		for i := range replies {
			wg.Go(func() { replies[i] = b.post(srv, "k", "b") })
		}
		wg.Wait()
		fresh := 0
		for _, r := range replies {
			require.Equal(t, []any{200, "run 1"}, []any{r.status, r.body})
			if !r.replayed() {
				fresh++
			}
		}
		require.Equal(t, 1, fresh)
		b.wants(1, 1, 1)
	})
}

// A client that goes before COMMIT leaves nothing.
func TestGone(t *testing.T) {
	everyDoor(t, func(b *bench) {
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				defer close(ended)
				require.NoError(t, effect(r))
				cancel() // not before: the retry would be the first run, and wait for ever
				<-r.Context().Done()
				fmt.Fprint(w, "too late")
				return
			}
			pay(w, r)
		})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/payments", strings.NewReader("b"))
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "k")
		_, err = srv.Client().Do(req)
		require.ErrorIs(t, err, context.Canceled)
		<-ended
		require.Eventually(t, func() bool { return b.post(srv, "k", "b").status == 201 }, time.Minute, 10*time.Millisecond)
		require.Equal(t, []int{1, 1}, []int{b.count("effects"), b.count("processed_events")})
	})
}

// A transaction that meets a conflict begins anew: the handler gets the body from its beginning and an empty response,
// whether it sees the conflict or COMMIT does.
func TestRunsAgain(t *testing.T) {
	everyDoor(t, func(b *bench) {
		b.exec(`
			CREATE SEQUENCE tries;
			CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				IF nextval('tries') < 3 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF;
				RETURN NULL;
			END $$`)
		for name, deferral := range map[string]string{
			"statement": "NOT DEFERRABLE", "commit": "DEFERRABLE INITIALLY DEFERRED",
		} {
			b.exec(`
				TRUNCATE effects, processed_events;
				DROP TRIGGER IF EXISTS conflict ON effects;
				ALTER SEQUENCE tries RESTART;
				CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON effects ` + deferral + `
					FOR EACH ROW EXECUTE FUNCTION conflict()`)
			b.runs.Store(0)
			srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Add("Link", "<a>")
				r.Header.Add("Seen", "x")
				require.Len(t, r.Header.Values("Seen"), 1)
				require.NoError(t, r.ParseForm())
				require.Equal(t, "1", r.PostForm.Get("a"))
				pay(w, r) // ParseForm has read the body
			})
			got := b.post(srv, "k", "a=1", "Content-Type", "application/x-www-form-urlencoded")
			require.Equal(t, []any{201, "paid 0 bytes"}, []any{got.status, got.body}, name)
			require.Equal(t, []string{"<a>"}, got.header.Values("Link"), name)
			b.wants(3, 1, 1)
		}
	})
}

// Where no retry helps, the handler's own answer stands; and where a rival took the key meanwhile, the rival's.
func TestFail(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.serve(b.wrap(nil, settings{tries: 2}, config(), func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			idemhttp.Fail(r.Context(), run(r.Context(), `DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$`))
			http.Error(w, "busy", http.StatusInsufficientStorage)
		}))
		got := b.post(srv, "k", "b")
		require.Equal(t, []any{507, "busy\n"}, []any{got.status, got.body})
		b.wants(2, 0, 0)
	})
}

// Callers that use the same keys at the same time, again and again: none ever gets the response of another.
func TestCallersAtOnce(t *testing.T) {
	everyDoor(t, func(b *bench) {
		h := b.wrap(nil, settings{wait: time.Minute}, config(), func(w http.ResponseWriter, r *http.Request) {
			if err := effect(r); err != nil {
				idemhttp.Fail(r.Context(), err)
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, r.Header.Get("Caller"), b.runs.Load())
		})
		const callers, keys = 4, 5
		var mu sync.Mutex
		answers := map[string]string{}
		var wg sync.WaitGroup
		for n := range 8 {
			caller := fmt.Sprint("caller", n%callers, " ")
			wg.Go(func() {
				for i := range 3 * keys {
					key := fmt.Sprint("k", (i+n)%keys)
					r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("b"))
					r.Header.Set("Idempotency-Key", key)
					r.Header.Set("Caller", caller)
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					got := w.Body.String()
					mu.Lock()
					if first, ok := answers[caller+key]; w.Code != 200 || !strings.HasPrefix(got, caller) || ok && first != got {
						b.Errorf("%s got %d %q after %q", caller, w.Code, got, first)
					}
					answers[caller+key] = got
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.Equal(b, callers*keys, b.count("effects"))
		require.Equal(b, callers*keys, b.count("processed_events"))
	})
}
