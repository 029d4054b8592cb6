package webhook_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/webhook"
)

// refusedBy fails where a request that nobody signed is taken for an event, or for anything but a bad signature.
func refusedBy(t *testing.T, p webhook.Provider, h http.Header, body []byte) {
	r := httptest.NewRequest(http.MethodPost, "/hook", nil)
	r.Header = h
	_, err := p.Verify(r, body, now)
	require.ErrorIs(t, err, webhook.ErrSignature)
}

// signedBy changes one byte of what was signed, and of its signature: either the request is as it was, or it is
// refused.
func signedBy(t *testing.T, s sender, body []byte, where, with byte) {
	h := s.sign("evt_1", "a", string(body), now, newSecret)
	p := s.provider(newSecret)
	verify := func(h http.Header, body []byte) error {
		r := httptest.NewRequest(http.MethodPost, "/hook", nil)
		r.Header = h
		_, err := p.Verify(r, body, now)
		return err
	}
	if err := verify(h, body); err != nil && !errors.Is(err, webhook.ErrMalformed) {
		t.Fatalf("signed as documented: %v", err)
	}
	if len(body) > 0 && with != 0 {
		changed := bytes.Clone(body)
		changed[int(where)%len(changed)] ^= with
		require.ErrorIs(t, verify(h, changed), webhook.ErrSignature)
	}
	require.ErrorIs(t, verify(h, append(bytes.Clone(body), with)), webhook.ErrSignature)
}

func FuzzStripe(f *testing.F) {
	f.Add("t=1772366400,v1=00ff,v0=00", []byte(`{"id":"evt_1"}`), byte(1), byte(1))
	f.Add("t=,t=1,v1=", []byte(""), byte(0), byte(0))
	f.Add("v1=,,=,t", []byte("[]"), byte(9), byte(255))
	f.Fuzz(func(t *testing.T, value string, body []byte, where, with byte) {
		refusedBy(t, senders[0].provider(newSecret), http.Header{"Stripe-Signature": {value}}, body)
		signedBy(t, senders[0], body, where, with)
	})
}

func FuzzGitHub(f *testing.F) {
	f.Add("sha256=00ff", []byte(`{"id":"evt_1"}`), byte(1), byte(1))
	f.Add("sha256=", []byte(""), byte(0), byte(0))
	f.Add("sha1=00,sha256=11", []byte("[]"), byte(9), byte(255))
	f.Fuzz(func(t *testing.T, value string, body []byte, where, with byte) {
		refusedBy(t, senders[1].provider(newSecret), http.Header{
			"X-Hub-Signature-256": {value}, "X-Github-Delivery": {"1"}, "X-Github-Event": {"push"},
		}, body)
		signedBy(t, senders[1], body, where, with)
	})
}

func FuzzStandard(f *testing.F) {
	f.Add("evt_1", "1772366400", "v1,AAAA v1a,AAAA v2,", []byte(`{"type":"a"}`), byte(1), byte(1))
	f.Add("a.b", "-1", "v1", []byte(""), byte(0), byte(0))
	f.Add("", "99999999999999999999", ",", []byte("."), byte(9), byte(255))
	f.Fuzz(func(t *testing.T, id, stamp, value string, body []byte, where, with byte) {
		for _, s := range []sender{senders[2], senders[4]} {
			refusedBy(t, s.provider(newSecret), http.Header{
				"Webhook-Id": {id}, "Webhook-Timestamp": {stamp}, "Webhook-Signature": {value},
			}, body)
			signedBy(t, s, body, where, with)
		}
	})
}
