package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/webhook"
)

// What Apple did not sign is no event, whatever it looks like.
func FuzzAppStore(f *testing.F) {
	w := newWorld(f)
	f.Add(`{"signedPayload":"eyJhbGciOiJFUzI1NiIsIng1YyI6WyJBQUFBIl19.e30.AAAA"}`)
	f.Add(`{"signedPayload":"..","signedPayload":5}`)
	f.Add(w.apple("uuid-1", "SUBSCRIBED", "1000", time.Unix(1, 0))[:300])
	f.Fuzz(func(t *testing.T, body string) {
		_, err := w.config.AppStore.Verify(post("/app-store", body), []byte(body), time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
	})
}

// The same for the token of a push.
func FuzzGooglePlay(f *testing.F) {
	w := newWorld(f)
	f.Add("Bearer eyJhbGciOiJub25lIn0.e30.", "{}")
	f.Add("Bearer  a.b.c", "[]")
	f.Add("bearer x", "")
	f.Fuzz(func(t *testing.T, header, body string) {
		r := post("/google-play", body)
		r.Header["Authorization"] = []string{header}
		_, err := w.config.GooglePlay.Verify(r, []byte(body), time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature)
	})
}
