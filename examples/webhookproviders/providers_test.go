package webhookproviders

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func mac(secret string, parts ...string) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

func post(body string, pairs ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader([]byte(body)))
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	return r
}

func slackRequest(secret, body string, at time.Time) *http.Request {
	stamp := strconv.FormatInt(at.Unix(), 10)
	return post(body, "X-Slack-Request-Timestamp", stamp,
		"X-Slack-Signature", "v0="+hex.EncodeToString(mac(secret, "v0:", stamp, ":", body)))
}

func shopifyRequest(secret, id, body string) *http.Request {
	return post(body, "X-Shopify-Event-Id", id, "X-Shopify-Topic", "orders/create",
		"X-Shopify-Triggered-At", "2026-03-01T12:00:00.123456789Z",
		"X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(mac(secret, body)))
}

func prepared(t *testing.T) *pgxpool.Pool {
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), `CREATE TABLE effects (id text, endpoint text)`)
	require.NoError(t, err)
	return pool
}

func handler(p webhook.Provider, pool *pgxpool.Pool, endpoint string) webhook.Handler {
	return webhook.Handler{Provider: p, Endpoint: endpoint, Sink: webhook.Effect{
		DB: pool, Fn: func(ctx context.Context, tx pgx.Tx, e webhook.Event) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, e.ID, endpoint)
			return err
		},
	}}
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func effects(t *testing.T, pool *pgxpool.Pool) (n int) {
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM effects`).Scan(&n))
	return n
}

// Two subscriptions to one topic are two deliveries of one event: two effects at two endpoints, one at one.
func TestShopify(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	p := Shopify{Secrets: []string{"old", "new"}}
	ship, mail := handler(p, pool, "ship"), handler(p, pool, "mail")
	for _, secret := range []string{"new", "old", "new"} {
		require.Equal(t, 200, serve(ship, shopifyRequest(secret, "evt_1", `{"id":1}`)).Code)
	}
	require.Equal(t, 1, effects(t, pool))
	require.Equal(t, 200, serve(mail, shopifyRequest("new", "evt_1", `{"id":1}`)).Code)
	require.Equal(t, 2, effects(t, pool))

	r := shopifyRequest("new", "evt_1", `{"id":1}`)
	e, err := p.Verify(r, []byte(`{"id":1}`), time.Now())
	require.NoError(t, err)
	require.Equal(t, "orders/create", e.Type)
	require.Equal(t, 123456789, e.Time.Nanosecond())

	require.Equal(t, 401, serve(ship, shopifyRequest("other", "evt_2", `{}`)).Code)
	r = shopifyRequest("new", "evt_2", `{}`)
	r.Header.Del("X-Shopify-Hmac-Sha256")
	require.Equal(t, 401, serve(ship, r).Code)
	require.Equal(t, 422, serve(ship, shopifyRequest("new", "", `{}`)).Code)
	for _, secrets := range [][]string{nil, {""}} {
		require.Error(t, handler(Shopify{Secrets: secrets}, pool, "ship").Validate())
		require.Equal(t, 500, serve(handler(Shopify{Secrets: secrets}, pool, "ship"), shopifyRequest("", "e", "{}")).Code)
	}
	require.Equal(t, 2, effects(t, pool))
}

func TestSlack(t *testing.T) {
	t.Parallel()
	pool := prepared(t)
	h := handler(Slack{Secret: "s"}, pool, "greet")
	now := time.Now()
	body := fmt.Sprintf(`{"type":"event_callback","event_id":"Ev1","event_time":%d,"event":{"type":"team_join"}}`,
		now.Unix())
	for n := range 3 {
		r := slackRequest("s", body, time.Now())
		if n > 0 { // says nothing about what came of the attempts before
			r.Header.Set("X-Slack-Retry-Num", strconv.Itoa(n))
		}
		require.Equal(t, 200, serve(h, r).Code)
	}
	require.Equal(t, 1, effects(t, pool))

	retry := slackRequest("s", fmt.Sprintf(`{"type":"event_callback","event_id":"Ev2","event_time":%d}`, now.Unix()), now)
	retry.Header.Set("X-Slack-Retry-Num", "1") // the first attempt never arrived
	require.Equal(t, 200, serve(h, retry).Code)
	require.Equal(t, 2, effects(t, pool))

	w := serve(h, slackRequest("s", `{"type":"url_verification","challenge":"c1"}`, now))
	require.Equal(t, 200, w.Code)
	require.Equal(t, "c1", w.Body.String())
	w = serve(h, slackRequest("other", `{"type":"url_verification","challenge":"c1"}`, now))
	require.Equal(t, 401, w.Code)
	require.NotContains(t, w.Body.String(), "c1")

	require.Equal(t, 401, serve(h, slackRequest("s", body, now.Add(-6*time.Minute))).Code)
	require.Equal(t, 401, serve(h, post(body)).Code)
	require.Equal(t, 422, serve(h, slackRequest("s", `{"type":"event_callback"}`, now)).Code)
	require.Equal(t, 422, serve(h, slackRequest("s", `[]`, now)).Code)
	require.Error(t, handler(Slack{}, pool, "greet").Validate())
	require.Equal(t, 2, effects(t, pool))
}
