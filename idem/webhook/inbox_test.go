package webhook_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
)

// An endpoint that stores: each event is there once, however often and at once it comes, and a worker gets it as it was
// signed. What comes again afterwards is a duplicate.
func TestInbox(t *testing.T) {
	for _, s := range senders {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			require.NoError(t, inbox.Migrate(t.Context(), pool))
			h := webhook.Handler{
				Provider: s.provider(newSecret), Endpoint: "later",
				Sink: webhook.Inbox{DB: pool, Order: func(e webhook.Event) string { return e.Type }},
			}
			require.NoError(t, h.Validate())
			var mu sync.Mutex
			outs := map[idem.Outcome]int{}
			h.Report = func(_ context.Context, _ webhook.Event, out idem.Outcome, err error) {
				mu.Lock()
				defer mu.Unlock()
				outs[out]++
			}
			var wg sync.WaitGroup
			for range 4 {
				for _, id := range []string{"evt_1", "evt_2"} {
					r := s.request(id, "thing.made", newSecret)
					wg.Go(func() {
						if code := answer(h, r).Code; code != http.StatusOK {
							t.Errorf("%s: %d", id, code)
						}
					})
				}
			}
			wg.Wait()
			require.Equal(t, map[idem.Outcome]int{idem.Executed: 2, idem.Duplicate: 6}, outs)
			require.Zero(t, effects(t, pool))

			work := func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
				e := webhook.Stored(m)
				if e.Source != s.provider().Sender().Source || m.Key != "thing.made" || !strings.HasPrefix(string(e.Body), "{") {
					t.Errorf("another event: %+v", e)
				}
				return book(ctx, tx, e)
			}
			for range 2 {
				_, err := inbox.Worker{}.Drain(t.Context(), pool, work)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, answer(h, s.request("evt_1", "thing.made", newSecret)).Code)
			}
			require.Equal(t, 2, count(t, pool,
				`SELECT count(*) FROM effects WHERE id IN ('evt_1', 'evt_2') AND kind = 'thing.made'`))
			require.Equal(t, 2, effects(t, pool))
		})
	}
}

// The time of an event comes back as it was; a store that fails is no 200.
func TestInboxRefuses(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	sink := webhook.Inbox{DB: pool}
	key := idem.Scope{Source: "shop", Operation: "later"}.Key("a", "b/c")
	at := time.Date(2026, 12, 3, 4, 5, 6, 789, time.UTC)
	_, err := sink.Accept(t.Context(), key, webhook.Event{ID: "e", Body: []byte("x")})
	require.Error(t, err, "there is no table")

	require.NoError(t, inbox.Migrate(t.Context(), pool))
	for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
		out, err := sink.Accept(t.Context(), key, webhook.Event{ID: "e", Type: "t", Time: at, Body: []byte("x\x00")})
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	all, err := inbox.Table{}.List(t.Context(), pool, inbox.Filter{State: inbox.Waiting}, 10)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, key.ID(), all[0].ID)

	var got webhook.Event
	_, err = inbox.Worker{}.Drain(t.Context(), pool, func(_ context.Context, _ pgx.Tx, m inbox.Message) error {
		got = webhook.Stored(m)
		return nil
	})
	require.NoError(t, err)
	require.True(t, at.Equal(got.Time))
	require.Equal(t, []string{"shop", "e", "t", "x\x00"}, []string{got.Source, got.ID, got.Type, string(got.Body)})

	sink.Order = func(webhook.Event) string { return strings.Repeat("k", inbox.MaxKeyBytes+1) }
	_, err = sink.Accept(t.Context(), key, webhook.Event{ID: "e"})
	require.ErrorIs(t, err, webhook.ErrMalformed)
	require.Error(t, webhook.Inbox{}.Validate())
}
