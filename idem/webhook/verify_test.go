package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/webhook"
)

// now is the time of arrival; it is given, so that tolerances are exact.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// verify makes a delivery, lets change spoil it, and verifies it.
func (s sender) verify(
	p webhook.Provider, signedAt time.Time, change func(h http.Header, body string) string, secrets ...string,
) (webhook.Event, error) {
	body := s.body("evt_1", "thing.made", now)
	h := s.sign("evt_1", "thing.made", body, signedAt, secrets...)
	if change != nil {
		body = change(h, body)
	}
	r := httptest.NewRequest(http.MethodPost, "/hook", nil)
	r.Header = h
	return p.Verify(r, []byte(body), now)
}

func TestVerify(t *testing.T) {
	for _, s := range senders {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := s.provider(oldSecret, newSecret)
			good := func(name string, e webhook.Event, err error) {
				t.Helper()
				require.NoError(t, err, name)
				require.Equal(t, "evt_1", e.ID, name)
				require.Equal(t, "thing.made", e.Type, name)
				require.Nil(t, e.Key, name)
				if s.stamped {
					require.True(t, now.Equal(e.Time), "%s: %v", name, e.Time)
				}
			}
			e, err := s.verify(p, now, nil, newSecret)
			good("new secret", e, err)
			e, err = s.verify(p, now, nil, oldSecret)
			good("old secret", e, err)
			if s.another != "" {
				e, err = s.verify(s.provider(newSecret), now, nil, oldSecret, newSecret)
				good("signed with both, the new one is known", e, err)
				e, err = s.verify(s.provider(oldSecret), now, nil, oldSecret, newSecret)
				good("signed with both, the old one is known", e, err)
				many := func(n int) func(h http.Header, body string) string {
					return func(h http.Header, body string) string {
						h.Set(s.signature, h.Get(s.signature)+strings.Repeat(s.another, n))
						return body
					}
				}
				e, err = s.verify(p, now, many(15), newSecret)
				good("sixteen signatures", e, err)
				_, err = s.verify(p, now, many(16), newSecret)
				require.ErrorIs(t, err, webhook.ErrSignature, "a header that costs too much")
			}

			refused := map[string]struct {
				change func(h http.Header, body string) string
				secret string
			}{
				"another secret":     {nil, "whsec_YW5vdGhlciBzZWNyZXQ="},
				"a byte of the body": {func(_ http.Header, body string) string { return body[:3] + "_" + body[4:] }, newSecret},
				"a longer body":      {func(_ http.Header, body string) string { return body + " " }, newSecret},
				"no body":            {func(http.Header, string) string { return "" }, newSecret},
				"no signature":       {func(h http.Header, body string) string { h.Del(s.signature); return body }, newSecret},
				"an empty one":       {func(h http.Header, body string) string { h.Set(s.signature, ""); return body }, newSecret},
				"two headers": {func(h http.Header, body string) string {
					h.Add(s.signature, h.Get(s.signature))
					return body
				}, newSecret},
				"another scheme": {func(h http.Header, body string) string {
					return swap(h, s, body, "v1", "v0", "sha256", "sha1")
				}, newSecret},
				"a shorter signature": {func(h http.Header, body string) string { return shorten(h, s, body) }, newSecret},
			}
			for name, tc := range refused {
				_, err := s.verify(p, now, tc.change, tc.secret)
				require.ErrorIs(t, err, webhook.ErrSignature, name)
			}

			for _, secrets := range [][]string{nil, {""}, {newSecret, ""}} {
				p := s.provider(secrets...)
				_, err := s.verify(p, now, nil, newSecret)
				require.Error(t, err)
				require.NotErrorIs(t, err, webhook.ErrSignature, "a fault of ours is not the sender's")
				require.Error(t, webhook.Handler{Provider: p, Endpoint: "x", Sink: webhook.SinkFunc(nil)}.Validate())
			}
		})
	}
}

func swap(h http.Header, s sender, body string, pairs ...string) string {
	h.Set(s.signature, strings.NewReplacer(pairs...).Replace(h.Get(s.signature)))
	return body
}

// shorten takes the last character of the signature that counts.
func shorten(h http.Header, s sender, body string) string {
	value := strings.TrimSuffix(h.Get(s.signature), ",v0=00")
	h.Set(s.signature, value[:len(value)-1])
	return body
}

// The time of the signature may differ from now by the tolerance, on either side, and by no second more.
func TestTolerance(t *testing.T) {
	for _, s := range senders {
		if !s.stamped {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := s.provider(newSecret)
			for _, d := range []time.Duration{-5 * time.Minute, 0, 5 * time.Minute} {
				_, err := s.verify(p, now.Add(d), nil, newSecret)
				require.NoError(t, err, d)
			}
			for _, d := range []time.Duration{
				-5*time.Minute - time.Second, 5*time.Minute + time.Second, -1000 * time.Hour, -now.Sub(time.Unix(0, 0)),
			} {
				_, err := s.verify(p, now.Add(d), nil, newSecret)
				require.ErrorIs(t, err, webhook.ErrStale, d)
			}
		})
	}
	s := senders[0]
	wide := webhook.Stripe{Secrets: []string{newSecret}, Tolerance: time.Hour}
	_, err := s.verify(wide, now.Add(-59*time.Minute), nil, newSecret)
	require.NoError(t, err)
	_, err = s.verify(webhook.Stripe{Secrets: []string{newSecret}, Tolerance: -1}, now, nil, newSecret)
	require.Error(t, err, "a check that is switched off")
	narrow := webhook.Stripe{Secrets: []string{newSecret}, Tolerance: time.Second}
	_, err = s.verify(narrow, now.Add(-2*time.Second), nil, newSecret)
	require.ErrorIs(t, err, webhook.ErrStale)
}

