package webhookproviders

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/slack-go/slack"

	"github.com/pgonce/pgonce/idem/webhook"
)

// Slack is the provider of Slack's Events API.
//
//   - ID: event_id, unique for each event, the same on every retry. X-Slack-Retry-Num only counts: to take what has
//     it for a duplicate loses every event whose first attempt failed.
//   - Retries: three, the last one minutes after the first attempt, also while that one is still at work. An answer is
//     awaited for 3 seconds: keep the effect short. Retention: at least a day.
//   - Order: none is promised. Event.Time is event_time, in whole seconds: too coarse for a guard without a
//     tie-breaker.
//   - Signature: X-Slack-Signature, HMAC-SHA256 of time and body, within 5 minutes. Slack knows one secret at a time.
//
// When an endpoint is set up, Slack sends a challenge, signed like an event, and wants it back.
//
// Sources: https://docs.slack.dev/authentication/verifying-requests-from-slack, https://api.slack.com/types/event,
// https://docs.slack.dev/apis/events-api.
type Slack struct {
	Secret string // the app's signing secret
}

// Sender implements webhook.Provider.
func (s Slack) Sender() webhook.Sender {
	return webhook.Sender{Source: "slack", Resends: 24 * time.Hour}
}

// Validate reports a missing secret.
func (s Slack) Validate() error {
	if s.Secret == "" {
		return errors.New("slack: no secret")
	}
	return nil
}

// Verify implements webhook.Provider. The library compares the time with the clock of its own.
func (s Slack) Verify(r *http.Request, body []byte, _ time.Time) (webhook.Event, error) {
	if err := s.Validate(); err != nil {
		return webhook.Event{}, err
	}
	verifier, err := slack.NewSecretsVerifier(r.Header, s.Secret)
	switch {
	case errors.Is(err, slack.ErrExpiredTimestamp):
		return webhook.Event{}, webhook.ErrStale
	case err != nil:
		return webhook.Event{}, webhook.ErrSignature
	}
	if _, err := verifier.Write(body); err != nil || verifier.Ensure() != nil {
		return webhook.Event{}, webhook.ErrSignature
	}
	var p struct {
		Type      string `json:"type"`
		Challenge string `json:"challenge"`
		ID        string `json:"event_id"`
		Time      int64  `json:"event_time"`
		Event     struct {
			Type string `json:"type"`
		} `json:"event"`
	}
	if json.Unmarshal(body, &p) != nil {
		return webhook.Event{}, webhook.ErrMalformed
	}
	switch {
	case p.Type == "url_verification" && p.Challenge != "":
		return webhook.Event{Type: p.Type, Reply: []byte(p.Challenge)}, nil
	case p.ID == "" || p.Time <= 0:
		return webhook.Event{}, webhook.ErrMalformed
	}
	kind := p.Event.Type
	if kind == "" {
		kind = p.Type
	}
	return webhook.Event{ID: p.ID, Type: kind, Time: time.Unix(p.Time, 0)}, nil
}
