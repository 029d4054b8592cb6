package idemhttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// Bodies of every kind have a defined answer.
func TestBodies(t *testing.T) {
	b := newBench(t, doors[0])
	srv := httptest.NewUnstartedServer(b.wrap(nil, settings{}, config(), pay))
	srv.Config.ReadTimeout = time.Second
	srv.Start()
	t.Cleanup(srv.Close)
	ten := strings.Repeat("x", 10<<20)
	for _, c := range []struct {
		name   string
		body   io.Reader
		status int
		text   string
	}{
		{"none", nil, 201, "paid 0 bytes"},
		{"empty", strings.NewReader(""), 201, "paid 0 bytes"},
		{"chunked", io.MultiReader(strings.NewReader("a"), strings.NewReader("b")), 201, "paid 2 bytes"},
		{"as large as can be", strings.NewReader(ten[:1<<20]), 201, "paid 1048576 bytes"},
	} {
		for try := range 2 {
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL, `"`+c.name+`"`, c.body)
			require.NoError(t, err)
			if seeker, ok := c.body.(io.Seeker); ok {
				_, _ = seeker.Seek(0, io.SeekStart)
			} else if c.body != nil {
				c.body = io.MultiReader(strings.NewReader("ab"))
			}
			require.Equal(t, []any{c.status, c.text, try == 1}, []any{got.status, got.body, got.replayed()}, c.name)
		}
	}
	runs := int(b.runs.Load())
	for name, raw := range map[string]struct {
		request string
		status  int
	}{
		"larger, and says so": {"Content-Length: 10485760\r\n\r\n", 413},
		"larger, chunked":     {"Transfer-Encoding: chunked\r\n\r\nA00000\r\n" + ten, 413},
		"shorter than it says": {
			"Content-Length: 100\r\n\r\nabc", 400,
		},
		"broken chunks": {"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
	} {
		got := b.raw(srv, "Idempotency-Key: "+strings.ReplaceAll(name, " ", "")[:5]+"\r\n"+raw.request, true)
		require.Equal(t, raw.status, got.StatusCode, name)
		require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"), name)
	}
	got := b.raw(srv, "Idempotency-Key: slow\r\nContent-Length: 100\r\n\r\nabc", false)
	require.Equal(t, http.StatusRequestTimeout, got.StatusCode)
	b.wants(runs, runs, runs)
}

// raw sends a request as it is, and half closes the connection where the sender is done.
func (b *bench) raw(srv *httptest.Server, request string, done bool) *http.Response {
	b.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	go func() {
		_, _ = io.WriteString(conn, "POST /raw HTTP/1.1\r\nHost: x\r\n"+request)
		if done {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(b, err)
	return resp
}

// counted is a body of 10 MB that does not say so, and counts what is read of it.
type counted struct{ n int }

func (c *counted) Read(p []byte) (int, error) {
	if c.n >= 10<<20 {
		return 0, io.EOF
	}
	c.n += len(p)
	return len(p), nil
}

// Of a body that is too large no more is read than may be held; and nothing is allocated for what is only announced.
func TestBodyIsBounded(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	c.MaxBody = 64 << 10
	h := b.wrap(nil, settings{}, c, pay)
	body := &counted{}
	r := httptest.NewRequest(http.MethodPost, "/", body)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	require.LessOrEqual(t, body.n, 64<<10+64<<10)
	b.wants(0, 0, 0)
}

// A body that something outside has read would be hashed without that: other bodies would be the same request.
func TestBodyReadBefore(t *testing.T) {
	b := newBench(t, doors[0])
	inner := b.wrap(nil, settings{}, config(), pay)
	for name, read := range map[string]func(r *http.Request){
		"form":   func(r *http.Request) { _ = r.ParseForm() },
		"bytes":  func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"a byte": func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 1)) },
	} {
		srv := b.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { read(r); inner.ServeHTTP(w, r) }))
		got := b.post(srv, name[:1], "a=1", "Content-Type", "application/x-www-form-urlencoded")
		b.wantProblem(got, 500, "failed")
		if name == "form" { // what is chunked does not say how much there was
			body := io.MultiReader(strings.NewReader("a=1"))
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL, name[:1], body,
				"Content-Type", "application/x-www-form-urlencoded")
			require.NoError(t, err)
			b.wantProblem(got, 500, "failed")
		}
	}
	b.wants(0, 0, 0)
}

