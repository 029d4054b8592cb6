package webhookproviders

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/webhook"
)

// changed returns the body with one byte of another value, or one byte more.
func changed(body []byte, where, with byte) []byte {
	b := bytes.Clone(body)
	if len(b) == 0 || with == 0 {
		return append(b, with)
	}
	b[int(where)%len(b)] ^= with
	return b
}

// What Shopify did not sign is no event, whatever its header looks like; what it signed is one of exactly these bytes.
func FuzzShopify(f *testing.F) {
	f.Add("AAAA", []byte(`{"id":1}`), byte(1), byte(1))
	f.Add("=", []byte(""), byte(0), byte(0))
	f.Add("\xff,", []byte("[]"), byte(9), byte(255))
	p := Shopify{Secrets: []string{"old", "new"}}
	f.Fuzz(func(t *testing.T, value string, body []byte, where, with byte) {
		r := shopifyRequest("new", "evt_1", string(body))
		_, err := p.Verify(r, body, time.Now())
		require.NoError(t, err)
		_, err = p.Verify(r, changed(body, where, with), time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
		r.Header["X-Shopify-Hmac-Sha256"] = []string{value}
		_, err = p.Verify(r, body, time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
	})
}

// The same of Slack, with the time beside it.
func FuzzSlack(f *testing.F) {
	f.Add("v0=00ff", "1772366400", []byte(`{"type":"event_callback"}`), byte(1), byte(1))
	f.Add("v0=", "-1", []byte(""), byte(0), byte(0))
	f.Add("", "99999999999999999999", []byte("[]"), byte(9), byte(255))
	p := Slack{Secret: "s"}
	f.Fuzz(func(t *testing.T, value, stamp string, body []byte, where, with byte) {
		r := slackRequest("s", string(body), time.Now())
		if _, err := p.Verify(r, body, time.Now()); err != nil {
			require.ErrorIs(t, err, webhook.ErrMalformed, "signed as documented")
		}
		_, err := p.Verify(r, changed(body, where, with), time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
		r.Header["X-Slack-Signature"] = []string{value}
		_, err = p.Verify(r, body, time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
		r.Header["X-Slack-Request-Timestamp"] = []string{stamp}
		_, err = p.Verify(r, body, time.Now())
		require.Error(t, err) // a time that is not now may be refused before the signature is looked at
		require.NotErrorIs(t, err, webhook.ErrMalformed)
	})
}
