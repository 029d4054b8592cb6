package webhook_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
)

// counting is a provider that counts the bytes of the bodies that it is given.
type counting struct {
	fixed
	calls, bytes *atomic.Int64
}

func (c counting) Verify(_ *http.Request, body []byte, _ time.Time) (webhook.Event, error) {
	c.calls.Add(1)
	c.bytes.Store(int64(len(body)))
	return webhook.Event{ID: "1"}, nil
}

func bodies(t *testing.T, change func(h *webhook.Handler)) (*httptest.Server, counting) {
	t.Helper()
	c := counting{calls: new(atomic.Int64), bytes: new(atomic.Int64)}
	h := webhook.Handler{Provider: c, Endpoint: "e", Sink: sunk(nil)}
	if change != nil {
		change(&h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv, c
}

// plain hides what a reader is, so that the client cannot know its length and sends chunks.
type plain struct{ io.Reader }

func TestBodies(t *testing.T) {
	t.Parallel()
	const mega = 1 << 20
	for name, tc := range map[string]struct {
		length  int
		chunked bool
		code    int
		seen    int64 // -1: not given to the provider
	}{
		"empty":               {0, false, 200, 0},
		"empty, chunked":      {0, true, 200, 0},
		"full":                {mega, false, 200, mega},
		"full, chunked":       {mega, true, 200, mega},
		"too long":            {mega + 1, false, 413, -1},
		"too long, chunked":   {mega + 1, true, 413, -1},
		"far too long":        {10 * mega, false, 413, -1},
		"far too long, ditto": {10 * mega, true, 413, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, c := bodies(t, nil)
			var body io.Reader = bytes.NewReader(make([]byte, tc.length))
			if tc.chunked {
				body = plain{body}
			}
			res, err := http.Post(srv.URL, "application/json", body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, tc.code, res.StatusCode)
			if tc.seen < 0 {
				require.Zero(t, c.calls.Load())
			} else {
				require.Equal(t, tc.seen, c.bytes.Load())
				require.EqualValues(t, 1, c.calls.Load())
			}
		})
	}
	// The limit is the Handler's, or the sender's.
	srv, _ := bodies(t, func(h *webhook.Handler) { h.MaxBody = 10 })
	res, err := http.Post(srv.URL, "", strings.NewReader("12345678901"))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 413, res.StatusCode)
	large := bytes.Repeat([]byte(" "), 3*mega)
	h := webhook.Handler{Provider: webhook.GitHub{Secrets: []string{newSecret}}, Endpoint: "e", Sink: sunk(nil)}
	r := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader(large))
	r.Header = senders[1].sign("1", "push", string(large), now, newSecret)
	require.Equal(t, 200, answer(h, r).Code, "GitHub sends up to 25 MB")
}

// raws sends bytes as they are, and returns the answer's status, 0 where the server just closed.
func raws(t *testing.T, srv *httptest.Server, head string, body string, halfClose bool) int {
	t.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n%s", head, body)
	require.NoError(t, err)
	if halfClose {
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	require.NoError(t, res.Body.Close())
	return res.StatusCode
}

// Headers that lie about the body, and bodies that do not come.
func TestLyingBodies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		head, body string
		halfClose  bool
		code       int
		calls      int64
	}{
		"less than announced":         {"Content-Length: 100\r\n", "short", true, 503, 0},
		"less, and the sender waits":  {"Content-Length: 100\r\n", "short", false, 503, 0},
		"nothing of what was said":    {"Content-Length: 100\r\n", "", false, 503, 0},
		"more than announced":         {"Content-Length: 2\r\n", "{}{}{}", true, 200, 1},
		"a huge announcement":         {"Content-Length: 9000000000000000\r\n", "x", false, 413, 0},
		"a chunk that is cut":         {"Transfer-Encoding: chunked\r\n", "5\r\nab", true, 503, 0},
		"a chunk that is none":        {"Transfer-Encoding: chunked\r\n", "zz\r\nab", false, 503, 0},
		"chunks without an end":       {"Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n", false, 503, 0},
		"no length":                   {"", "{}", true, 200, 1},
		"a length that is no number":  {"Content-Length: -5\r\n", "", false, 400, 0},
		"two lengths":                 {"Content-Length: 2\r\nContent-Length: 3\r\n", "{}", false, 400, 0},
		"an encoding that is unknown": {"Transfer-Encoding: gzip\r\n", "", false, 501, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, c := bodies(t, func(h *webhook.Handler) { h.ReadTimeout = time.Second })
			require.Equal(t, tc.code, raws(t, srv, tc.head, tc.body, tc.halfClose))
			require.Equal(t, tc.calls, c.calls.Load())
		})
	}
}

