package idemhttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// payload is what was found out about a request.
type payload struct {
	key  idem.Key
	hash [sha256.Size]byte // as the key's row has it
	body []byte
}

// identify returns the key of a request, and its body. Its errors are problems. Nothing is asked of the database, so
// that a slow sender holds no connection.
func (c *Config) identify(w http.ResponseWriter, r *http.Request) (*payload, error) {
	sent, err := parseKey(r.Header.Values(c.Header))
	switch {
	case errors.Is(err, errMissing):
		return nil, newProblem(http.StatusBadRequest, "missing", c.Header+" is missing", err)
	case err != nil:
		return nil, newProblem(http.StatusBadRequest, "malformed", c.Header+" is malformed", err)
	}
	caller, err := c.Caller(r)
	if err != nil || caller == "" {
		return nil, newProblem(http.StatusForbidden, "caller", "The caller is not known", nil)
	}
	route := c.Route(r)
	body, sum, err := c.read(w, r, route)
	if err != nil {
		return nil, err
	}
	scope := idem.Scope{Source: c.Source, Operation: operation(r.Method, route)}
	key := scope.Key(digest(caller), sent).WithPayload(sum)
	if err := key.Validate(); err != nil {
		return nil, err
	}
	return &payload{key, sha256.Sum256(sum), body}, nil
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// sentPath returns the path as the client sent it. http.StripPrefix, for one, leaves less of it in r.URL: there two
// endpoints can have one path.
func sentPath(r *http.Request) string {
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u.EscapedPath()
	}
	return r.URL.EscapedPath()
}

// operation names the method and the route. One that does not fit into the column is hashed.
func operation(method, route string) string {
	op := method + " " + route
	if len(op) > dedup.MaxScopeBytes {
		return method + " %sha256:" + digest(route)
	}
	return op
}

// read reads the body, and returns it with the hash of what must be the same on every retry.
func (c *Config) read(w http.ResponseWriter, r *http.Request, route string) (body, sum []byte, err error) {
	if formRead(r) {
		return nil, nil, errReadBefore
	}
	if r.ContentLength > c.MaxBody {
		return nil, nil, tooLarge()
	}
	h := sha256.New()
	for _, s := range []string{r.Method, route, sentPath(r), r.URL.EscapedPath()} {
		write(h, s)
	}
	for _, s := range canonical(r.URL.RawQuery) {
		write(h, s)
	}
	var buf bytes.Buffer // grows with what comes, not with what Content-Length says
	if r.Body != nil {
		_, err = buf.ReadFrom(io.TeeReader(http.MaxBytesReader(w, r.Body, c.MaxBody), h))
	}
	switch {
	case err != nil:
		return nil, nil, badBody(err)
	case int64(buf.Len()) < r.ContentLength: // net/http's own error for a sender that stopped is among those above
		return nil, nil, errReadBefore
	}
	return buf.Bytes(), h.Sum(nil), nil
}

var errReadBefore = errors.New("idemhttp: the body was read before: the middleware must stand outside of what reads it")

// formRead reports whether the body was read as a form. r.FormValue, for one, makes an empty PostForm of any other
// body, and leaves that alone.
func formRead(r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.MultipartForm != nil || len(r.PostForm) > 0 ||
		r.PostForm != nil && kind == "application/x-www-form-urlencoded"
}

func tooLarge() error {
	return newProblem(http.StatusRequestEntityTooLarge, "too-large", "The body is too large", nil)
}

func badBody(err error) error {
	var large *http.MaxBytesError
	var slow net.Error
	switch {
	case errors.As(err, &large):
		return tooLarge()
	case errors.As(err, &slow) && slow.Timeout():
		return newProblem(http.StatusRequestTimeout, "slow", "The body did not come in time", nil)
	}
	return newProblem(http.StatusBadRequest, "body", "The body could not be read to its end", nil)
}

// write gives s to h with its length, so that no two lists of strings are hashed alike.
func write(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	io.WriteString(h, s) //nolint:errcheck // a hash returns no error
}

// canonical returns the query with its names in order. The values of one name stay in theirs, which may matter. A query
// that cannot be parsed stays as it is.
func canonical(raw string) []string {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return []string{"raw", raw}
	}
	return []string{"query", q.Encode()}
}
