package webhook_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
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
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	oldSecret = "whsec_b2xkIHNlY3JldCBvZiB0ZXN0cw=="
	newSecret = "whsec_bmV3IHNlY3JldCBvZiB0ZXN0cw=="
)

func mac(secret []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, secret)
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return h.Sum(nil)
}

// sender is what tests know of a provider: how its requests are made, which no code of the package does.
type sender struct {
	name     string
	provider func(secrets ...string) webhook.Provider
	// body makes the body of an event.
	body func(id, kind string, at time.Time) string
	// sign returns the headers, signed with each of the secrets.
	sign func(id, kind, body string, at time.Time, secrets ...string) http.Header
	// signature names the header of the signature; stamped says that a time is signed, too.
	signature string
	stamped   bool
	// another is one signature more, for a header that can hold several.
	another string
}

func raw(secret string) []byte {
	key, err := base64.StdEncoding.DecodeString(secret[len("whsec_"):])
	if err != nil {
		panic(err)
	}
	return key
}

func keyPair(secret string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(secret))
	return ed25519.NewKeyFromSeed(seed[:])
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

var senders = []sender{
	{
		name:     "stripe",
		provider: func(secrets ...string) webhook.Provider { return webhook.Stripe{Secrets: secrets} },
		body: func(id, kind string, at time.Time) string {
			return fmt.Sprintf(`{"id":%q,"object":"event","type":%q,"created":%d,"data":{"object":{"id":"ch_1"}}}`,
				id, kind, at.Unix())
		},
		sign: func(_, _, body string, at time.Time, secrets ...string) http.Header {
			t := strconv.FormatInt(at.Unix(), 10)
			value := "t=" + t
			for _, s := range secrets {
				value += ",v1=" + hex.EncodeToString(mac([]byte(s), t, ".", body))
			}
			return header("Stripe-Signature", value+",v0=00")
		},
		signature: "Stripe-Signature", stamped: true, another: ",v1=00",
	},
	{
		name:     "github",
		provider: func(secrets ...string) webhook.Provider { return webhook.GitHub{Secrets: secrets} },
		body:     func(string, string, time.Time) string { return `{"action":"opened"}` },
		sign: func(id, kind, body string, _ time.Time, secrets ...string) http.Header {
			return header("X-GitHub-Delivery", id, "X-GitHub-Event", kind,
				"X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac([]byte(secrets[0]), body)))
		},
		signature: "X-Hub-Signature-256",
	},
	standardSender("standard", "", func(secret string) string { return secret },
		func(secret, content string) string {
			return "v1," + base64.StdEncoding.EncodeToString(mac(raw(secret), content))
		}),
	standardSender("svix", "svix-", func(secret string) string { return secret[len("whsec_"):] },
		func(secret, content string) string {
			return "v1," + base64.StdEncoding.EncodeToString(mac(raw(secret), content))
		}),
	standardSender("ed25519", "", func(secret string) string {
		return "whpk_" + base64.StdEncoding.EncodeToString(keyPair(secret).Public().(ed25519.PublicKey))
	}, func(secret, content string) string {
		return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(keyPair(secret), []byte(content)))
	}),
}

func standardSender(
	name, prefix string, config func(secret string) string, sign func(secret, content string) string,
) sender {
	names := prefix
	if names == "" {
		names = "webhook-"
	}
	return sender{
		name: name,
		provider: func(secrets ...string) webhook.Provider {
			var all []string
			for _, s := range secrets {
				if s != "" {
					s = config(s)
				}
				all = append(all, s)
			}
			return webhook.Standard{Source: name, Header: prefix, Secrets: all}
		},
		body: func(_, kind string, at time.Time) string {
			return fmt.Sprintf(`{"type":%q,"timestamp":%q,"data":{}}`, kind, at.UTC().Format(time.RFC3339))
		},
		sign: func(id, _, body string, at time.Time, secrets ...string) http.Header {
			t := strconv.FormatInt(at.Unix(), 10)
			value := "v2,AAAA"
			for _, s := range secrets {
				value += " " + sign(s, id+"."+t+"."+body)
			}
			return header(names+"id", id, names+"timestamp", t, names+"signature", value)
		},
		signature: names + "signature", stamped: true, another: " v1,AAAA",
	}
}

// request makes a delivery as its sender does.
func (s sender) request(id, kind string, secrets ...string) *http.Request {
	now := time.Now()
	body := s.body(id, kind, now)
	r := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader([]byte(body)))
	r.Header = s.sign(id, kind, body, now, secrets...)
	return r
}

// migrated returns a pool on a new database, with the tables of the tests.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	setup(t, pool)
	return pool
}

const schema = `CREATE TABLE effects (id text NOT NULL, kind text NOT NULL, n int NOT NULL DEFAULT 1)`

func setup(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), schema)
	require.NoError(t, err)
}

// book leaves a row for each time that it runs.
func book(ctx context.Context, tx pgx.Tx, e webhook.Event) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (id, kind) VALUES ($1, $2)`, e.ID, e.Type)
	return err
}

func handler(p webhook.Provider, pool idem.DB) webhook.Handler {
	return webhook.Handler{Provider: p, Endpoint: "book", Sink: webhook.Effect{DB: pool, Fn: book}}
}

// answer serves a request, and returns the response.
func answer(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

func effects(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return count(t, pool, `SELECT count(*) FROM effects`)
}

// A delivery has its effect, and the same one again has none; both are answered alike.
func TestOnce(t *testing.T) {
	for _, s := range senders {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			var outs []idem.Outcome
			h := handler(s.provider(newSecret), pool)
			h.Report = func(_ context.Context, e webhook.Event, out idem.Outcome, err error) {
				require.NoError(t, err)
				require.Equal(t, "evt_1", e.ID)
				require.Equal(t, s.provider().Sender().Source, e.Source)
				outs = append(outs, out)
			}
			for range 3 { // each signed anew
				w := answer(h, s.request("evt_1", "thing.made", newSecret))
				require.Equal(t, http.StatusOK, w.Code)
				require.Empty(t, w.Body.String())
			}
			require.Equal(t, []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate}, outs)
			require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM effects WHERE id = 'evt_1' AND kind = 'thing.made'`))

			other := h
			other.Endpoint, other.Report = "also", nil // another subscription to the same events
			require.Equal(t, http.StatusOK, answer(other, s.request("evt_1", "thing.made", newSecret)).Code)
			require.Equal(t, 2, effects(t, pool))
			require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM processed_events WHERE source = $1 AND key = 'evt_1'`,
				s.provider().Sender().Source))
		})
	}
}

// The table gets what its senders need, and Verify says where its retention is too short.
func TestTable(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for _, s := range senders {
		sender := s.provider(newSecret).Sender()
		require.NotZero(t, sender.Resends)
		require.LessOrEqual(t, sender.Resends, dedup.DefaultRetention)
		require.NoError(t, dedup.Verify(t.Context(), pool, sender.Table(dedup.Table{})), s.name)
		short := sender.Table(dedup.Table{Retention: sender.Resends - time.Hour})
		var problems *dedup.VerifyError
		require.ErrorAs(t, dedup.Verify(t.Context(), pool, short), &problems, s.name)
	}
	longest := webhook.GitHub{}.Sender().Table(webhook.Stripe{}.Sender().Table(dedup.Table{}))
	require.Equal(t, dedup.StripeResends, longest.Resends)
	require.Equal(t, 9*24*time.Hour, webhook.Standard{Resends: 9 * 24 * time.Hour}.Sender().Resends)
}
