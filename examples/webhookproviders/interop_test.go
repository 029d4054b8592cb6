package webhookproviders

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	stripehook "github.com/stripe/stripe-go/v85/webhook"

	"github.com/pgonce/pgonce/idem/webhook"
)

const (
	oldSecret = "whsec_b2xkIHNlY3JldCBvZiB0ZXN0cw=="
	newSecret = "whsec_bmV3IHNlY3JldCBvZiB0ZXN0cw=="
)

func stripeBody(id string) string {
	return fmt.Sprintf(`{"id":%q,"object":"event","type":"charge.succeeded","created":%d,"data":{"object":{"id":"ch_1"}}}`,
		id, time.Now().Unix())
}

func verifyStripe(body, header, secret string) error {
	p := webhook.Stripe{Secrets: []string{secret}}
	_, err := p.Verify(post(body, "Stripe-Signature", header), []byte(body), time.Now())
	return err
}

// What stripe-go signs, ours accepts, and what it refuses, ours refuses: one table of headers, two judges.
func TestStripeGo(t *testing.T) {
	t.Parallel()
	body := stripeBody("evt_1")
	now := time.Now()
	sign := func(secret string, age time.Duration, scheme string) string {
		return stripehook.GenerateTestSignedPayload(&stripehook.UnsignedPayload{
			Payload: []byte(body), Secret: secret, Timestamp: now.Add(-age), Scheme: scheme,
		}).Header
	}
	good := sign(newSecret, 0, "")
	stamp, mac, _ := strings.Cut(good, ",")
	for name, tc := range map[string]struct {
		header string
		body   string
		want   error
	}{
		"signed":              {good, body, nil},
		"four minutes old":    {sign(newSecret, 4*time.Minute, ""), body, nil},
		"six minutes old":     {sign(newSecret, 6*time.Minute, ""), body, webhook.ErrStale},
		"another secret":      {sign(oldSecret, 0, ""), body, webhook.ErrSignature},
		"another scheme":      {sign(newSecret, 0, "v0"), body, webhook.ErrSignature},
		"two signatures":      {stamp + ",v1=00ff," + mac, body, nil},
		"a signature no hex":  {stamp + ",v1=zz," + mac, body, nil},
		"an unknown scheme":   {good + ",v9=00", body, nil},
		"signature first":     {mac + "," + stamp, body, nil},
		"no time":             {mac, body, webhook.ErrSignature},
		"no signature":        {stamp, body, webhook.ErrSignature},
		"no pairs":            {"abc", body, webhook.ErrSignature},
		"empty":               {"", body, webhook.ErrSignature},
		"time no number":      {"t=abc," + mac, body, webhook.ErrSignature},
		"another time":        {"t=1," + mac, body, webhook.ErrSignature},
		"another body":        {good, stripeBody("evt_2"), webhook.ErrSignature},
		"half of a signature": {stamp + "," + mac[:20], body, webhook.ErrSignature},
	} {
		theirs := stripehook.ValidatePayload([]byte(tc.body), tc.header, newSecret)
		ours := verifyStripe(tc.body, tc.header, newSecret)
		require.Equal(t, tc.want == nil, theirs == nil, "%s: stripe-go says %v", name, theirs)
		require.ErrorIs(t, ours, tc.want, name)
	}
	// A roll: Stripe signs with both, and each of us knows one of them.
	rolled := stamp + "," + strings.TrimPrefix(sign(oldSecret, 0, ""), stamp+",") + "," + mac
	for _, secret := range []string{oldSecret, newSecret} {
		require.NoError(t, verifyStripe(body, rolled, secret))
		require.NoError(t, stripehook.ValidatePayload([]byte(body), rolled, secret))
	}
}

