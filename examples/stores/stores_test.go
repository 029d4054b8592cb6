package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	stripehook "github.com/stripe/stripe-go/v85/webhook"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world stands for Apple, Google and Stripe. The tokens are made by golang-jwt, the certificates by crypto/x509, and
// Stripe's signatures by stripe-go: none of them by what is tested.
type world struct {
	t         testing.TB
	config    config
	appleKey  *ecdsa.PrivateKey
	appleX5c  []string
	googleKey *rsa.PrivateKey
	play      map[string]Purchase // what the Play Developer API knows, by token
}

const (
	bundle       = "com.example.app"
	audience     = "https://example.com/google-play"
	account      = "push@example.iam.gserviceaccount.com"
	stripeSecret = "whsec_of_the_tests"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, play: map[string]Purchase{}}
	roots := x509.NewCertPool()
	var root *x509.Certificate
	w.appleKey, w.appleX5c, root = w.chain(oidLeaf, oidIntermediate)
	roots.AddCert(root)

	var err error
	w.googleKey, err = rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	keys := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(rw).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
			{Key: w.googleKey.Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"},
		}})
	}))
	t.Cleanup(keys.Close)
	w.config = config{
		AppStore: AppStore{Roots: roots, Bundle: bundle, Environment: "Production"},
		GooglePlay: GooglePlay{
			Verifier: newVerifier(context.WithoutCancel(t.Context()), audience, keys.URL), Email: account, Package: bundle,
		},
		Stripe: webhook.Stripe{Secrets: []string{stripeSecret}},
		Play:   func(_ context.Context, token string) (Purchase, error) { return w.play[token], nil },
	}
	return w
}

// chain makes a root, an intermediate and a leaf, marked with the given oids, as Apple's are.
func (w *world) chain(leafOID, intermediateOID asn1.ObjectIdentifier) (*ecdsa.PrivateKey, []string, *x509.Certificate) {
	w.t.Helper()
	type pair struct {
		*x509.Certificate
		key *ecdsa.PrivateKey
	}
	issue := func(name string, ca bool, oid asn1.ObjectIdentifier, by pair) pair {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(w.t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		}
		if ca {
			c.KeyUsage = x509.KeyUsageCertSign
		}
		if oid != nil {
			c.ExtraExtensions = []pkix.Extension{{Id: oid, Value: []byte{5, 0}}}
		}
		if by.key == nil {
			by = pair{c, key}
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by.Certificate, key.Public(), by.key)
		require.NoError(w.t, err)
		c, err = x509.ParseCertificate(der)
		require.NoError(w.t, err)
		return pair{c, key}
	}
	root := issue("root", true, nil, pair{})
	middle := issue("intermediate", true, intermediateOID, root)
	leaf := issue("leaf", false, leafOID, middle)
	var x5c []string
	for _, c := range []pair{leaf, middle, root} {
		x5c = append(x5c, base64.StdEncoding.EncodeToString(c.Raw))
	}
	return leaf.key, x5c, root.Certificate
}

// signed makes a JWS as Apple does.
func (w *world) signed(claims jwt.MapClaims) string {
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["x5c"] = w.appleX5c
	s, err := token.SignedString(w.appleKey)
	require.NoError(w.t, err)
	return s
}

// apple makes the body of a notification about a purchase.
func (w *world) apple(uuid, kind, original string, at time.Time, change ...func(n, data, tx jwt.MapClaims)) string {
	tx := jwt.MapClaims{"originalTransactionId": original, "transactionId": uuid, "productId": "pro", "bundleId": bundle}
	data := jwt.MapClaims{"bundleId": bundle, "environment": "Production"}
	n := jwt.MapClaims{
		"notificationType": kind, "notificationUUID": uuid, "signedDate": at.UnixMilli(), "version": "2.0", "data": data,
	}
	for _, f := range change {
		f(n, data, tx)
	}
	data["signedTransactionInfo"] = w.signed(tx)
	body, err := json.Marshal(map[string]string{"signedPayload": w.signed(n)})
	require.NoError(w.t, err)
	return string(body)
}

