package idemhttp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// middleware is one wrapped handler.
type middleware struct {
	Config
	door  door
	known *known
	next  http.Handler
}

func wrapper(c Config, table dedup.Table, noDB bool, d door) (func(http.Handler) http.Handler, error) {
	c, err := c.complete()
	switch {
	case err != nil:
		return nil, err
	case noDB:
		return nil, errors.New("idemhttp: no database")
	case table.Layout == dedup.Weekly:
		return nil, errors.New("idemhttp: keys of requests have no time, as a table of layout Weekly needs it")
	}
	if err := table.Validate(); err != nil {
		return nil, err
	}
	seen := newKnown()
	return func(next http.Handler) http.Handler { return &middleware{c, d, seen, next} }, nil
}

// ServeHTTP implements http.Handler.
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(m.Methods, r.Method) {
		m.next.ServeHTTP(w, r)
		return
	}
	p, err := m.identify(w, r)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	if s, ok := m.kept(r.Context(), p); ok {
		m.replay(w, s)
		return
	}
	x := &exchange{middleware: m, request: r, outer: w.Header(), body: p.body}
	s, out, err := x.once(p.key)
	if err == nil {
		m.known.add(p.key)
	}
	switch {
	case err != nil && x.stands(err):
		x.answer.send(w)
	case err != nil:
		m.refuse(w, r, err)
	case out == idem.Duplicate:
		m.replay(w, s)
	default:
		x.answer.send(w)
	}
}

// refuse answers with a problem.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		m.OnError(r, err)
	}
	p.write(w, m.Docs)
}

// exchange is one request and its response.
type exchange struct {
	*middleware
	request *http.Request
	outer   http.Header // what was set before the handler
	body    []byte

	// Of the last run of the handler:
	answer    *answer
	discarded bool
	told      error // by Fail, or by a response that contradicts itself
}

// once runs the handler once for key, in one of the two forms.
func (x *exchange) once(key idem.Key) (stored, idem.Outcome, error) {
	ctx := x.request.Context()
	if x.Lease > 0 {
		return x.door.call(ctx, key, x.handle)
	}
	s, out, err := x.door.run(ctx, key, x.handle)
	refusal, ok := err.(*refused)
	if !ok {
		return s, out, err
	}
	// The handler's transaction is rolled back, and so is the key. Another request may take it before this one does.
	return x.door.run(ctx, key, func(context.Context, *request) (stored, error) { return refusal.kept, nil })
}

// refused ends the transaction of a handler whose response is kept alone.
type refused struct{ kept stored }

func (*refused) Error() string { return "idemhttp: the handler refused the request" }

// discarded ends the transaction of a handler whose response is not kept.
type discarded struct{ cause error }

func (*discarded) Error() string   { return "idemhttp: the handler's response is not one to keep" }
func (d *discarded) Unwrap() error { return d.cause }

// applied is an error of what Then has set.
type applied struct{ cause error }

func (a *applied) Error() string { return a.cause.Error() }
func (a *applied) Unwrap() error { return a.cause }

// ofHandler reports whether err came from the handler. One of idem's in it is about a key of the handler's own, and
// says nothing of the request's.
func ofHandler(err error) bool {
	var d *discarded
	var a *applied
	return errors.As(err, &d) || errors.As(err, &a)
}

// stands reports whether the client gets the handler's own response, though the call failed with err: where that came
// of the response, and does not make it untrue.
func (x *exchange) stands(err error) bool {
	_, own := err.(*discarded)
	own = own || x.Lease > 0 && x.discarded // what a mark made of it
	return own && (x.told == nil || x.answer.status >= http.StatusBadRequest)
}

// handle runs the handler, with a body that begins anew and an empty response.
func (x *exchange) handle(ctx context.Context, r *request) (stored, error) {
	x.answer, x.discarded, x.told = nil, false, nil
	req := x.request.Clone(context.WithValue(ctx, requestKey{}, r))
	req.Body, req.ContentLength, req.TransferEncoding = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body)), nil
	// A response that was compressed for one client could not be repeated to another: compression stands outside.
	req.Header.Del("Accept-Encoding")
	defer func() {
		if req.MultipartForm != nil {
			_ = req.MultipartForm.RemoveAll() // net/http does it for its own request, not for a copy
		}
	}()
	rec := newRecorder(x.outer)
	x.next.ServeHTTP(rec, req)
	x.answer = rec.answer(req.Method)
	fate, fault := x.fate(x.answer.status)
	x.told = cmp.Or(r.cause, x.answer.fault, fault)
	switch {
	case x.told != nil, fate == Discard:
		x.discarded = true
		return stored{}, &discarded{x.told}
	case fate == Refuse && x.Lease > 0:
		r.then = nil // nothing is undone there: the response is all that is written
	case fate == Refuse:
		return stored{}, &refused{x.keep(x.answer)}
	}
	return x.keep(x.answer), nil
}
