package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strconv"
	"time"
)

const (
	defaultTolerance = 5 * time.Minute

	// A header with more signatures than this is refused: during a roll there are two or three.
	maxSignatures = 16
)

var (
	errNoSecret  = errors.New("webhook: Secrets is empty, or holds an empty secret")
	errTolerance = errors.New("webhook: Tolerance and Resends must not be negative")
)

// checkSecrets refuses an empty secret: with that one anybody can sign.
func checkSecrets(secrets []string) error {
	if len(secrets) == 0 {
		return errNoSecret
	}
	for _, s := range secrets {
		if s == "" {
			return errNoSecret
		}
	}
	return nil
}

// signed reports whether one of macs is the HMAC-SHA256 of the parts, joined, under one of the secrets. All are
// compared, each in constant time, so that the time says nothing of which one was near.
func signed(secrets, macs [][]byte, parts ...[]byte) bool {
	found := 0
	for _, secret := range secrets {
		want := mac(secret, parts...)
		for _, got := range macs {
			found |= subtle.ConstantTimeCompare(want, got)
		}
	}
	return found == 1
}

// mac returns the HMAC-SHA256 of the parts, joined.
func mac(secret []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, secret)
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}

func bytesOf(secrets []string) [][]byte {
	all := make([][]byte, len(secrets))
	for i, s := range secrets {
		all[i] = []byte(s)
	}
	return all
}

// only returns a header that must be there once: of two values nobody could say which one was signed.
func only(h http.Header, name string) (string, bool) {
	all := h.Values(name)
	if len(all) != 1 || all[0] == "" {
		return "", false
	}
	return all[0], true
}

// parseUnix reads seconds since 1970: digits, and nothing else. Twelve of them reach beyond the year 30000.
func parseUnix(s string) (time.Time, bool) {
	if s == "" || len(s) > 12 {
		return time.Time{}, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return time.Time{}, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return time.Unix(n, 0), err == nil
}

// fresh reports whether a signature's time is near enough to the time of arrival, on either side.
func fresh(t, at time.Time, tolerance time.Duration) bool {
	return at.Sub(t).Abs() <= or(tolerance, defaultTolerance)
}