// What looks for a value of a form outside has not read a body that is no form.
func TestFormValueBefore(t *testing.T) {
	b := newBench(t, doors[0])
	inner := b.wrap(nil, settings{}, config(), pay)
	srv := b.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.FormValue("_method")
		inner.ServeHTTP(w, r)
	}))
	for kind, status := range map[string]int{
		"application/json": 201, "": 201, "application/x-www-form-urlencoded": 500,
		"application/x-www-form-urlencoded; a": 500,
	} {
		for _, body := range []io.Reader{strings.NewReader("&"), io.MultiReader(strings.NewReader("&"))} { // no names
			b.exec(`TRUNCATE effects, processed_events`)
			got, err := b.send(srv.Client(), http.MethodPost, srv.URL, "k", body, "Content-Type", kind)
			require.NoError(t, err)
			require.Equal(t, status, got.status, kind)
			if status == 201 {
				require.Equal(t, "paid 1 bytes", got.body)
			}
		}
	}
}

func TestMultipart(t *testing.T) {
	b := newBench(t, doors[0])
	srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1)) // the rest goes into files
		require.NoError(t, effect(r))
		fmt.Fprint(w, r.MultipartForm.File["f"][0].Size)
	})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	f, err := form.CreateFormFile("f", "f")
	require.NoError(t, err)
	_, _ = f.Write(make([]byte, 100_000))
	require.NoError(t, form.Close())
	require.Equal(t, "100000", b.post(srv, "k", body.String(), "Content-Type", form.FormDataContentType()).body)
	require.True(t, b.post(srv, "k", body.String(), "Content-Type", form.FormDataContentType()).replayed())
}

// What cannot be kept is sent once, and never made again.
func TestNotKept(t *testing.T) {
	everyDoor(t, func(b *bench) {
		large := strings.Repeat("y", 256<<10+1)
		srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
			require.NoError(t, effect(r))
			switch b.runs.Load() {
			case 1:
				fmt.Fprint(w, large)
			case 2:
				fmt.Fprint(w, large[1:])
			case 3:
				w.Header().Set("Content-Encoding", "br")
				fmt.Fprint(w, "compressed")
			case 4:
				w.Header().Set("Link", large+large+large+large)
				fmt.Fprint(w, "small")
			}
		})
		for i, c := range []struct {
			body string
			kept bool
		}{{large, false}, {large[1:], true}, {"compressed", false}, {"small", false}} {
			key := fmt.Sprint("k", i)
			require.Equal(t, c.body, b.post(srv, key, "b").body)
			again := b.post(srv, key, "b")
			require.True(t, again.replayed())
			if c.kept {
				require.Equal(t, c.body, again.body)
				continue
			}
			b.wantProblem(again, 410, "not-kept")
			require.Contains(t, again.body, `"original_status":200`)
		}
		b.wants(4, 4, 4)
	})
}

// A response that waits cannot be flushed or taken over; the handler is told, and goes on as it likes.
func TestFlushAndHijack(t *testing.T) {
	b := newBench(t, doors[0])
	srv := b.standard(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		for _, err := range []error{c.Flush(), func() error { _, _, err := c.Hijack(); return err }()} {
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, "COMMIT")
		}
		_, flushes := w.(http.Flusher)
		require.False(t, flushes)
		pay(w, r)
	})
	require.Equal(t, 201, b.post(srv, "k", "b").status)
	upgrade := b.standard(func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, effect(r))
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	_, err := b.send(upgrade.Client(), http.MethodPost, upgrade.URL, "k2", nil)
	require.Error(t, err)
	b.wants(2, 1, 1)
}

// zipped compresses what the client accepts, as middleware outside does.
func zipped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(zipper{w, z}, r)
	})
}

type zipper struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (z zipper) Write(b []byte) (int, error) { return z.z.Write(b) }

