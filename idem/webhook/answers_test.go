package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/webhook"
)

// fixed is a provider that finds what it is told to.
type fixed struct {
	event  webhook.Event
	err    error
	sender webhook.Sender
}

func (f fixed) Sender() webhook.Sender {
	s := f.sender
	s.Source = "fixed"
	return s
}

func (f fixed) Verify(*http.Request, []byte, time.Time) (webhook.Event, error) { return f.event, f.err }

// sunk returns a Sink that ends with err.
func sunk(err error) webhook.Sink {
	return webhook.SinkFunc(func(context.Context, idem.Key, webhook.Event) (idem.Outcome, error) {
		return idem.Executed, err
	})
}

func post(body string) *http.Request {
	return httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
}

// Every answer that the package's table names. What a retry can mend is never a 4xx.
func TestAnswers(t *testing.T) {
	made := webhook.Event{ID: "1"}
	wrapped := func(err error) error { return fmt.Errorf("around: %w", &idem.Error{Stage: "claim", Err: err}) }
	for name, tc := range map[string]struct {
		provider fixed
		sink     error
		code     int
		after    string
	}{
		"executed":             {fixed{event: made}, nil, 200, ""},
		"no signature":         {fixed{err: webhook.ErrSignature}, nil, 401, ""},
		"old signature":        {fixed{err: fmt.Errorf("around: %w", webhook.ErrStale)}, nil, 401, ""},
		"malformed":            {fixed{err: webhook.ErrMalformed}, nil, 422, ""},
		"keys not to be had":   {fixed{err: errors.New("cannot fetch the keys")}, nil, 500, ""},
		"keys too slow":        {fixed{err: context.DeadlineExceeded}, nil, 503, "5"},
		"no id":                {fixed{event: webhook.Event{}}, nil, 422, ""},
		"blank id":             {fixed{event: webhook.Event{ID: "  "}}, nil, 422, ""},
		"id of zeros":          {fixed{event: webhook.Event{ID: "\x00"}}, nil, 422, ""},
		"long id":              {fixed{event: webhook.Event{ID: strings.Repeat("x", 2000)}}, nil, 422, ""},
		"no parts":             {fixed{event: webhook.Event{ID: "1", Key: []string{}}}, nil, 422, ""},
		"in progress":          {fixed{event: made}, wrapped(idem.ErrInProgress), 503, "1"},
		"lease lost":           {fixed{event: made}, wrapped(idem.ErrLostLease), 503, "1"},
		"unfinished":           {fixed{event: made}, wrapped(idem.ErrUnfinished), 500, ""},
		"unknown":              {fixed{event: made}, wrapped(idem.ErrUnknown), 500, ""},
		"commit unknown":       {fixed{event: made}, &idem.Error{Unknown: true, Err: errors.New("lost")}, 503, "5"},
		"other payload":        {fixed{event: made}, wrapped(idem.ErrPayloadMismatch), 422, ""},
		"expired":              {fixed{event: made}, wrapped(idem.ErrExpired), 422, ""},
		"from the future":      {fixed{event: made}, wrapped(idem.ErrFuture), 503, ""},
		"nested":               {fixed{event: made}, wrapped(idem.ErrNested), 500, ""},
		"key of the effect's":  {fixed{event: made}, &idem.KeyError{Role: "key", Problem: "is empty"}, 500, ""},
		"final":                {fixed{event: made}, &idem.FinalError{}, 422, ""},
		"the effect's own":     {fixed{event: made}, errors.New("secret"), 500, ""},
		"conflict":             {fixed{event: made}, wrapped(&pgconn.PgError{Code: "40001"}), 503, "1"},
		"server shuts down":    {fixed{event: made}, wrapped(&pgconn.PgError{Code: "57P01"}), 503, "5"},
		"no table":             {fixed{event: made}, wrapped(&pgconn.PgError{Code: "42P01"}), 500, ""},
		"ran out of time":      {fixed{event: made}, context.DeadlineExceeded, 503, "5"},
		"a handshake":          {fixed{event: webhook.Event{Reply: []byte("challenge")}}, errors.New("not called"), 200, ""},
		"an empty handshake":   {fixed{event: webhook.Event{Reply: []byte{}}}, errors.New("not called"), 200, ""},
		"a refused handshake":  {fixed{event: webhook.Event{Reply: []byte("x")}, err: webhook.ErrSignature}, nil, 401, ""},
		"the effect's own 404": {fixed{event: made}, fmt.Errorf("no row: %w", pgx.ErrNoRows), 500, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			h := webhook.Handler{
				Provider: tc.provider, Endpoint: "e", Sink: sunk(tc.sink),
				Report: func(_ context.Context, e webhook.Event, _ idem.Outcome, err error) {
					told++
					require.Equal(t, "fixed", e.Source)
					require.Equal(t, tc.code == 200, err == nil)
				},
			}
			w := answer(h, post("{}"))
			require.Equal(t, tc.code, w.Code)
			require.Equal(t, tc.after, w.Header().Get("Retry-After"))
			require.Equal(t, 1, told)
			switch {
			case tc.code != 200:
				require.Equal(t, http.StatusText(tc.code)+"\n", w.Body.String(), "an answer says no more than its status")
			default:
				require.Equal(t, string(tc.provider.event.Reply), w.Body.String())
			}
		})
	}
}

