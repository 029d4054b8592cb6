package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A body of 10 MB, chunked or not, goes through where it may, and is there again for each run. What is allocated for it
// is a few times its size, and never more.
func TestLargeBody(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	const size = 10 << 20
	c.MaxBody = size
	h := b.wrap(nil, settings{}, c, pay)
	srv := b.serve(h)
	for name, body := range map[string]func() io.Reader{
		"counted": func() io.Reader { return strings.NewReader(strings.Repeat("x", size)) },
		"chunked": func() io.Reader { return io.LimitReader(zeros{}, size) },
	} {
		for try := range 2 {
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL, name, body())
			require.NoError(t, err)
			want := []any{201, fmt.Sprintf("paid %d bytes", size), try == 1}
			require.Equal(t, want, []any{got.status, got.body, got.replayed()}, name)
		}
		got, err := b.send(srv.Client(), http.MethodPost, srv.URL, name+"2", io.MultiReader(body(), strings.NewReader("x")))
		require.NoError(t, err)
		b.wantProblem(got, 413, "too-large")
	}
	b.wants(2, 2, 2)

	allocated := func(length int64, body io.Reader) uint64 {
		r := httptest.NewRequest(http.MethodPost, "/", body)
		r.ContentLength = length
		r.Header.Set("Idempotency-Key", "m")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(httptest.NewRecorder(), r)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	require.Less(t, allocated(size, strings.NewReader("x")), uint64(1<<20), "announced, and not sent")
	require.Less(t, allocated(1<<40, zeros{}), uint64(1<<20), "announced too large")
	require.Less(t, allocated(-1, zeros{}), uint64(10*size), "sent without an end")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