// A body that trickles in is cut off in time, and one that came in time leaves the Sink all of its own.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	srv, c := bodies(t, func(h *webhook.Handler) { h.ReadTimeout = limit })
	r, w := io.Pipe()
	go func() {
		for range 200 {
			if _, err := w.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = w.Close()
	}()
	res, err := http.Post(srv.URL, "", r)
	if err == nil { // the client may see the closed connection first
		require.NoError(t, res.Body.Close())
		require.Equal(t, 503, res.StatusCode)
	}
	_ = r.Close()
	require.Zero(t, c.calls.Load(), "the body was waited for")

	srv, _ = bodies(t, func(h *webhook.Handler) {
		h.ReadTimeout = limit
		h.Sink = webhook.SinkFunc(func(ctx context.Context, _ idem.Key, _ webhook.Event) (idem.Outcome, error) {
			time.Sleep(2 * limit)
			return idem.Executed, ctx.Err()
		})
		h.Report = func(ctx context.Context, _ webhook.Event, _ idem.Outcome, err error) {
			if ctx.Err() != nil || err != nil {
				panic("the limit of the body reaches beyond it")
			}
		}
	})
	require.Equal(t, 200, raws(t, srv, "Content-Length: 2\r\n", "{}", false))
}

// The server's own limit holds where the Handler has none, and the Handler's where it has one.
func TestServersReadTimeout(t *testing.T) {
	t.Parallel()
	for own, code := range map[time.Duration]int{0: 503, time.Minute: 200} {
		h := webhook.Handler{Provider: fixed{event: webhook.Event{ID: "1"}}, Endpoint: "e", Sink: sunk(nil), ReadTimeout: own}
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ReadTimeout = 300 * time.Millisecond
		srv.Start()
		t.Cleanup(srv.Close)
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
		require.NoError(t, err)
		if own > 0 { // else the rest never comes
			time.Sleep(2 * srv.Config.ReadTimeout)
			_, err = io.WriteString(conn, "}")
			require.NoError(t, err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, code, res.StatusCode, own)
	}
}

// A request without a body is one with an empty body, also where it never came from a server. The limit for reading
// does not reach beyond it.
func TestNoBody(t *testing.T) {
	t.Parallel()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/hook", nil)
	require.NoError(t, err)
	require.Nil(t, r.Body)
	h := webhook.Handler{Provider: fixed{event: webhook.Event{ID: "1"}}, Endpoint: "e", Sink: sunk(nil)}
	require.Equal(t, 200, answer(h, r).Code)

	ended := make(chan error, 1)
	srv, _ := bodies(t, func(h *webhook.Handler) {
		h.ReadTimeout = 100 * time.Millisecond
		h.Sink = webhook.SinkFunc(func(context.Context, idem.Key, webhook.Event) (idem.Outcome, error) {
			time.Sleep(300 * time.Millisecond)
			return idem.Executed, nil
		})
		h.Report = func(ctx context.Context, _ webhook.Event, _ idem.Outcome, _ error) { ended <- ctx.Err() }
	})
	require.Equal(t, 200, raws(t, srv, "Content-Length: 0\r\n", "", false))
	require.NoError(t, <-ended)
}

// What a request makes the Handler allocate is bounded by MaxBody, whatever it announces or sends.
func TestBodyMemory(t *testing.T) {
	const limit = 1 << 20
	h := webhook.Handler{Provider: fixed{event: webhook.Event{ID: "1"}}, Endpoint: "e", Sink: sunk(nil)}
	serve := func(length int64, body io.Reader) (bytes uint64) {
		r := httptest.NewRequest(http.MethodPost, "/hook", body)
		r.ContentLength = length
		w := httptest.NewRecorder()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	endless := func() io.Reader { return io.LimitReader(zeros{}, 1<<40) }
	require.Less(t, serve(limit, strings.NewReader("x")), uint64(200_000), "announced, and not sent")
	require.Less(t, serve(1<<40, endless()), uint64(200_000), "announced too long")
	require.Less(t, serve(-1, endless()), uint64(10*limit), "sent without an end")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
