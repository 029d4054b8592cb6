package main

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/webhook"
)

func TestAppStoreRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Truncate(time.Millisecond)
	verify := func(w *world, body string) (webhook.Event, error) {
		return w.config.AppStore.Verify(post("/app-store", body), []byte(body), time.Now())
	}
	good := w.apple("uuid-1", "SUBSCRIBED", "1000", at)
	e, err := verify(w, good)
	require.NoError(t, err)
	require.Equal(t, "uuid-1", e.ID)
	require.Equal(t, "SUBSCRIBED", e.Type)
	require.True(t, at.Equal(e.Time))

	// Another authority, one that Apple trusts for something else, and certificates that are not enough.
	stranger := newWorld(t)
	require.NotEqual(t, w.appleX5c, stranger.appleX5c)
	_, err = verify(w, stranger.apple("uuid-1", "SUBSCRIBED", "1000", at))
	require.ErrorIs(t, err, webhook.ErrSignature, "another root")
	other := asn1.ObjectIdentifier{1, 2, 840, 113635, 100, 6, 99}
	for name, oids := range map[string][2]asn1.ObjectIdentifier{
		"leaf for another purpose":         {other, oidIntermediate},
		"leaf without a purpose":           {nil, oidIntermediate},
		"intermediate for another purpose": {oidLeaf, other},
	} {
		spoilt := newWorld(t)
		var root *x509.Certificate
		spoilt.appleKey, spoilt.appleX5c, root = spoilt.chain(oids[0], oids[1])
		spoilt.config.AppStore.Roots.AddCert(root)
		_, err = verify(spoilt, spoilt.apple("uuid-1", "SUBSCRIBED", "1000", at))
		require.ErrorIs(t, err, webhook.ErrSignature, name)
	}
	for name, x5c := range map[string][]string{
		"no chain": {}, "the leaf alone": w.appleX5c[:1], "no intermediate": {w.appleX5c[0], w.appleX5c[2]},
	} {
		short := *w
		short.appleX5c = x5c
		_, err = verify(w, short.apple("uuid-1", "SUBSCRIBED", "1000", at))
		require.ErrorIs(t, err, webhook.ErrSignature, name)
	}
	foreign := *stranger
	foreign.appleX5c = w.appleX5c // the right certificates, and another key
	_, err = verify(w, foreign.apple("uuid-1", "SUBSCRIBED", "1000", at))
	require.ErrorIs(t, err, webhook.ErrSignature, "another key")
	_, err = w.config.AppStore.Verify(post("/app-store", good), []byte(good), time.Now().Add(48*time.Hour))
	require.ErrorIs(t, err, webhook.ErrSignature, "certificates have expired")

	// A signature over nothing, or by the sender's own choice of algorithm.
	for _, method := range []jwt.SigningMethod{jwt.SigningMethodNone, jwt.SigningMethodHS256} {
		token := jwt.NewWithClaims(method, jwt.MapClaims{"notificationUUID": "uuid-1"})
		token.Header["x5c"] = w.appleX5c
		var key any = jwt.UnsafeAllowNoneSignatureType
		if method == jwt.SigningMethodHS256 {
			key = []byte(w.appleX5c[0])
		}
		s, err := token.SignedString(key)
		require.NoError(t, err)
		_, err = verify(w, `{"signedPayload":"`+s+`"}`)
		require.ErrorIs(t, err, webhook.ErrSignature, method.Alg())
	}
	for _, body := range []string{
		"", "{}", "[]", `{"signedPayload":"a.b.c"}`, good[:len(good)-5], strings.Replace(good, ".", "..", 1),
	} {
		_, err := verify(w, body)
		require.ErrorIs(t, err, webhook.ErrSignature, body)
	}

	// Apple signs for every app: another one's notification is not ours.
	for name, change := range map[string]func(n, data, tx jwt.MapClaims){
		"bundle":      func(_, data, _ jwt.MapClaims) { data["bundleId"] = "com.example.other" },
		"environment": func(_, data, _ jwt.MapClaims) { data["environment"] = "Sandbox" },
	} {
		_, err := verify(w, w.apple("uuid-1", "SUBSCRIBED", "1000", at, change))
		require.ErrorIs(t, err, webhook.ErrSignature, name)
	}
	for name, change := range map[string]func(n, data, tx jwt.MapClaims){
		"no id":      func(n, _, _ jwt.MapClaims) { delete(n, "notificationUUID") },
		"no date":    func(n, _, _ jwt.MapClaims) { delete(n, "signedDate") },
		"no subject": func(n, _, _ jwt.MapClaims) { delete(n, "data") },
	} {
		_, err := verify(w, w.apple("uuid-1", "SUBSCRIBED", "1000", at, change))
		require.ErrorIs(t, err, webhook.ErrMalformed, name)
	}
	// The transaction inside is signed, too, and for this app.
	e.Body = []byte(w.apple("uuid-1", "SUBSCRIBED", "1000", at, func(_, _, tx jwt.MapClaims) { tx["bundleId"] = "x" }))
	_, _, err = w.config.AppStore.Purchase(e, time.Now())
	require.Error(t, err)
}

