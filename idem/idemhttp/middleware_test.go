package idemhttp_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// A retry gets status, body and the kept headers, and runs nothing.
func TestReplay(t *testing.T) {
	everyDoor(t, func(b *bench) {
		body := "\x00\xff <>&\u2028" + strings.Repeat("é", 1000)
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			h := w.Header()
			h.Add("Link", "<a>; rel=next, <b>")
			h.Add("Link", "<c>")
			h.Set("Content-Type", "text/weird")
			h.Set("Content-Disposition", "attachment; filename=\"\xe9\"")
			h.Set("Set-Cookie", "session=secret")
			h.Set("X-Other", "1")
			h.Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
			w.WriteHeader(http.StatusAccepted)
			h.Set("Location", "too late")
			fmt.Fprint(w, body)
		})
		first := b.post(srv, `"k"`, "b")
		require.False(t, first.replayed())
		require.Equal(t, "session=secret", first.header.Get("Set-Cookie"))
		require.Equal(t, "1", first.header.Get("X-Other"))
		for range 2 {
			again := b.post(srv, `k`, "b") // bare is the same key
			require.True(t, again.replayed())
			require.Equal(t, first.status, again.status)
			require.Equal(t, body, again.body)
			for _, name := range []string{"Link", "Content-Type", "Content-Disposition"} {
				require.Equal(t, first.header.Values(name), again.header.Values(name))
			}
			require.Len(t, again.header.Values("Link"), 2)
			for _, name := range []string{"Set-Cookie", "X-Other", "Location", "Content-Encoding"} {
				require.Empty(t, again.header.Values(name), name)
			}
			require.NotContains(t, again.header.Get("Date"), "1970")
		}
		b.wants(1, 1, 1)
	})
}

// What is no first request and no retry is answered without running anything.
func TestRefused(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.standard(pay)
		require.Equal(t, http.StatusCreated, b.post(srv, "k", "b").status)
		b.wantProblem(b.post(srv, "", "b"), 400, "missing")
		for _, key := range []string{
			`"`, `"a`, `"a"b`, `"a";p=1`, "a,b", "a b", `""`, `" "`, "é", strings.Repeat("x", 256),
		} {
			b.wantProblem(b.post(srv, key, "b"), 400, "malformed")
		}
		b.wantProblem(b.post(srv, "k", "b", "Idempotency-Key", "k"), 400, "malformed") // twice
		b.wantProblem(b.post(srv, "k", "other"), 422, "mismatch")
		b.wants(1, 1, 1)
	})
}

// One key of another caller, method or route is another key; another payload of the same is refused.
func TestScope(t *testing.T) {
	everyDoor(t, func(b *bench) {
		c := config()
		c.Route = func(r *http.Request) string { return strings.Split(r.URL.Path, "/")[1] }
		srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			fmt.Fprint(w, "for ", r.Header.Get("Caller"), " ", r.Method, " ", r.URL)
		}))
		n := 0
		for _, caller := range []string{"alice", "bob", "alice/k", "bob k"} {
			for _, method := range []string{http.MethodPost, http.MethodPatch} {
				for _, path := range []string{"/a", "/b"} {
					n++
					for try := range 2 {
						url := srv.URL + path + "?x=1&y=2&x=3"
						got, err := b.send(srv.Client(), method, url, "k", strings.NewReader("b"), "Caller", caller)
						require.NoError(t, err)
						require.Equal(t, try == 1, got.replayed())
						require.Equal(t, "for "+caller+" "+method+" "+path+"?x=1&y=2&x=3", got.body)
					}
				}
			}
		}
		b.wants(n, n, n)
		for path, status := range map[string]int{
			"/a?y=2&x=1&x=3":   200, // the names in another order
			"/a?x=3&y=2&x=1":   422, // values of one name in another order
			"/a?x=1&y=2":       422,
			"/a":               422,
			"/a/1?x=1&y=2&x=3": 422, // another path of the same route
			"/a?x=1;y=2&x=3":   422,
		} {
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL+path, "k", strings.NewReader("b"))
			require.NoError(t, err)
			require.Equal(t, status, got.status, path)
		}
		b.wants(n, n, n)
	})
}

// The path is the route by default, however long.
func TestRoutes(t *testing.T) {
	b := newBench(t, doors[0])
	srv := b.standard(pay)
	long := "/" + strings.Repeat("x", 300)
	for _, path := range []string{"/a", "/a/", "/a%2Fb", "/a/b", long + "1", long + "2"} {
		for try := range 2 {
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL+path, "k", nil)
			require.NoError(t, err)
			require.Equal(t, []any{201, try == 1}, []any{got.status, got.replayed()})
		}
	}
	b.wants(6, 6, 6)
}