// What the Handler refuses before it looks at a body, and what it lets nobody do without.
func TestSetup(t *testing.T) {
	t.Parallel()
	good := webhook.Handler{Provider: fixed{event: webhook.Event{ID: "1"}}, Endpoint: "e", Sink: sunk(nil)}
	require.NoError(t, good.Validate())
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		w := answer(good, httptest.NewRequest(method, "/hook", nil))
		require.Equal(t, 405, w.Code)
		require.Equal(t, "POST", w.Header().Get("Allow"))
	}
	for name, spoil := range map[string]func(h *webhook.Handler){
		"provider":     func(h *webhook.Handler) { h.Provider = nil },
		"sink":         func(h *webhook.Handler) { h.Sink = nil },
		"endpoint":     func(h *webhook.Handler) { h.Endpoint = "" },
		"source":       func(h *webhook.Handler) { h.Provider = webhook.Standard{Secrets: []string{newSecret}} },
		"secrets":      func(h *webhook.Handler) { h.Provider = webhook.Stripe{} },
		"max body":     func(h *webhook.Handler) { h.MaxBody = -1 },
		"read timeout": func(h *webhook.Handler) { h.ReadTimeout = -1 },
		"timeout":      func(h *webhook.Handler) { h.Timeout = -1 },
		"effect":       func(h *webhook.Handler) { h.Sink = webhook.Effect{} },
		"effect's fn":  func(h *webhook.Handler) { h.Sink = webhook.Effect{DB: &noDB{}} },
		"effect's table": func(h *webhook.Handler) {
			h.Sink = webhook.Effect{DB: &noDB{}, Fn: book, Once: idem.Once{Table: dedup.Table{Retention: -1}}}
		},
	} {
		h := good
		spoil(&h)
		require.Error(t, h.Validate(), name)
		require.Equal(t, 500, answer(h, post("{}")).Code, name)
	}
}

type noDB struct{ idem.DB }

// The key is (source, endpoint, id), or the parts that the provider gives. It carries the time where the sender's says
// when the event was made.
func TestKeys(t *testing.T) {
	t.Parallel()
	at := time.Now().Truncate(time.Second)
	scope := idem.Scope{Source: "fixed", Operation: "e"}
	for name, tc := range map[string]struct {
		provider fixed
		want     idem.Key
	}{
		"id":    {fixed{event: webhook.Event{ID: "a/b"}}, scope.Key("a/b")},
		"parts": {fixed{event: webhook.Event{ID: "x", Key: []string{"a", "b"}}}, scope.Key("a", "b")},
		"time":  {fixed{event: webhook.Event{ID: "a", Time: at}}, scope.Key("a")},
		"dated": {
			fixed{event: webhook.Event{ID: "a", Time: at}, sender: webhook.Sender{Dated: true}},
			scope.Key("a").OccurredAt(at),
		},
		"dated, no time": {fixed{event: webhook.Event{ID: "a"}, sender: webhook.Sender{Dated: true}}, scope.Key("a")},
		"dated, parts": {
			fixed{event: webhook.Event{ID: "x", Time: at, Key: []string{"a", "b"}}, sender: webhook.Sender{Dated: true}},
			scope.Key("a", "b"),
		},
	} {
		var got idem.Key
		sink := webhook.SinkFunc(func(_ context.Context, key idem.Key, e webhook.Event) (idem.Outcome, error) {
			got = key
			require.Equal(t, "the body", string(e.Body))
			return idem.Duplicate, nil
		})
		h := webhook.Handler{Provider: tc.provider, Endpoint: "e", Sink: sink}
		require.Equal(t, 200, answer(h, post("the body")).Code)
		require.Equal(t, tc.want, got, name)
	}
}

// A sender that hangs up does not stop the effect, and the Sink's time is bounded all the same.
func TestHangUp(t *testing.T) {
	t.Parallel()
	h := webhook.Handler{
		Provider: fixed{event: webhook.Event{ID: "1"}}, Endpoint: "e", Timeout: 200 * time.Millisecond,
		Sink: webhook.SinkFunc(func(ctx context.Context, _ idem.Key, _ webhook.Event) (idem.Outcome, error) {
			require.NoError(t, ctx.Err())
			<-ctx.Done()
			return 0, ctx.Err()
		}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, 503, answer(h, post("{}").WithContext(ctx)).Code)
}