// A notification that says nothing of a purchase is acknowledged.
func TestAppStoreTest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.prepared()
	require.Equal(t, 200, serve1(w.server(pool), post("/app-store", w.apple("uuid-1", "TEST", "1000", time.Now()))))
	require.Zero(t, scan[int](t, pool, `SELECT count(*) FROM stores_history`))
}

func read(t *testing.T, r *http.Request) []byte {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return body
}

func TestGooglePlayRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	check := func(change func(jwt.MapClaims)) error {
		r := w.google("msg-1", "token-1", time.Now(), change)
		body := read(t, r)
		_, err := w.config.GooglePlay.Verify(r, body, time.Now())
		return err
	}
	require.NoError(t, check(func(jwt.MapClaims) {}))
	for name, change := range map[string]func(jwt.MapClaims){
		"audience":         func(c jwt.MapClaims) { c["aud"] = "https://example.org" },
		"no audience":      func(c jwt.MapClaims) { delete(c, "aud") },
		"issuer":           func(c jwt.MapClaims) { c["iss"] = "https://example.com" },
		"account":          func(c jwt.MapClaims) { c["email"] = "somebody@example.com" },
		"no account":       func(c jwt.MapClaims) { delete(c, "email") },
		"account unproven": func(c jwt.MapClaims) { c["email_verified"] = false },
	} {
		require.ErrorIs(t, check(change), webhook.ErrSignature, name)
	}
	require.ErrorIs(t, check(func(c jwt.MapClaims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }), webhook.ErrStale)

	stranger := newWorld(t)
	r := stranger.google("msg-1", "token-1", time.Now())
	_, err := w.config.GooglePlay.Verify(r, read(t, r), time.Now())
	require.ErrorIs(t, err, webhook.ErrSignature, "another key")
	for _, header := range []string{"", "Bearer", "Bearer ", "Basic x", "Bearer a.b.c"} {
		r.Header.Set("Authorization", header)
		_, err := w.config.GooglePlay.Verify(r, nil, time.Now())
		require.ErrorIs(t, err, webhook.ErrSignature, header)
	}

	ok := w.google("msg-1", "token-1", time.Now())
	const test = `{"packageName":"` + bundle + `","eventTimeMillis":"1","testNotification":{}}`
	data := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, body := range []string{
		"", "{}", `{"message":{"messageId":"1"}}`, `{"message":{"messageId":"1","data":"!"}}`,
		`{"message":{"messageId":"1","data":"` + data(`{"packageName":"com.example.app"}`) + `"}}`,
		`{"message":{"messageId":"1","data":"` + data(strings.Replace(test, bundle, "x", 1)) + `"}}`,
		`{"message":{"data":"` + data(test) + `"}}`,
	} {
		_, err := w.config.GooglePlay.Verify(ok, []byte(body), time.Now())
		require.ErrorIs(t, err, webhook.ErrMalformed, body)
	}
	e, err := w.config.GooglePlay.Verify(ok, []byte(`{"message":{"messageId":"1","data":"`+data(test)+`"}}`), time.Now())
	require.NoError(t, err)
	require.Equal(t, "test", e.Type)
}