// Behind http.StripPrefix two endpoints see one path, and share no key all the same. A Route that does not tell them
// apart gets a refusal, and never the other one's response.
func TestStripPrefix(t *testing.T) {
	for _, c := range []struct {
		route  func(r *http.Request) string
		status int
		n      int
	}{
		{nil, 200, 2},
		{func(r *http.Request) string { return r.URL.Path }, 422, 1},
	} {
		b := newBench(t, doors[0])
		mux, config := http.NewServeMux(), config()
		config.Route = c.route
		for _, at := range []string{"/a", "/b"} {
			h := b.wrap(nil, settings{}, config, func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, effect(r))
				fmt.Fprint(w, at, r.URL.Path)
			})
			mux.Handle(at+"/", http.StripPrefix(at, h))
		}
		srv := b.serve(mux)
		for _, at := range []string{"/a", "/b"} {
			for try := range 2 {
				got, err := b.send(srv.Client(), http.MethodPost, srv.URL+at+"/new?x=1", "k", nil)
				require.NoError(t, err)
				if at == "/b" && c.status != 200 {
					b.wantProblem(got, c.status, "mismatch")
					continue
				}
				require.Equal(t, []any{200, at + "/new", try == 1}, []any{got.status, got.body, got.replayed()})
			}
		}
		b.wants(c.n, c.n, c.n)
	}
}

// Other methods need no key and get no transaction.
func TestOtherMethods(t *testing.T) {
	b := newBench(t, doors[0])
	srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
		_, isTx := idemhttp.Tx(r.Context())
		_, isKey := idemhttp.Key(r.Context())
		idemhttp.Fail(r.Context(), http.ErrAbortHandler)
		idemhttp.Then(r.Context(), nil)
		fmt.Fprint(w, isTx, isKey)
		require.NoError(t, http.NewResponseController(w).Flush())
	})
	got, err := b.send(srv.Client(), http.MethodGet, srv.URL, "k", nil)
	require.NoError(t, err)
	require.Equal(t, "false false", got.body)
	b.wants(1, 0, 0)
}

// What becomes of a response depends on its status.
func TestPolicy(t *testing.T) {
	everyDoor(t, func(b *bench) {
		status := 0
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			w.Header().Set("X-Run", fmt.Sprint(b.runs.Load()))
			w.WriteHeader(status)
			if status != 204 && status != 304 {
				fmt.Fprintf(w, "run %d", b.runs.Load())
			}
		})
		srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for _, c := range []struct {
			status        []int
			effects, keys int // of one key
		}{
			{[]int{200, 201, 202, 204, 206, 301, 302, 303, 304, 307, 308}, 1, 1},
			{[]int{400, 402, 403, 404, 405, 406, 410, 411, 412, 413, 415, 422, 451}, 0, 1},
			{[]int{401, 407, 408, 409, 419, 420, 421, 423, 424, 425, 429, 440, 499, 500, 501, 502, 503, 504, 599}, 0, 0},
		} {
			for _, status = range c.status {
				b.exec(`TRUNCATE effects, processed_events`)
				b.runs.Store(0)
				first := b.post(srv, "k", "b")
				again := b.post(srv, "k", "b")
				require.Equal(t, []int{status, status}, []int{first.status, again.status})
				require.Equal(t, "1", first.header.Get("X-Run"), "the first caller gets every header")
				b.wants(2-c.keys, c.effects, c.keys)
				require.Equal(t, c.keys == 1, again.replayed())
				if c.keys == 1 {
					require.Equal(t, first.body, again.body)
				}
			}
		}
	})
}

// A policy is asked, but not about what must never be kept.
func TestOwnPolicy(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	fate, status := idemhttp.Commit, 0
	c.Policy = func(int) idemhttp.Fate { return fate }
	srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, effect(r))
		w.WriteHeader(status)
	}))
	for i, c := range []struct {
		fate          idemhttp.Fate
		status        int
		effects, keys int
	}{
		{idemhttp.Commit, 422, 1, 1},
		{idemhttp.Refuse, 200, 0, 1},
		{idemhttp.Discard, 202, 0, 0},
		{idemhttp.Commit, 401, 0, 0},
		{idemhttp.Commit, 409, 0, 0},
		{idemhttp.Refuse, 500, 0, 0},
		{idemhttp.Refuse + 1, 404, 0, 0},
		{idemhttp.Refuse + 1, 200, 0, 0}, // answered with 500
	} {
		b.exec(`TRUNCATE effects, processed_events`)
		fate, status = c.fate, c.status
		got := b.post(srv, "k", "b")
		if fate > idemhttp.Refuse && status < 400 {
			b.wantProblem(got, 500, "failed")
		} else {
			require.Equal(t, status, got.status)
		}
		b.wants(i+1, c.effects, c.keys)
	}
}

