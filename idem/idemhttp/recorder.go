package idemhttp

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

var (
	errFlush  = fmt.Errorf("idemhttp: the response waits for COMMIT and cannot be flushed: %w", http.ErrNotSupported)
	errHijack = fmt.Errorf("idemhttp: the response waits for COMMIT and cannot be hijacked: %w", http.ErrNotSupported)
)

// recorder is the http.ResponseWriter of one run of the handler. It has no Unwrap: nothing may get past it.
type recorder struct {
	outer  http.Header // as it was before the handler
	live   http.Header // as the handler sees it
	header http.Header // as it was when the status was written
	status int
	late   int // the status of an error that was written after one of success
	body   bytes.Buffer
}

func newRecorder(outer http.Header) *recorder { return &recorder{outer: outer, live: outer.Clone()} }

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header {
	if w.live == nil {
		w.live = http.Header{}
	}
	return w.live
}

// WriteHeader implements http.ResponseWriter. An informational status is not sent.
func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("idemhttp: invalid status %d", status)) // as net/http does
	case status == http.StatusSwitchingProtocols:
		panic(errHijack)
	case status < 200:
		return
	case w.status != 0:
		if status >= http.StatusBadRequest && w.status < http.StatusBadRequest {
			w.late = status
		}
		return
	}
	w.status, w.header = status, w.Header().Clone()
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	return w.body.Write(b)
}

// WriteString implements io.StringWriter.
func (w *recorder) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// FlushError is what http.ResponseController calls. Why no Flush: it could not say that it does nothing.
func (w *recorder) FlushError() error { return errFlush }

// Hijack implements http.Hijacker.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// answer is a whole response.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    []byte
	encoded bool // by the handler: Content-Encoding is its own, and not of what stands outside
	fault   error
}

// fault says why the recorded response is not what the handler meant. net/http would send it, and break off a body that
// is shorter than its Content-Length; here it would be committed, and replayed for ever.
func (w *recorder) fault(method string) error {
	declared, err := strconv.Atoi(w.header.Get("Content-Length"))
	switch {
	case w.late != 0:
		return fmt.Errorf("idemhttp: the handler wrote the status %d after %d", w.late, w.status)
	case err == nil && declared != w.body.Len() && bodyAllowed(w.status) && method != http.MethodHead:
		return fmt.Errorf("idemhttp: the handler wrote %d bytes, and a Content-Length of %d", w.body.Len(), declared)
	}
	return nil
}

// answer ends the recording.
func (w *recorder) answer(method string) *answer {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	fault := w.fault(method)
	a := &answer{status: w.status, header: w.header, trailer: http.Header{}, body: w.body.Bytes(), fault: fault}
	encoding := a.header.Values("Content-Encoding")
	a.encoded = len(encoding) > 0 && !slices.Equal(encoding, w.outer.Values("Content-Encoding"))
	// What net/http would find out of the body's beginning: so a replay has it, and whatever stands outside.
	if _, set := a.header["Content-Type"]; !set && len(a.body) > 0 && !a.encoded {
		a.header.Set("Content-Type", http.DetectContentType(a.body))
	}
	a.header.Del("Content-Length") // net/http counts what is sent
	declared := strings.Split(strings.Join(a.header.Values("Trailer"), ","), ",")
	for i, name := range declared {
		declared[i] = http.CanonicalHeaderKey(strings.TrimSpace(name))
	}
	for name, values := range w.live {
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(declared, name) {
			a.trailer[name] = values
		}
	}
	return a
}

// send sends the response as the handler wrote it.
func (a *answer) send(w http.ResponseWriter) {
	h := w.Header()
	clear(h) // the handler saw what was there, and may have taken some of it away
	maps.Copy(h, a.header)
	w.WriteHeader(a.status)
	if len(a.body) > 0 {
		_, _ = w.Write(a.body) // a client that has gone asks again
	}
	maps.Copy(h, a.trailer)
}
