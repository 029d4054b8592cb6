// Package conformance checks a server's Idempotency-Key from outside: what a client that retries may rely on. It knows
// nothing of the server but an URL, and compares what comes back.
//
//	fmt.Print(conformance.Run(ctx, conformance.Target{URL: "https://api.example.com/payments", Body: `{"cents": 1}`}))
//
// [Run] makes real requests, with effects: about twenty of them. It follows
// draft-ietf-httpapi-idempotency-key-header-07, and asks for three things that the draft leaves open. A retry gets the
// same body, callers share no key, and a request that was broken off has one effect. The program idemcheck does the
// same from the command line; the example keymiddlewares does it to two other middlewares.
package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Target is an endpoint that needs a key.
type Target struct {
	URL    string
	Method string // empty means POST
	Body   string // of a request that succeeds with 2xx. Each execution must answer with another body: a new id, say

	// OtherBody is of another request that would succeed. Empty means Body with a space behind it.
	OtherBody string

	// Caller and Other authenticate two callers. Without Other the check of their keys is not made.
	Caller, Other http.Header

	// Header is the name of the header; empty means Idempotency-Key.
	Header string

	// Crash, where not nil, is called while a request is under way: it kills the server and starts it again. Without it
	// the client alone breaks the request off.
	Crash func(ctx context.Context) error

	// Effects, where not nil, counts the effects of all requests. Without it they are told from bodies.
	Effects func(ctx context.Context) (int, error)

	// Client sends the requests; nil means one that keeps no connection. Go's own client sends a request with a key again
	// by itself, on a connection that was kept. Redirects are followed only where it has a CheckRedirect: what
	// authenticates a caller is not for another host.
	Client *http.Client
}

// Verdict is what came of a check.
type Verdict string

// The verdicts of a check.
const (
	Pass   Verdict = "pass"
	Fail   Verdict = "FAIL"
	NotRun Verdict = "not run" // what it needs was not given, or the server is not as Target says
)

// Result is one line of a report.
type Result struct {
	Check   string // missing, malformed, replay, mismatch, concurrent, crash, callers
	Verdict Verdict
	Detail  string
}

// Report is the results in the order of the checks.
type Report []Result

// OK reports whether every check was made and passed.
func (r Report) OK() bool {
	for _, res := range r {
		if res.Verdict != Pass {
			return false
		}
	}
	return len(r) > 0
}

// String returns the report as a table.
func (r Report) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, res := range r {
		fmt.Fprintf(w, "%s\t%s\t%s\n", res.Check, res.Verdict, res.Detail)
	}
	_ = w.Flush() // to memory
	return b.String()
}

// Run makes all checks, one after the other. Each uses new keys. A request that cannot be made, and a ctx that ends,
// fail the check.
func Run(ctx context.Context, t Target) Report {
	t = t.withDefaults()
	var report Report
	for _, c := range []struct {
		name  string
		check func(Target, context.Context) (string, error)
	}{
		{"missing", Target.missing},
		{"malformed", Target.malformed},
		{"replay", Target.replay},
		{"mismatch", Target.mismatch},
		{"concurrent", Target.concurrent},
		{"crash", Target.crash},
		{"callers", Target.callers},
	} {
		detail, err := c.check(t, ctx)
		res := Result{c.name, Pass, detail}
		var not *notRun
		switch {
		case errors.As(err, &not):
			res.Verdict, res.Detail = NotRun, not.why
		case err != nil:
			res.Verdict, res.Detail = Fail, fmt.Sprint(err)
		}
		report = append(report, res)
	}
	return report
}

func (t Target) withDefaults() Target {
	if t.Method == "" {
		t.Method = http.MethodPost
	}
	if t.Header == "" {
		t.Header = "Idempotency-Key"
	}
	if t.OtherBody == "" {
		t.OtherBody = t.Body + " "
	}
	if t.Client == nil {
		t.Client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	}
	if t.Client.CheckRedirect == nil {
		client := *t.Client
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		t.Client = &client
	}
	return t
}

type notRun struct{ why string }

func (n *notRun) Error() string { return n.why }

// reply is what came back.
type reply struct {
	status int
	body   []byte
	kind   string // the content type
}

func (r reply) ok() bool { return r.status >= 200 && r.status < 300 }

func (r reply) same(o reply) bool { return r.status == o.status && bytes.Equal(r.body, o.body) }

// send sends a request as a caller, with the key as it is on the wire; an empty one is not sent.
func (t Target) send(ctx context.Context, caller http.Header, key, body string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, t.Method, t.URL, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range caller {
		req.Header[name] = values
	}
	if key != "" {
		req.Header.Set(t.Header, key)
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, b, resp.Header.Get("Content-Type")}, err
}

// fresh sends a request with a new key, which must succeed.
func (t Target) fresh(ctx context.Context) (key string, first reply, err error) {
	key = newKey()
	first, err = t.send(ctx, t.Caller, key, t.Body)
	if err == nil && !first.ok() {
		err = &notRun{fmt.Sprintf("a first request was answered with %d", first.status)}
	}
	return key, first, err
}

func newKey() string { return `"` + rand.Text() + `"` }

// settled sends a request again and again until it succeeds, or until its answer is one that a retry cannot change.
func (t Target) settled(ctx context.Context, key string) (reply, error) {
	var last error
	for range 60 {
		got, err := t.send(ctx, t.Caller, key, t.Body)
		switch {
		case err == nil && got.ok():
			return got, nil
		case err == nil && final(got.status):
			return reply{}, fmt.Errorf("the request never succeeds: it was answered with %d", got.status)
		case err == nil:
			last = fmt.Errorf("it was answered with %d", got.status)
		default:
			last = err
		}
		select {
		case <-ctx.Done():
			return reply{}, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
	return reply{}, fmt.Errorf("the request never succeeded: %w", last)
}

// final reports whether a status says that the same request will not succeed later.
func final(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly,
		http.StatusTooManyRequests: // 404 is what a proxy says of a server that is away
		return false
	}
	return status >= 400 && status < 500
}

// effects returns the count before, where there is one, and a check that it has grown by n since.
func (t Target) effects(ctx context.Context) (grew func(n int) error, err error) {
	if t.Effects == nil {
		return func(int) error { return nil }, nil
	}
	before, err := t.Effects(ctx)
	return func(n int) error {
		after, err := t.Effects(ctx)
		if err == nil && after-before != n {
			err = fmt.Errorf("%d effects, not %d", after-before, n)
		}
		return err
	}, err
}

// race sends one request n times at once.
func (t Target) race(ctx context.Context, key string, n int) ([]reply, error) {
	replies, errs := make([]reply, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { replies[i], errs[i] = t.send(ctx, t.Caller, key, t.Body) })
	}
	wg.Wait()
	return replies, errors.Join(errs...)
}
