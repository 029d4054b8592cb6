package webhookproviders

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	stripehook "github.com/stripe/stripe-go/v85/webhook"

	"github.com/pgonce/pgonce/idem/webhook"
)

type delivery struct {
	Provider, ID, Body string
	Headers            map[string]string
}

// request signs a delivery anew, as its sender does for each attempt.
func (d delivery) request() *http.Request {
	if d.Provider == "stripe" {
		signed := stripehook.GenerateTestSignedPayload(&stripehook.UnsignedPayload{
			Payload: []byte(d.Body), Secret: newSecret, Timestamp: time.Now(),
		})
		return post(d.Body, "Stripe-Signature", signed.Header)
	}
	return post(d.Body, "X-GitHub-Delivery", d.ID, "X-GitHub-Event", d.Headers["X-GitHub-Event"],
		"X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac(newSecret, d.Body)))
}

// What GitHub and Stripe send, each event up to four times, in any order, from eight workers: one effect for each
// event. PGONCE_DELIVERIES names another file of them.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	f, err := os.Open(cmp.Or(os.Getenv("PGONCE_DELIVERIES"), "../quickstart/deliveries.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	var all []delivery
	events := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var d delivery
		require.NoError(t, json.Unmarshal(lines.Bytes(), &d))
		if d.Provider == "stripe" || d.Provider == "github" {
			all = append(all, d)
			events[d.Provider+d.ID] = true
		}
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(all), len(events), "no event comes twice")
	pool := prepared(t)
	handlers := map[string]webhook.Handler{
		"stripe": handler(webhook.Stripe{Secrets: []string{newSecret}}, pool, "stripe"),
		"github": handler(webhook.GitHub{Secrets: []string{newSecret}}, pool, "github"),
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	work := make(chan delivery)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for d := range work {
				if w := serve(handlers[d.Provider], d.request()); w.Code != http.StatusOK {
					t.Errorf("%s %s: %d", d.Provider, d.ID, w.Code)
				}
			}
		})
	}
	for _, d := range all {
		work <- d
	}
	close(work)
	wg.Wait()
	require.Equal(t, len(events), effects(t, pool))
	var distinct int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(DISTINCT endpoint || id) FROM effects`).Scan(&distinct))
	require.Equal(t, len(events), distinct)
	t.Logf("%d deliveries of %d events", len(all), len(events))
}