// The same with the Go library of Standard Webhooks.
func TestStandardWebhooks(t *testing.T) {
	t.Parallel()
	const body = `{"type":"a.made","timestamp":"2026-03-01T12:00:00Z","data":{}}`
	signer := func(secret string) *standardwebhooks.Webhook {
		wh, err := standardwebhooks.NewWebhook(secret)
		require.NoError(t, err)
		return wh
	}
	sign := func(secret, id string, at time.Time) string {
		s, err := signer(secret).Sign(id, at, []byte(body))
		require.NoError(t, err)
		return s
	}
	request := func(id string, at time.Time, signature, body string) *http.Request {
		return post(body, "webhook-id", id, "webhook-timestamp", fmt.Sprint(at.Unix()), "webhook-signature", signature)
	}
	now := time.Now()
	old, late := now.Add(-6*time.Minute), now.Add(6*time.Minute)
	good := sign(newSecret, "msg_1", now)
	for name, tc := range map[string]struct {
		r    *http.Request
		want error
	}{
		"signed":             {request("msg_1", now, sign(newSecret, "msg_1", now), body), nil},
		"two signatures":     {request("msg_1", now, sign(oldSecret, "msg_1", now)+" "+good, body), nil},
		"an unknown version": {request("msg_1", now, "v3,AAAA "+sign(newSecret, "msg_1", now), body), nil},
		"another secret":     {request("msg_1", now, sign(oldSecret, "msg_1", now), body), webhook.ErrSignature},
		"another id":         {request("msg_2", now, sign(newSecret, "msg_1", now), body), webhook.ErrSignature},
		"another time":       {request("msg_1", now.Add(time.Second), good, body), webhook.ErrSignature},
		"another body":       {request("msg_1", now, sign(newSecret, "msg_1", now), body+" "), webhook.ErrSignature},
		"too old":            {request("msg_1", old, sign(newSecret, "msg_1", old), body), webhook.ErrStale},
		"too new":            {request("msg_1", late, sign(newSecret, "msg_1", late), body), webhook.ErrStale},
		"no signature":       {request("msg_1", now, "", body), webhook.ErrSignature},
		"no version":         {request("msg_1", now, strings.TrimPrefix(good, "v1,"), body), webhook.ErrSignature},
	} {
		sent := []byte(body)
		if name == "another body" {
			sent = append(sent, ' ')
		}
		theirs := signer(newSecret).Verify(sent, tc.r.Header)
		e, ours := webhook.Standard{Source: "x", Secrets: []string{newSecret}}.Verify(tc.r, sent, time.Now())
		require.Equal(t, tc.want == nil, theirs == nil, "%s: the library says %v", name, theirs)
		require.ErrorIs(t, ours, tc.want, name)
		if ours == nil {
			require.Equal(t, "msg_1", e.ID)
			require.Equal(t, "a.made", e.Type)
		}
	}
	// Secrets that it refuses, ours refuses.
	for _, secret := range []string{"whsec_", "whsec_!", ""} {
		_, theirs := standardwebhooks.NewWebhook(secret)
		require.Error(t, theirs, secret)
		require.Error(t, webhook.Standard{Source: "x", Secrets: []string{secret}}.Validate(), secret)
	}
	// Without its prefix a secret is the same secret.
	bare := strings.TrimPrefix(newSecret, "whsec_")
	_, err := base64.StdEncoding.DecodeString(bare)
	require.NoError(t, err)
	_, err = webhook.Standard{Source: "x", Secrets: []string{bare}}.Verify(
		request("msg_1", now, sign(bare, "msg_1", now), body), []byte(body), time.Now())
	require.NoError(t, err)
}

// What is signed as the specification says, by neither library, both accept; and what ours answers to a challenge,
// theirs accepts.
func TestStandardWebhooksTheOtherWay(t *testing.T) {
	t.Parallel()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(newSecret, "whsec_"))
	require.NoError(t, err)
	theirs, err := standardwebhooks.NewWebhook(newSecret)
	require.NoError(t, err)
	ours := webhook.Standard{Source: "x", Secrets: []string{newSecret}}
	for _, body := range []string{``, `{"type":"a"}`, "\xff\x00", strings.Repeat("x", 100_000)} {
		stamp := fmt.Sprint(time.Now().Unix())
		for name, c := range map[string]struct {
			signature string
			good      bool
		}{
			"the one":       {"v1," + base64.StdEncoding.EncodeToString(mac(string(key), "msg_1.", stamp, ".", body)), true},
			"text as key":   {"v1," + base64.StdEncoding.EncodeToString(mac(newSecret, "msg_1.", stamp, ".", body)), false},
			"no time in it": {"v1," + base64.StdEncoding.EncodeToString(mac(string(key), "msg_1.", body)), false},
		} {
			r := post(body, "webhook-id", "msg_1", "webhook-timestamp", stamp, "webhook-signature", c.signature)
			_, err := ours.Verify(r, []byte(body), time.Now())
			require.Equal(t, c.good, err == nil, name)
			require.Equal(t, c.good, theirs.Verify([]byte(body), r.Header) == nil, name)
		}
	}

	for _, challenge := range []string{"c", "a/b+c==", strings.Repeat("x", 1000)} {
		e, err := ours.Verify(post("", standardwebhooks.HeaderWebhookChallenge, challenge), nil, time.Now())
		require.NoError(t, err)
		answer := e.ReplyHeader.Get(standardwebhooks.HeaderWebhookChallengeResponse)
		require.NoError(t, theirs.VerifyEndpointVerificationResponse(challenge, answer))
		require.Error(t, theirs.VerifyEndpointVerificationResponse(challenge+".", answer))
	}
}