func post(path, body string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader([]byte(body)))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// google makes a push as Pub/Sub does, with a token of its own each time.
func (w *world) google(
	messageID, purchaseToken string, at time.Time, change ...func(claims jwt.MapClaims),
) *http.Request {
	data := fmt.Sprintf(`{"version":"1.0","packageName":%q,"eventTimeMillis":"%d",`+
		`"subscriptionNotification":{"version":"1.0","notificationType":4,"purchaseToken":%q,"subscriptionId":"pro"}}`,
		bundle, at.UnixMilli(), purchaseToken)
	body := fmt.Sprintf(`{"message":{"data":%q,"messageId":%q,"publishTime":"2026-03-01T12:00:00Z"},"subscription":"s"}`,
		base64.StdEncoding.EncodeToString([]byte(data)), messageID)
	claims := jwt.MapClaims{
		"iss": "https://accounts.google.com", "aud": audience, "email": account, "email_verified": true,
		"sub": "1", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	for _, f := range change {
		f(claims)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	token.Header["kid"] = "k1"
	s, err := token.SignedString(w.googleKey)
	require.NoError(w.t, err)
	return post("/google-play", body, "Authorization", "Bearer "+s)
}

// stripe makes an event as Stripe does, signed anew each time by Stripe's own library.
func (w *world) stripe(id, subscription, status string, at time.Time) *http.Request {
	body := fmt.Sprintf(`{"id":%q,"object":"event","type":"customer.subscription.updated","created":%d,"data":{"object":`+
		`{"id":%q,"object":"subscription","status":%q,"items":{"data":[{"price":{"product":"pro"}}]}}}}`,
		id, at.Unix(), subscription, status)
	signed := stripehook.GenerateTestSignedPayload(&stripehook.UnsignedPayload{
		Payload: []byte(body), Secret: stripeSecret,
	})
	return post("/stripe", body, "Stripe-Signature", signed.Header)
}

// server returns the endpoints on a new pool, as one worker has them.
func (w *world) server(pool idem.DB) http.Handler {
	h, err := w.config.endpoints(pool)
	require.NoError(w.t, err)
	return h
}

func serve1(h http.Handler, r *http.Request) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func (w *world) prepared() *pgxpool.Pool {
	pool := pgtest.Pool(w.t)
	require.NoError(w.t, prepare(w.t.Context(), pool, w.config))
	return pool
}

func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&v))
	return v
}

// AC-044: the same notification, processed twice, makes one row and one result.
func TestAC044SameNotificationTwiceMakesOneRowAndOneResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	w.play["token-1"] = Purchase{Store: "google_play", ID: "token-1", Product: "pro", Status: "active", UpdatedAt: at}
	apple := w.apple("uuid-1", "SUBSCRIBED", "1000", at)
	for store, deliver := range map[string]func() *http.Request{
		"app_store":   func() *http.Request { return post("/app-store", apple) },
		"google_play": func() *http.Request { return w.google("msg-1", "token-1", at) },
		"stripe":      func() *http.Request { return w.stripe("evt_1", "sub_1", "active", at) },
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			pool := w.prepared()
			var outs []idem.Outcome
			c := w.config
			c.Report = func(_ context.Context, _ webhook.Event, out idem.Outcome, err error) {
				require.NoError(t, err)
				outs = append(outs, out)
			}
			h, err := c.endpoints(pool)
			require.NoError(t, err)
			for range 2 {
				require.Equal(t, http.StatusOK, serve1(h, deliver()))
			}
			require.Equal(t, []idem.Outcome{idem.Executed, idem.Duplicate}, outs)
			require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM stores_purchases WHERE store = $1`, store))
			require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM stores_purchases`))
			require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM stores_history`), "one result")
			require.Equal(t, "active", scan[string](t, pool, `SELECT status FROM stores_purchases`))
		})
	}
}

// Notifications of one purchase in the wrong order: the newest decides, and each is there once.
func TestLateNotification(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.prepared()
	h := w.server(pool)
	at := time.Now().Add(-time.Hour)
	for _, r := range []*http.Request{
		post("/app-store", w.apple("uuid-2", "EXPIRED", "1000", at.Add(time.Minute))),
		post("/app-store", w.apple("uuid-1", "SUBSCRIBED", "1000", at)),
		w.stripe("evt_2", "sub_1", "canceled", at), // in one second with the next
		w.stripe("evt_1", "sub_1", "active", at),
	} {
		require.Equal(t, http.StatusOK, serve1(h, r))
	}
	require.Equal(t, 2, scan[int](t, pool, `SELECT count(*) FROM stores_purchases WHERE status = 'ended'`))
	require.Equal(t, 4, scan[int](t, pool, `SELECT count(*) FROM stores_history`))
}