func TestStripeEvents(t *testing.T) {
	s := senders[0]
	verify := func(body string, byObject ...string) (webhook.Event, error) {
		p := webhook.Stripe{Secrets: []string{newSecret}, ByObject: byObject}
		return s.verify(p, now, func(h http.Header, _ string) string {
			h.Set("Stripe-Signature", s.sign("", "", body, now, newSecret).Get("Stripe-Signature"))
			return body
		}, newSecret)
	}
	const made = `{"id":"evt_1","type":"charge.succeeded","created":1772366400,"data":{"object":{"id":"ch_1"}}}`

	e, err := verify(made, "charge.succeeded")
	require.NoError(t, err)
	require.Equal(t, []string{"charge.succeeded", "ch_1"}, e.Key)
	require.Equal(t, "evt_1", e.ID)
	e, err = verify(made, "charge.refunded")
	require.NoError(t, err)
	require.Nil(t, e.Key, "a type that was not named")

	// Events of API v2.
	thin := `{"id":"evt_2","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered",` +
		`"created":"2026-03-01T12:00:00.250Z","related_object":{"id":"mtr_1"}}`
	e, err = verify(thin, "v1.billing.meter.error_report_triggered")
	require.NoError(t, err)
	require.Equal(t, now.Add(250*time.Millisecond), e.Time.UTC())
	require.Equal(t, []string{"v1.billing.meter.error_report_triggered", "mtr_1"}, e.Key)

	for name, body := range map[string]string{
		"no id":        `{"type":"a","created":1}`,
		"no type":      `{"id":"evt_1","created":1}`,
		"no time":      `{"id":"evt_1","type":"a"}`,
		"time is null": `{"id":"evt_1","type":"a","created":null}`,
		"no object":    `[]`,
		"no JSON":      `id=evt_1`,
		"empty":        ``,
		"cut off":      made[:40],
		"id no text":   `{"id":5,"type":"a","created":1}`,
	} {
		_, err := verify(body)
		require.ErrorIs(t, err, webhook.ErrMalformed, name)
	}
	// The setup is wrong here, and can be put right before the sender gives up.
	for _, body := range []string{
		`{"id":"evt_1","type":"invoice.upcoming","created":1,"data":{"object":{"id":null}}}`,
		`{"id":"evt_1","type":"invoice.upcoming","created":1,"data":{"object":[]}}`,
		`{"id":"evt_1","type":"invoice.upcoming","created":1}`,
	} {
		_, err := verify(body, "invoice.upcoming")
		require.Error(t, err)
		require.NotErrorIs(t, err, webhook.ErrMalformed)
		_, err = verify(body)
		require.NoError(t, err, "without the option nobody asks for the object")
	}
}

// The parts of what is signed cannot be moved: an id with a dot would read the time, or the body, in another way.
func TestStandardID(t *testing.T) {
	s := senders[2]
	p := s.provider(newSecret)
	r := httptest.NewRequest(http.MethodPost, "/hook", nil)
	r.Header = s.sign("evt_1", "", "1772366400.{}", now, newSecret)
	_, err := p.Verify(r, []byte("1772366400.{}"), now)
	require.NoError(t, err)
	r.Header.Set("webhook-id", "evt_1."+r.Header.Get("webhook-timestamp"))
	r.Header.Set("webhook-timestamp", "1772366400")
	_, err = p.Verify(r, []byte("{}"), now)
	require.ErrorIs(t, err, webhook.ErrSignature)

	// A body of any kind is passed on.
	for _, body := range []string{"", "plain", `"text"`, `{"type":5}`, `{"type":"a","timestamp":5}`, "\xff\x00"} {
		r.Header = s.sign("evt_1", "", body, now, newSecret)
		e, err := p.Verify(r, []byte(body), now)
		require.NoError(t, err, "%q", body)
		require.Equal(t, "evt_1", e.ID)
		require.True(t, e.Time.IsZero())
	}
}

// What is signed with the public key as if it were a secret is not signed.
func TestStandardPublicKeyIsNoSecret(t *testing.T) {
	hmacSender, keySender := senders[2], senders[4]
	public := keySender.provider(newSecret).(webhook.Standard).Secrets[0]
	_, err := hmacSender.verify(keySender.provider(newSecret), now, nil, "whsec_"+strings.TrimPrefix(public, "whpk_"))
	require.ErrorIs(t, err, webhook.ErrSignature)
	for _, secret := range []string{"whpk_AAAA", "whpk_", "whsec_", "whsec_!", "=", public + "A"} {
		require.Error(t, webhook.Standard{Source: "x", Secrets: []string{secret}}.Validate(), secret)
	}
}
