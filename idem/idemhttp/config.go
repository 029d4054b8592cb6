package idemhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// Config says how requests are told apart, and what is kept of their responses. Only Caller must be given.
type Config struct {
	// Caller returns who sends the request: a user, an account, a tenant. Callers share no key, so none gets the
	// response of another. Take it from what has been authenticated, never from a header that anybody can set. Only its
	// SHA-256 is stored. An error, or an empty caller, is answered with 403. [Anonymous] makes one caller of all.
	Caller func(r *http.Request) (string, error)

	// Source is the source of the keys, as in idem.Scope. Empty means "http". Services that share a table need
	// different ones.
	Source string

	// Route names the endpoint. With the method it is the operation of the key, as an observer sees it, and must stay
	// as it is for as long as clients retry. nil means the path that the client sent, with what http.StripPrefix took
	// away. If a route stands for several paths, a key used on one of them is refused on the others (422).
	Route func(r *http.Request) string

	// Methods are those that need a key. nil means POST and PATCH. Others go straight to the handler, without a
	// transaction.
	Methods []string

	// Header is the name of the request header; empty means Idempotency-Key. Replayed is the response header that marks
	// a replay, with the value true; empty means Idempotent-Replayed.
	Header, Replayed string

	// MaxBody is the largest request body, in bytes; 0 means 1 MiB. It is in memory while the handler runs. A larger
	// one is answered with 413. The http.Server decides how long it may take to arrive (ReadTimeout).
	MaxBody int64

	// MaxResponse is the largest response body that is kept, in bytes; 0 means 256 KiB, and 700,000 is the most. The
	// first caller gets a larger one whole. A retry gets 410, and the handler does not run again.
	MaxResponse int

	// Headers are the response headers that are kept. nil means [DefaultHeaders]. New refuses those that belong to one
	// response or one connection (Set-Cookie, Date, Content-Length, Content-Encoding and the like). Without
	// Content-Type a replay has none: it is never guessed from the body.
	Headers []string

	// Policy decides about a response by its status. nil means [DefaultPolicy]. It is not asked about 1xx, 401, 408,
	// 409, 429 and 5xx: those are always discarded.
	Policy func(status int) Fate

	// Lease, if positive, chooses the reserving form, for effects outside the database. It is the Lease of an
	// [idem.Call], and Remembers is its Remembers. See the package documentation.
	Lease, Remembers time.Duration

	// Docs is the address of your page about idempotency: a problem's type is this, "#" and its name. Empty means this
	// package's documentation.
	Docs string

	// OnError is told of every error that the middleware answered with 5xx. No error holds a key or a body. nil means
	// slog.ErrorContext.
	OnError func(r *http.Request, err error)
}

// Anonymous is a [Config].Caller for an API that cannot tell its callers apart. Whoever guesses a key gets its
// response, so keys must be random.
func Anonymous(*http.Request) (string, error) { return anonymous, nil }

// anonymous is no caller that a function of a user's returns by accident.
const anonymous = "\x00anonymous"

const (
	defaultHeader      = "Idempotency-Key"
	defaultReplayed    = "Idempotent-Replayed"
	defaultMaxBody     = 1 << 20
	defaultMaxResponse = 256 << 10
	mostResponse       = 700_000 // as base64 and with headers it fits into dedup.MaxValueBytes
	defaultDocs        = "https://pkg.go.dev/github.com/pgonce/pgonce/idem/idemhttp"
	defaultMaxWait     = time.Second
)

// DefaultHeaders returns the names of the response headers kept by default: those that describe the body, say what a
// browser may do with it, or where the result is.
func DefaultHeaders() []string {
	return []string{
		"Allow", "Cache-Control", "Content-Disposition", "Content-Language", "Content-Location",
		"Content-Security-Policy", "Content-Type", "Etag", "Last-Modified", "Link", "Location", "Vary",
		"X-Content-Type-Options",
	}
}

// neverKept belongs to one response or one connection. A replay that brought it again would be wrong, or dangerous.
func neverKept() []string {
	return []string{
		"Connection", "Content-Encoding", "Content-Length", "Date", "Keep-Alive", "Proxy-Authenticate",
		"Proxy-Connection", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	}
}

// complete checks c, and fills in the defaults.
func (c Config) complete() (Config, error) {
	switch {
	case c.Caller == nil:
		return c, errors.New("idemhttp: no Caller: without one callers would get each other's responses; see Anonymous")
	case c.MaxBody < 0, c.MaxResponse < 0:
		return c, errors.New("idemhttp: MaxBody and MaxResponse must not be negative")
	case c.MaxResponse > mostResponse:
		return c, fmt.Errorf("idemhttp: MaxResponse is more than %d", mostResponse)
	case c.Lease < 0 || c.Remembers < 0, c.Lease == 0 && c.Remembers > 0:
		return c, errors.New("idemhttp: Lease and Remembers must not be negative, and Remembers needs a Lease")
	case c.Remembers > 0 && c.Remembers < c.Lease:
		return c, errors.New("idemhttp: Remembers is shorter than Lease: no second attempt could ever be made")
	case c.Methods != nil && len(c.Methods) == 0:
		return c, errors.New("idemhttp: Methods is empty: no request would need a key")
	}
	for _, method := range c.Methods {
		if method == "" || method != strings.ToUpper(method) {
			return c, errors.New("idemhttp: a method is not in capital letters: no request would have it")
		}
	}
	if c.Headers == nil {
		c.Headers = DefaultHeaders()
	}
	kept := make([]string, len(c.Headers))
	for i, name := range c.Headers {
		kept[i] = textproto.CanonicalMIMEHeaderKey(name)
		if slices.Contains(neverKept(), kept[i]) {
			return c, fmt.Errorf("idemhttp: the header %s is never kept", kept[i])
		}
	}
	slices.Sort(kept)
	c.Headers = slices.Compact(kept) // a name that is there twice would double its values
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.Policy == nil {
		c.Policy = DefaultPolicy
	}
	if c.Route == nil {
		c.Route = sentPath
	}
	if c.OnError == nil {
		c.OnError = logError
	}
	c.Source = or(c.Source, "http")
	c.Header = textproto.CanonicalMIMEHeaderKey(or(c.Header, defaultHeader))
	c.Replayed = or(c.Replayed, defaultReplayed)
	c.MaxBody = or(c.MaxBody, defaultMaxBody)
	c.MaxResponse = or(c.MaxResponse, defaultMaxResponse)
	c.Docs = or(c.Docs, defaultDocs)
	if err := (idem.Scope{Source: c.Source, Operation: "o"}).Key("k").Validate(); err != nil {
		return c, err
	}
	return c, nil
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func logError(r *http.Request, err error) {
	slog.ErrorContext(context.WithoutCancel(r.Context()), "idemhttp: a request failed", "method", r.Method, "error", err)
}