// A handler whose statement failed may refuse the request: the response is kept in a transaction of its own.
func TestRefuseAfterAnError(t *testing.T) {
	everyDoor(t, func(b *bench) {
		b.exec(`CREATE UNIQUE INDEX ON effects (ref); INSERT INTO effects VALUES ('x')`)
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			require.Error(t, effect(r))
			http.Error(w, "there is one", http.StatusUnprocessableEntity)
		})
		for try := range 2 {
			got := b.post(srv, "k", "b")
			require.Equal(t, []any{422, "there is one\n", try == 1}, []any{got.status, got.body, got.replayed()})
		}
		b.wants(1, 1, 1)
	})
}

// A response above 400 after an error that was swallowed cannot be kept, and one below is never sent.
func TestUntrue(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			require.Error(t, run(r.Context(), `SELECT 1/0`))
			fmt.Fprint(w, "fine")
		})
		b.wantProblem(b.post(srv, "k", "b"), 500, "failed")
		told := b.standard(func(w http.ResponseWriter, r *http.Request) {
			idemhttp.Fail(r.Context(), effect(r))
			idemhttp.Fail(r.Context(), fmt.Errorf("not so"))
			fmt.Fprint(w, "fine")
		})
		b.wantProblem(b.post(told, "k", "b"), 500, "failed")
		b.wants(2, 0, 0)
	})
}

// A panic rolls back, and goes on to the server.
func TestPanic(t *testing.T) {
	everyDoor(t, func(b *bench) {
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				require.NoError(t, effect(r))
				fmt.Fprint(w, "never seen")
				panic(http.ErrAbortHandler)
			}
			pay(w, r)
		})
		_, err := b.send(srv.Client(), http.MethodPost, srv.URL+"/payments", "k", strings.NewReader("b"))
		require.Error(t, err)
		b.wants(1, 0, 0)
		require.Equal(t, 201, b.post(srv, "k", "b").status)
		b.wants(2, 1, 1)
	})
}

// A failed COMMIT is an error of the server's, and nothing is kept. The body that the handler wrote is never seen.
func TestCommitFails(t *testing.T) {
	everyDoor(t, func(b *bench) {
		b.exec(`ALTER TABLE effects ADD CONSTRAINT one UNIQUE (ref) DEFERRABLE INITIALLY DEFERRED`)
		b.exec(`INSERT INTO effects VALUES ('x')`)
		srv := b.standard(pay)
		got := b.post(srv, "k", "b")
		b.wantProblem(got, 500, "failed")
		require.NotContains(t, got.body, "paid")
		b.wants(1, 1, 0)
		b.exec(`DELETE FROM effects`)
		require.Equal(t, 201, b.post(srv, "k", "b").status)
		b.wants(2, 1, 1)
	})
}

// A COMMIT whose reply is lost is settled; where it cannot be, the client is told, and a retry gets the right answer.
func TestCommitLost(t *testing.T) {
	everyDoor(t, func(b *bench) {
		for _, mode := range []faultconn.Mode{faultconn.DropReply, faultconn.DropBefore} {
			b.exec(`TRUNCATE effects, processed_events`)
			script := &faultconn.Script{When: faultconn.Commit, Mode: mode}
			srv := b.serve(b.wrap(script, settings{}, config(), pay))
			first := b.post(srv, "k", "b")
			require.Equal(t, 1, script.Hits())
			require.Equal(t, []any{201, "paid 1 bytes"}, []any{first.status, first.body})
			again := b.post(srv, "k", "b")
			require.True(t, again.replayed())
			require.Equal(t, first.body, again.body)
			require.Equal(t, 1, b.count("effects"))

			b.exec(`TRUNCATE effects, processed_events`)
			script = &faultconn.Script{When: faultconn.Commit, Mode: mode, Refuse: true}
			srv = b.serve(b.wrap(script, settings{tries: 2}, config(), pay))
			got := b.post(srv, "k", "b")
			b.wantProblem(got, 503, "unknown")
			require.NotEmpty(t, got.header.Get("Retry-After"))
			script.Release()
			again = b.post(srv, "k", "b")
			require.Equal(t, []any{201, "paid 1 bytes"}, []any{again.status, again.body})
			require.Equal(t, mode == faultconn.DropReply, again.replayed())
			require.Equal(t, 1, b.count("effects"))
		}
	})
}

// Nothing is sent before COMMIT.
func TestNothingBeforeCommit(t *testing.T) {
	everyDoor(t, func(b *bench) {
		script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.Stall}
		defer script.Release()
		srv := b.serve(b.wrap(script, settings{}, config(), pay))
		done := make(chan reply, 1)
		go func() { done <- b.post(srv, "k", "b") }()
		<-script.Fired()
		select {
		case got := <-done:
			t.Errorf("answered before COMMIT: %v", got)
		case <-time.After(100 * time.Millisecond):
		}
		script.Release()
		require.Equal(t, 201, (<-done).status)
	})
}
