package idemhttp

import (
	"errors"
	"net/http"
)

// Fate is what becomes of what a handler wrote, and of its response.
type Fate uint8

const (
	// Discard rolls back what the handler wrote, and keeps nothing: the response is sent, and a retry runs the handler.
	Discard Fate = iota
	// Commit commits what the handler wrote, with the key and the response.
	Commit
	// Refuse rolls back what the handler wrote, and keeps only the key and the response: a retry gets the same refusal.
	// It takes a second transaction. If another request with the key commits before that, its response is sent.
	Refuse
)

// DefaultPolicy commits 2xx and 3xx. It refuses the 4xx that only the request decides. It discards all others: 1xx,
// 5xx, and 401, 407, 408, 409, 421, 423, 424, 425, 429, which time, a rival or another login may change. So it does a
// 4xx that no standard names (419, 440 and 499 are used for sessions that ended and clients that went).
func DefaultPolicy(status int) Fate {
	switch {
	case never(status):
		return Discard
	case status < 400:
		return Commit
	}
	switch status {
	case http.StatusProxyAuthRequired, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusFailedDependency,
		http.StatusTooEarly:
		return Discard
	}
	if http.StatusText(status) == "" {
		return Discard
	}
	return Refuse
}

// never reports whether a response with this status is never kept, whatever the policy.
func never(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	}
	return status < 200 || status >= 500
}

// fate asks the policy. What it answers must be a Fate: else a response would be committed that nobody chose to.
func (c *Config) fate(status int) (Fate, error) {
	if never(status) {
		return Discard, nil
	}
	f := c.Policy(status)
	if f > Refuse {
		return Discard, errFate
	}
	return f, nil
}

var errFate = errors.New("idemhttp: Policy returned no Fate")
