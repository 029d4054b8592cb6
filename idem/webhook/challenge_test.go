package webhook_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
)

// proof is what a sender that knows a secret expects.
func proof(secret, challenge string) string {
	return "v1," + base64.StdEncoding.EncodeToString(mac(mac(raw(secret), "wev-v1"), challenge))
}

// A challenge is answered by whoever knows a secret, and is no event.
func TestStandardChallenge(t *testing.T) {
	t.Parallel()
	public := senders[4].provider(newSecret).(webhook.Standard).Secrets[0]
	for name, tc := range map[string]struct {
		secrets    []string
		prefix     string
		method     string
		challenges []string
		code       int
		proof      string
	}{
		"one secret":         {[]string{newSecret}, "", "POST", []string{"c"}, 204, proof(newSecret, "c")},
		"the first of two":   {[]string{newSecret, oldSecret}, "", "POST", []string{"c"}, 204, proof(newSecret, "c")},
		"beside public keys": {[]string{public, oldSecret}, "", "POST", []string{"c"}, 204, proof(oldSecret, "c")},
		"another prefix":     {[]string{newSecret}, "svix-", "POST", []string{"a.1.b"}, 204, proof(newSecret, "a.1.b")},
		"public keys alone":  {[]string{public}, "", "POST", []string{"c"}, 401, ""},
		"two challenges":     {[]string{newSecret}, "", "POST", []string{"c", "c"}, 401, ""},
		"an empty one":       {[]string{newSecret}, "", "POST", []string{""}, 401, ""},
		"none":               {[]string{newSecret}, "", "POST", nil, 401, ""},
		"no secret":          {nil, "", "POST", []string{"c"}, 500, ""},
		"by GET":             {[]string{newSecret}, "", "GET", []string{"c"}, 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names := tc.prefix
			if names == "" {
				names = "webhook-"
			}
			r := httptest.NewRequest(tc.method, "/hook", strings.NewReader("whatever"))
			for _, c := range tc.challenges {
				r.Header.Add(names+"challenge", c)
			}
			w := answer(webhook.Handler{
				Provider: webhook.Standard{Source: "x", Header: tc.prefix, Secrets: tc.secrets}, Endpoint: "e",
				Sink: webhook.SinkFunc(func(context.Context, idem.Key, webhook.Event) (idem.Outcome, error) {
					t.Error("a challenge is no event")
					return 0, nil
				}),
			}, r)
			require.Equal(t, tc.code, w.Code)
			require.Equal(t, tc.proof, w.Header().Get(names+"challenge-response"))
			if tc.code == http.StatusNoContent {
				require.Empty(t, w.Body.String())
				require.Empty(t, w.Header().Get("Content-Type"))
			}
		})
	}
}

// Anybody may ask for an answer, and it signs nothing: not even where what is asked is what would have to be signed.
func TestStandardChallengeIsNoSignature(t *testing.T) {
	t.Parallel()
	p := webhook.Standard{Source: "x", Secrets: []string{newSecret}}
	stamp := strconv.FormatInt(now.Unix(), 10)
	r := httptest.NewRequest(http.MethodPost, "/hook", nil)
	r.Header.Set("webhook-challenge", "evt_1."+stamp+".{}")
	e, err := p.Verify(r, nil, now)
	require.NoError(t, err)
	got := e.ReplyHeader.Get("webhook-challenge-response")
	require.NotEmpty(t, got)
	forged := httptest.NewRequest(http.MethodPost, "/hook", nil)
	forged.Header = header("webhook-id", "evt_1", "webhook-timestamp", stamp, "webhook-signature", got)
	_, err = p.Verify(forged, []byte("{}"), now)
	require.ErrorIs(t, err, webhook.ErrSignature)
	// The same with the secret itself would have passed: it is the key that makes the difference.
	forged.Header.Set("webhook-signature",
		"v1,"+base64.StdEncoding.EncodeToString(mac(raw(newSecret), "evt_1."+stamp+".{}")))
	_, err = p.Verify(forged, []byte("{}"), now.Add(time.Second))
	require.NoError(t, err)
}
