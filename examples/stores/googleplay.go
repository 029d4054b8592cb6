package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/webhook"
)

// GooglePlay is the provider of Real-time developer notifications, which a Pub/Sub push subscription delivers.
//
//   - ID: messageId of Pub/Sub, unique in the topic, the same on every redelivery. What Google publishes again has
//     another one, so the purchase has a guard of its own.
//   - Retries: after every answer but 102, 200, 201, 202 and 204, and after the acknowledgement deadline (10 seconds at
//     first), for as long as the subscription keeps messages: 7 days, or up to 31. Retention: at least that.
//   - Order: none. Event.Time is eventTimeMillis, in milliseconds. A notification is a hint: the state of a purchase is
//     asked for at the Play Developer API.
//   - Signature: an OIDC token in Authorization, made out to Audience by Google for the service account Email. It does
//     not cover the body: whoever sees a token can use it, with any body, until it expires (within an hour). TLS keeps
//     it from being seen.
//
// A token that cannot be verified, for instance as Google's keys cannot be fetched, is a 401: Pub/Sub repeats.
//
// Sources: https://developer.android.com/google/play/billing/rtdn-reference,
// https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions,
// https://cloud.google.com/pubsub/docs/subscription-properties.
type GooglePlay struct {
	Verifier *oidc.IDTokenVerifier // see newVerifier
	Email    string                // of the service account of the push subscription
	Package  string                // "com.example.app"
}

const googleKeys = "https://www.googleapis.com/oauth2/v3/certs"

// newVerifier returns a verifier of Google's tokens for an audience. It fetches the keys when it first needs them.
func newVerifier(ctx context.Context, audience, keysURL string) *oidc.IDTokenVerifier {
	keys := oidc.NewRemoteKeySet(ctx, keysURL)
	return oidc.NewVerifier("https://accounts.google.com", keys, &oidc.Config{ClientID: audience})
}

// Sender implements webhook.Provider.
func (g GooglePlay) Sender() webhook.Sender {
	return webhook.Sender{Source: "google_play", Resends: dedup.PubSubResends}
}

// Validate reports what is missing.
func (g GooglePlay) Validate() error {
	if g.Verifier == nil || g.Email == "" || g.Package == "" {
		return errors.New("google play: Verifier, Email and Package are needed")
	}
	return nil
}

// developerNotification is what Google Play says; one of the pointers is set.
type developerNotification struct {
	Package      string `json:"packageName"`
	Time         string `json:"eventTimeMillis"`
	Subscription *hint  `json:"subscriptionNotification"`
	OneTime      *hint  `json:"oneTimeProductNotification"`
	Voided       *hint  `json:"voidedPurchaseNotification"`
	Test         *hint  `json:"testNotification"`
}

type hint struct {
	Type  int    `json:"notificationType"`
	Token string `json:"purchaseToken"`
}

// Verify implements webhook.Provider.
func (g GooglePlay) Verify(r *http.Request, body []byte, _ time.Time) (webhook.Event, error) {
	if err := g.Validate(); err != nil {
		return webhook.Event{}, err
	}
	raw, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return webhook.Event{}, webhook.ErrSignature
	}
	token, err := g.Verifier.Verify(r.Context(), raw)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return webhook.Event{}, webhook.ErrStale
	case err != nil:
		return webhook.Event{}, webhook.ErrSignature
	}
	// The audience is no secret, and Google makes tokens for anybody: the account says who asked for this one.
	var claims struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
	}
	if token.Claims(&claims) != nil || claims.Email != g.Email || !claims.Verified {
		return webhook.Event{}, webhook.ErrSignature
	}
	id, n, err := g.read(body)
	if err != nil {
		return webhook.Event{}, err
	}
	ms, err := strconv.ParseInt(n.Time, 10, 64)
	if err != nil || ms <= 0 {
		return webhook.Event{}, webhook.ErrMalformed
	}
	return webhook.Event{ID: id, Type: n.kind(), Time: time.UnixMilli(ms)}, nil
}

func (g GooglePlay) read(body []byte) (id string, n developerNotification, err error) {
	var push struct {
		Message struct {
			ID   string `json:"messageId"`
			Data []byte `json:"data"` // base64
		} `json:"message"`
	}
	if json.Unmarshal(body, &push) != nil || json.Unmarshal(push.Message.Data, &n) != nil {
		return "", n, webhook.ErrMalformed
	}
	if push.Message.ID == "" || n.Package != g.Package || n.kind() == "" {
		return "", n, webhook.ErrMalformed
	}
	return push.Message.ID, n, nil
}

func (n developerNotification) kind() string {
	switch {
	case n.Subscription != nil:
		return "subscription." + strconv.Itoa(n.Subscription.Type)
	case n.OneTime != nil:
		return "one_time." + strconv.Itoa(n.OneTime.Type)
	case n.Voided != nil:
		return "voided"
	case n.Test != nil:
		return "test"
	}
	return ""
}

// Token returns the purchase that a notification is about, "" where it is about none.
func (g GooglePlay) Token(e webhook.Event) (string, error) {
	_, n, err := g.read(e.Body)
	for _, h := range []*hint{n.Subscription, n.OneTime, n.Voided} {
		if h != nil {
			return h.Token, err
		}
	}
	return "", err
}
