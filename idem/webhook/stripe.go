package webhook

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pgonce/pgonce/dedup"
)

// Stripe is the [Provider] of events by Stripe, of API v1 and v2. Only Secrets is needed.
//
//   - ID: the event's id, unique for each event, the same on every retry. Sometimes Stripe makes two events of one
//     change, with two ids: see ByObject.
//   - Retries: up to 3 days in live mode, three within hours in a sandbox. By hand: 15 days in the dashboard, 30 days
//     by "stripe events resend"; the retries go on meanwhile. Retention: at least 30 days.
//   - Order: none. Event.Time is "created", in whole seconds in API v1, and Stripe advises against ordering by it. A
//     guard needs a tie-breaker that the application knows, such as the rank of a state, or fetches the object again.
//   - Signature: Stripe-Signature, HMAC-SHA256 of time and body, anew for each attempt. Only scheme v1 counts.
//
// A body may differ between attempts (pending_webhooks), so no hash of it is kept.
//
// Sources: https://docs.stripe.com/webhooks, https://docs.stripe.com/api/events.
type Stripe struct {
	// Secrets are the endpoint's secrets, "whsec_...". Any of them will do: while one is rolled, give both.
	Secrets []string

	// Tolerance is how far the signature's time may be from now, on either side. 0 means 5 minutes.
	Tolerance time.Duration

	// ByObject lists the types whose events are one if type and object (data.object.id) are the same, whatever the
	// event's id. List only what happens to an object once, such as "charge.succeeded". Of a type that repeats, such as
	// "customer.subscription.updated", every update after the first would be taken for a duplicate, and lost.
	//
	// A type that moves in or out of the list changes its keys: events delivered before and after run twice. Its keys
	// carry no time, so a table of layout dedup.Weekly cannot hold them.
	ByObject []string

	// Dated lets keys carry "created" (idem.Key.OccurredAt), as a table of layout dedup.Weekly needs. Then an event
	// made before the table's retention is refused with a 422, also if it was never processed. Without it an event
	// whose key was purged would run again; but that takes a retention shorter than Stripe resends for.
	Dated bool
}

var errNoObject = errors.New("webhook: an event of a type in Stripe.ByObject has no object with an id")

// Sender returns Stripe's facts; the source is "stripe".
func (s Stripe) Sender() Sender {
	return Sender{Source: "stripe", Resends: dedup.StripeResends, Dated: s.Dated}
}

// Validate reports a missing secret.
func (s Stripe) Validate() error {
	if s.Tolerance < 0 {
		return errTolerance
	}
	return checkSecrets(s.Secrets)
}

// Verify implements [Provider].
func (s Stripe) Verify(r *http.Request, body []byte, at time.Time) (Event, error) {
	if err := s.Validate(); err != nil {
		return Event{}, err
	}
	header, ok := only(r.Header, "Stripe-Signature")
	if !ok {
		return Event{}, ErrSignature
	}
	stamp, macs, ok := parseStripe(header)
	if !ok || !signed(bytesOf(s.Secrets), macs, []byte(stamp), []byte("."), body) {
		return Event{}, ErrSignature
	}
	if t, ok := parseUnix(stamp); !ok || !fresh(t, at, s.Tolerance) {
		return Event{}, ErrStale
	}
	return s.event(body)
}

// parseStripe reads "t=1492774577,v1=hex,v1=hex,v0=hex". Other schemes than v1 are ignored, so that none weaker can be
// asked for. A v1 that is no hex is ignored, too.
func parseStripe(header string) (stamp string, macs [][]byte, ok bool) {
	for pair := range strings.SplitSeq(header, ",") {
		name, value, found := strings.Cut(pair, "=")
		switch {
		case !found, name == "t" && (stamp != "" || value == ""):
			return "", nil, false
		case name == "t":
			stamp = value
		case name == "v1":
			if mac, err := hex.DecodeString(value); err == nil {
				macs = append(macs, mac)
			}
		}
	}
	return stamp, macs, stamp != "" && len(macs) > 0 && len(macs) <= maxSignatures
}

func (s Stripe) event(body []byte) (Event, error) {
	var p struct {
		ID      string          `json:"id"`
		Type    string          `json:"type"`
		Created json.RawMessage `json:"created"` // a number in v1, a text in v2
		Data    json.RawMessage `json:"data"`
		Related *object         `json:"related_object"` // v2
	}
	if json.Unmarshal(body, &p) != nil || p.ID == "" || p.Type == "" {
		return Event{}, ErrMalformed
	}
	e := Event{ID: p.ID, Type: p.Type}
	if e.Time = stripeTime(p.Created); e.Time.IsZero() {
		return Event{}, ErrMalformed
	}
	if slices.Contains(s.ByObject, p.Type) {
		var data struct {
			Object object `json:"object"`
		}
		if p.Related != nil {
			data.Object = *p.Related
		} else if err := json.Unmarshal(p.Data, &data); err != nil {
			return Event{}, errNoObject
		}
		if data.Object.ID == "" {
			return Event{}, errNoObject // by the event's id alone it could run twice
		}
		e.Key = []string{p.Type, data.Object.ID}
	}
	return e, nil
}

type object struct {
	ID string `json:"id"`
}

func stripeTime(raw json.RawMessage) time.Time {
	if t, ok := parseUnix(string(raw)); ok {
		return t
	}
	var t time.Time
	if json.Unmarshal(raw, &t) != nil {
		return time.Time{}
	}
	return t
}
