package idemhttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// problem is an answer of the middleware's own, as RFC 9457 writes it.
type problem struct {
	Type           string `json:"type"`
	Title          string `json:"title"`
	Status         int    `json:"status"`
	Detail         string `json:"detail,omitempty"`
	OriginalStatus int    `json:"original_status,omitempty"`

	name  string
	retry time.Duration
}

// newProblem makes a problem; err, where there is one, is for the client, too.
func newProblem(status int, name, title string, err error) *problem {
	p := &problem{Title: title, Status: status, name: name}
	if err != nil {
		p.Detail = "In this request, " + err.Error() + "."
	}
	return p
}

func (p *problem) Error() string { return "idemhttp: " + p.Title }

func (p *problem) write(w http.ResponseWriter, docs string) {
	p.Type = docs + "#" + p.name
	b, _ := json.Marshal(p) // strings and numbers alone
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int((p.retry+time.Second-1)/time.Second)))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(b)
}

// problemOf says what an error means to the client. The status is that of idem.HTTPStatus.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	p = &problem{Status: idem.HTTPStatus(err), retry: idem.RetryAfter(err)}
	var e *idem.Error
	switch {
	case errors.As(err, &e) && e.Unknown:
		p.name, p.Title = "unknown", "Whether the request took effect is not known"
		p.Detail = "It did once, or not at all. The same request with the same key gets the right answer."
	case ofHandler(err):
		return failure(err)
	case errors.Is(err, idem.ErrInProgress), errors.Is(err, idem.ErrLostLease):
		p.name, p.Title = "in-progress", "A request with this key is outstanding"
	case errors.Is(err, idem.ErrUnfinished), errors.Is(err, idem.ErrUnknown):
		p.name, p.Title = "interrupted", "A request with this key was interrupted"
		p.Detail = "Whether it took effect has to be found out first."
	case errors.Is(err, idem.ErrPayloadMismatch):
		p.name, p.Title = "mismatch", "The key was used for another request"
	case errors.Is(err, idem.ErrExpired), errors.Is(err, idem.ErrFuture):
		p.name, p.Title = "expired", "The key's time is outside of the time that keys are kept"
	case p.Status >= http.StatusInternalServerError:
		return failure(err)
	default:
		p.name, p.Title = "refused", "The request was refused"
	}
	return p
}

// failure is the problem of what went wrong here. No retry is spoilt by it.
func failure(err error) *problem {
	if !idem.Retryable(err) {
		return &problem{Status: http.StatusInternalServerError, name: "failed", Title: "The request failed"}
	}
	return &problem{
		Status: http.StatusServiceUnavailable, name: "unavailable", Title: "The request could not be executed now",
		Detail: "The same request with the same key may succeed later.", retry: idem.RetryAfter(err),
	}
}
