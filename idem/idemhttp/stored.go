package idemhttp

import (
	"net/http"

	"github.com/pgonce/pgonce/dedup"
)

// stored is what a key keeps of a response. Values of headers are bytes: JSON would change those that are not UTF-8.
type stored struct {
	Status int                 `json:"status"`
	Header map[string][][]byte `json:"header,omitempty"`
	Body   []byte              `json:"body,omitempty"`
	Lost   bool                `json:"lost,omitempty"` // the response could not be kept
}

// keep makes of a response what is stored of it.
func (c *Config) keep(a *answer) stored {
	s := stored{Status: a.status, Header: map[string][][]byte{}}
	size := len(a.body)
	for _, name := range c.Headers {
		for _, v := range a.header[name] {
			s.Header[name] = append(s.Header[name], []byte(v))
			size += len(name) + len(v) + 16
		}
	}
	// An encoding is what one client accepts, and its body is of no use without the header that says so.
	if len(a.body) > c.MaxResponse || a.encoded || size > dedup.MaxValueBytes/4*3-1024 {
		return stored{Status: a.status, Lost: true}
	}
	s.Body = a.body
	return s
}

// replay sends what was kept.
func (c *Config) replay(w http.ResponseWriter, s stored) {
	h := w.Header()
	for name, values := range s.Header {
		h.Del(name)
		for _, v := range values {
			h.Add(name, string(v))
		}
	}
	h.Set(c.Replayed, "true") // whatever the handler, which may be a proxy, had there
	if s.Lost {
		p := newProblem(http.StatusGone, "not-kept", "The response was not kept", nil)
		p.Detail = "The request was executed once. Its response was too large, or of a kind that cannot be repeated."
		p.OriginalStatus = s.Status
		p.write(w, c.Docs)
		return
	}
	if _, set := h["Content-Type"]; !set {
		h["Content-Type"] = nil // net/http would guess, and make a page of what the handler did not call one
	}
	w.WriteHeader(s.Status)
	if len(s.Body) > 0 {
		_, _ = w.Write(s.Body)
	}
}
