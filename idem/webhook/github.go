package webhook

import (
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// GitHub is the [Provider] of webhooks by GitHub. Secrets is needed.
//
//   - ID: the header X-GitHub-Delivery, unique for each event, the same when it is delivered again. An organization's
//     hook and a repository's may give one event different ids: use one of them.
//   - Retries: none. By hand or by the API, within 3 days. What got no 2xx within 10 seconds (30 on an Enterprise
//     Server) is lost unless somebody looks at the deliveries, and asks for it. Retention: at least 3 days.
//   - Order: none is promised, and Event.Time is zero: no field holds for all types. Use the object's own updated_at.
//   - Signature: X-Hub-Signature-256, HMAC-SHA256 of the body alone. It covers no time, no id and no type
//     (X-GitHub-Event). Whoever has seen a signed body can send it again, under a new id. If TLS is not enough against
//     that, give Effect.Fn a key of its own, from the body.
//   - Bodies: up to 25 MB. GitHub does not deliver larger ones.
//
// Let the hook send application/json: of application/x-www-form-urlencoded Event.Body is the form.
//
// Sources: https://docs.github.com/en/webhooks/using-webhooks/best-practices-for-using-webhooks,
// https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries,
// https://docs.github.com/en/webhooks/webhook-events-and-payloads.
type GitHub struct {
	// Secrets are the hook's secrets. Any of them will do: while one is changed, give both.
	Secrets []string
}

// Sender returns GitHub's facts; the source is "github".
func (g GitHub) Sender() Sender {
	return Sender{Source: "github", Resends: 3 * 24 * time.Hour, MaxBody: 25 << 20}
}

// Validate reports a missing secret.
func (g GitHub) Validate() error { return checkSecrets(g.Secrets) }

// Verify implements [Provider].
func (g GitHub) Verify(r *http.Request, body []byte, _ time.Time) (Event, error) {
	if err := g.Validate(); err != nil {
		return Event{}, err
	}
	header, ok := only(r.Header, "X-Hub-Signature-256")
	if !ok {
		return Event{}, ErrSignature
	}
	mac, ok := parseGitHub(header)
	if !ok || !signed(bytesOf(g.Secrets), [][]byte{mac}, body) {
		return Event{}, ErrSignature
	}
	id, ok := only(r.Header, "X-GitHub-Delivery")
	kind, typed := only(r.Header, "X-GitHub-Event")
	if !ok || !typed {
		return Event{}, ErrMalformed
	}
	return Event{ID: id, Type: kind}, nil
}

// parseGitHub reads "sha256=hex".
func parseGitHub(header string) ([]byte, bool) {
	text, ok := strings.CutPrefix(header, "sha256=")
	if !ok {
		return nil, false
	}
	mac, err := hex.DecodeString(text)
	return mac, err == nil
}
