package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
)

// provider is somebody else's system that honours keys.
type provider struct {
	mu      sync.Mutex
	charges map[string]int
	calls   int
}

func (p *provider) charge(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.charges == nil {
		p.charges = map[string]int{}
	}
	if p.charges[key] == 0 {
		p.charges[key] = len(p.charges) + 1
	}
	return p.charges[key]
}

// The reserving form, step by step: what each kind of end leaves to the next request.
func TestReserving(t *testing.T) {
	everyDoor(t, func(b *bench) {
		c := config()
		c.Lease, c.Remembers = time.Minute, time.Hour
		p := &provider{}
		handler := map[int32]http.HandlerFunc{}
		srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, r *http.Request) {
			_, inTx := idemhttp.Tx(r.Context())
			require.False(t, inTx, "the handler runs in no transaction")
			if h := handler[b.runs.Load()]; h != nil {
				h(w, r)
				return
			}
			key, ok := idemhttp.Key(r.Context())
			require.True(t, ok)
			n := p.charge(key.External())
			idemhttp.Then(r.Context(), func(ctx context.Context) error { return run(ctx, `INSERT INTO effects VALUES ('x')`) })
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "charge %d", n)
		}))
		lose := func(w http.ResponseWriter, r *http.Request) { // charged, and the answer was lost
			key, _ := idemhttp.Key(r.Context())
			p.charge(key.External())
			http.Error(w, "no answer", http.StatusBadGateway)
		}
		unsent := func(w http.ResponseWriter, r *http.Request) {
			idemhttp.Fail(r.Context(), idem.Unsent(fmt.Errorf("no connection")))
			http.Error(w, "unsent", http.StatusServiceUnavailable)
		}
		untrue := func(w http.ResponseWriter, r *http.Request) {
			idemhttp.Fail(r.Context(), idem.Unsent(fmt.Errorf("no connection")))
			fmt.Fprint(w, "fine")
		}
		broken := func(w http.ResponseWriter, r *http.Request) {
			idemhttp.Then(r.Context(), func(ctx context.Context) error { return run(ctx, `SELECT 1/0`) })
			fmt.Fprint(w, "fine")
		}
		refused := func(w http.ResponseWriter, r *http.Request) {
			idemhttp.Then(r.Context(), func(ctx context.Context) error { return run(ctx, `INSERT INTO effects VALUES ('x')`) })
			http.Error(w, "declined", http.StatusPaymentRequired)
		}
		handler = map[int32]http.HandlerFunc{1: lose, 2: unsent, 3: untrue, 4: broken, 6: refused}
		for _, want := range []struct {
			key, body string
			status    int
			replayed  bool
			runs      int
		}{
			{"a", "no answer\n", 502, false, 1},
			{"a", "unsent\n", 503, false, 2},
			{"a", "", 503, false, 3},
			{"a", "", 500, false, 4},
			{"a", "charge 1", 201, false, 5},
			{"a", "charge 1", 201, true, 5},
			{"b", "declined\n", 402, false, 6},
			{"b", "declined\n", 402, true, 6},
		} {
			got := b.post(srv, want.key, "b")
			require.Equal(t, []any{want.status, want.replayed}, []any{got.status, got.replayed()}, got.body)
			if want.body != "" {
				require.Equal(t, want.body, got.body)
			}
			require.EqualValues(t, want.runs, b.runs.Load())
		}
		require.Equal(t, []int{1, 2}, []int{len(p.charges), p.calls})
		b.wants(6, 1, 2)
	})
}

// Beside a running handler a request is told at once, and holds nothing. Where the provider knows no keys, an
// interrupted attempt is not repeated.
func TestReservingBeside(t *testing.T) {
	everyDoor(t, func(b *bench) {
		c := config()
		c.Lease = time.Minute
		g := newGate()
		srv := b.serve(b.wrap(nil, settings{wait: time.Hour}, c, func(w http.ResponseWriter, r *http.Request) {
			g.pass()
			http.Error(w, "who knows", http.StatusInternalServerError)
		}))
		first := make(chan reply, 1)
		go func() { first <- b.post(srv, "k", "b") }()
		<-g.entered
		got := b.post(srv, "k", "b")
		b.wantProblem(got, 409, "in-progress")
		require.NotEmpty(t, got.header.Get("Retry-After"))
		close(g.open)
		require.Equal(t, "who knows\n", (<-first).body)
		b.wantProblem(b.post(srv, "k", "b"), 500, "interrupted")
		b.wants(1, 0, 1)
	})
}
