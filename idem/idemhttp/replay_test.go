package idemhttp_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemhttp"
)

// A replay is as safe to look at as the first response: what forbids a browser to guess or to run is kept, and no type
// is guessed where the handler gave none.
func TestReplayInBrowser(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	for _, c.Headers = range [][]string{nil, {"Location"}} {
		srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			w.Header().Set("Content-Security-Policy", "sandbox")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.Header()["Content-Type"] = nil
			if c.Headers != nil {
				w.Header().Set("Content-Type", "application/octet-stream")
			}
			fmt.Fprint(w, "<html><script>")
		}))
		key := fmt.Sprint("k", len(c.Headers))
		first := b.post(srv, key, "b")
		again := b.post(srv, key, "b")
		require.True(t, again.replayed())
		require.Empty(t, again.header.Values("Content-Type"))
		if c.Headers == nil {
			for _, name := range []string{"Content-Type", "Content-Security-Policy", "X-Content-Type-Options"} {
				require.Equal(t, first.header.Values(name), again.header.Values(name), name)
			}
		}
	}
}

// Names of kept headers may come twice, and in any spelling; the mark of a replay is the middleware's.
func TestKeptTwice(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	c.Headers = append(idemhttp.DefaultHeaders(), "location", "LINK", "Idempotent-Replayed")
	srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Idempotent-Replayed", "false")
		w.Header().Set("Location", "/1")
		w.Header()["Link"] = []string{"<a>", "<b>"}
		w.WriteHeader(201)
	}))
	first, again := b.post(srv, "k", "b"), b.post(srv, "k", "b")
	require.Equal(t, []bool{false, true}, []bool{first.replayed(), again.replayed()})
	for _, name := range []string{"Location", "Link"} {
		require.Equal(t, first.header.Values(name), again.header.Values(name))
	}
}