// Behind compression, and over HTTP/2: the first client has it compressed, the next one plain, with the same body.
func TestCompressedAndHTTP2(t *testing.T) {
	everyDoor(t, func(b *bench) {
		h := b.wrap(nil, settings{}, config(), func(w http.ResponseWriter, r *http.Request) {
			require.Empty(t, r.Header.Get("Accept-Encoding"))
			require.Equal(t, 2, r.ProtoMajor)
			require.NoError(t, effect(r))
			w.Header().Add("Vary", "Origin")
			w.Header().Set("Trailer", "Sum")
			fmt.Fprint(w, strings.Repeat("long ", 1000))
			w.Header().Set("Sum", "1")
		})
		srv := httptest.NewUnstartedServer(zipped(h))
		srv.EnableHTTP2 = true
		srv.StartTLS()
		t.Cleanup(srv.Close)
		for _, encoding := range []string{"gzip", "identity", "gzip"} {
			got := b.post(srv, "k", "b", "Accept-Encoding", encoding)
			require.Equal(t, 200, got.status)
			body := got.body
			if encoding == "gzip" {
				require.Equal(t, "gzip", got.header.Get("Content-Encoding"))
				z, err := gzip.NewReader(strings.NewReader(body))
				require.NoError(t, err)
				plain, err := io.ReadAll(z)
				require.NoError(t, err)
				body = string(plain)
			}
			require.Equal(t, strings.Repeat("long ", 1000), body)
			require.Equal(t, "text/plain; charset=utf-8", got.header.Get("Content-Type"))
			require.Equal(t, []string{"Accept-Encoding", "Origin"}, got.header.Values("Vary"))
		}
		b.wants(1, 1, 1)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(c *idemhttp.Config){
		"no caller":          func(c *idemhttp.Config) { c.Caller = nil },
		"negative body":      func(c *idemhttp.Config) { c.MaxBody = -1 },
		"negative response":  func(c *idemhttp.Config) { c.MaxResponse = -1 },
		"large response":     func(c *idemhttp.Config) { c.MaxResponse = 1 << 20 },
		"negative lease":     func(c *idemhttp.Config) { c.Lease = -1 },
		"no lease":           func(c *idemhttp.Config) { c.Remembers = 1 },
		"short memory":       func(c *idemhttp.Config) { c.Lease, c.Remembers = time.Minute, time.Second },
		"no methods":         func(c *idemhttp.Config) { c.Methods = []string{} },
		"method":             func(c *idemhttp.Config) { c.Methods = []string{"POST", "patch"} },
		"empty method":       func(c *idemhttp.Config) { c.Methods = []string{""} },
		"blank source":       func(c *idemhttp.Config) { c.Source = " " },
		"cookie":             func(c *idemhttp.Config) { c.Headers = []string{"set-cookie"} },
		"date":               func(c *idemhttp.Config) { c.Headers = []string{"Date"} },
		"length":             func(c *idemhttp.Config) { c.Headers = []string{"content-length"} },
		"encoding of a body": func(c *idemhttp.Config) { c.Headers = []string{"content-encoding"} },
	} {
		c := config()
		change(&c)
		for _, d := range doors[:1] {
			_, err := d.open(t, pgtest.DSN(t), nil, settings{}, c)
			require.Error(t, err, name)
		}
	}
}

// A database that is missing, and a table that no request could use, are found at the start.
func TestConfigOfTable(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "")
	require.NoError(t, err)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	_, err = idemhttp.New(nil, idem.Once{}, config())
	require.Error(t, err)
	_, err = idemhttp.NewSQL(nil, idemsql.Once{}, config())
	require.Error(t, err)
	for _, table := range []dedup.Table{{Layout: dedup.Weekly}, {Retention: -1}} {
		_, err = idemhttp.New(pool, idem.Once{Table: table}, config())
		require.Error(t, err)
		_, err = idemhttp.NewSQL(db, idemsql.Once{Table: table}, config())
		require.Error(t, err)
	}
	_, err = idemhttp.NewSQL(db, idemsql.Once{Table: dedup.Table{Layout: dedup.Hash(4)}}, config())
	require.NoError(t, err)
}

// Names of headers, kept ones and callers are the user's to choose.
func TestOwnNames(t *testing.T) {
	b := newBench(t, doors[0])
	c := config()
	c.Header, c.Replayed, c.Docs, c.Headers = "x-request-id", "Replayed", "https://example.com/once", []string{"x-kept"}
	c.Caller = func(r *http.Request) (string, error) { return r.Header.Get("Caller"), nil }
	srv := b.serve(b.wrap(nil, settings{}, c, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Kept", "1")
		w.Header().Set("Content-Type", "a/b")
		pay(w, r)
	}))
	got := b.post(srv, "ignored", "b", "Caller", "a")
	b.wantProblem(got, 400, "missing")
	require.Contains(t, got.body, `"https://example.com/once#missing"`)
	b.wantProblem(b.post(srv, "", "b", "X-Request-Id", "k"), 403, "caller")
	b.post(srv, "", "b", "X-Request-Id", "k", "Caller", "a")
	again := b.post(srv, "", "b", "X-Request-Id", "k", "Caller", "a")
	require.Equal(t, "true", again.header.Get("Replayed"))
	require.Equal(t, "1", again.header.Get("X-Kept"))
	require.NotEqual(t, "a/b", again.header.Get("Content-Type"))
	b.wants(1, 1, 1)

	c = idemhttp.Config{Caller: idemhttp.Anonymous}
	srv = b.serve(b.wrap(nil, settings{}, c, pay))
	require.Equal(t, 201, b.post(srv, "k", "b").status)
	require.True(t, b.post(srv, "k", "b").replayed())
}
