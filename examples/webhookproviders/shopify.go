package webhookproviders

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"time"

	"github.com/pgonce/pgonce/idem/webhook"
)

// Shopify is the provider of webhooks by Shopify.
//
//   - ID: X-Shopify-Event-Id, the same in each delivery of an event. Of several subscriptions to one topic each gets
//     the event, with one id: give each endpoint a webhook.Handler.Endpoint of its own. Two subscriptions with one
//     endpoint are one effect.
//   - Retries: 8 times within 4 hours, with the body of the first attempt; deliveries can come up to a day late.
//     Retention: at least 2 days.
//   - Order: none is promised. Event.Time is X-Shopify-Triggered-At, when the event occurred. It is not signed, so it
//     guards against late events and not against a forger; the body's updated_at is signed.
//   - Signature: X-Shopify-Hmac-Sha256, HMAC-SHA256 of the body alone, in base64, with the app's client secret. It
//     holds no time, and covers neither id nor topic: whoever has seen a signed body can send it again, under a new
//     id. TLS keeps it from being seen.
//
// Sources: https://shopify.dev/apps/build/webhooks/ignore-duplicates,
// https://shopify.dev/changelog/updates-to-webhook-retry-mechanism, https://shopify.dev/apps/webhooks/best-practices,
// https://shopify.dev/docs/apps/build/webhooks/verify-deliveries.
type Shopify struct {
	// Secrets are the app's client secrets. Any of them will do: while one is rotated, give both.
	Secrets []string
}

// Sender implements webhook.Provider.
func (s Shopify) Sender() webhook.Sender {
	return webhook.Sender{Source: "shopify", Resends: 2 * 24 * time.Hour}
}

// Validate reports a missing secret: with an empty one anybody could sign.
func (s Shopify) Validate() error {
	for _, secret := range s.Secrets {
		if secret == "" {
			return errors.New("shopify: an empty secret")
		}
	}
	if len(s.Secrets) == 0 {
		return errors.New("shopify: no secret")
	}
	return nil
}

// Verify implements webhook.Provider.
func (s Shopify) Verify(r *http.Request, body []byte, _ time.Time) (webhook.Event, error) {
	if err := s.Validate(); err != nil {
		return webhook.Event{}, err
	}
	got, err := base64.StdEncoding.DecodeString(r.Header.Get("X-Shopify-Hmac-Sha256"))
	if err != nil {
		return webhook.Event{}, webhook.ErrSignature
	}
	found := false
	for _, secret := range s.Secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		found = hmac.Equal(mac.Sum(nil), got) || found
	}
	if !found {
		return webhook.Event{}, webhook.ErrSignature
	}
	e := webhook.Event{ID: r.Header.Get("X-Shopify-Event-Id"), Type: r.Header.Get("X-Shopify-Topic")}
	if e.ID == "" || e.Type == "" {
		return webhook.Event{}, webhook.ErrMalformed
	}
	if t, err := time.Parse(time.RFC3339Nano, r.Header.Get("X-Shopify-Triggered-At")); err == nil {
		e.Time = t
	}
	return e, nil
}
