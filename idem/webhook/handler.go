package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/pgonce/pgonce/idem"
)

// Handler is the http.Handler of one endpoint. Provider, Endpoint and Sink are needed; every other field may be zero.
// It is a plain value, safe for concurrent use.
type Handler struct {
	// Provider verifies a delivery.
	Provider Provider

	// Endpoint names this endpoint, and so the effect: it is the operation of its keys. Endpoints that get the same
	// events need different names. It must not change while keys are kept.
	Endpoint string

	// Sink takes the event of a verified delivery.
	Sink Sink

	// MaxBody is the longest body, in bytes. 0 means the sender's longest, see [Sender].
	MaxBody int64

	// ReadTimeout is how long the body may take to arrive, if the server can limit that (net/http can, a recorder of
	// tests cannot). It goes before http.Server.ReadTimeout. 0 means 10 seconds, or the server's if that is shorter.
	ReadTimeout time.Duration

	// Timeout is how long the Sink may take, whether or not the sender still waits. 0 means 30 seconds. Senders do not
	// read answers after their own limit (GitHub's 10 seconds, Slack's 3).
	Timeout time.Duration

	// Report, if not nil, is told of every delivery, also a refused one, before it is answered. The event holds the
	// body and its id: do not log them where they are secret.
	Report func(ctx context.Context, e Event, out idem.Outcome, err error)
}

const (
	defaultMaxBody     = 1 << 20
	defaultReadTimeout = 10 * time.Second
	defaultTimeout     = 30 * time.Second
)

var (
	errNoProvider = errors.New("webhook: Handler.Provider is nil")
	errNoSink     = errors.New("webhook: Handler.Sink is nil")
	errNoDB       = errors.New("webhook: Effect.DB is nil")
	errNoInbox    = errors.New("webhook: Inbox.DB is nil")
	errNoFn       = errors.New("webhook: Effect.Fn is nil")
	errNegative   = errors.New("webhook: MaxBody, ReadTimeout and Timeout must not be negative")
	errMethod     = errors.New("webhook: not a POST")
	errTooLarge   = errors.New("webhook: the body is too long")
	errBody       = errors.New("webhook: the body did not arrive")
)

// Validate reports what is wrong with h: a missing field, an empty secret, an endpoint that no key can hold. Call it at
// the start: a Handler that is not valid answers 500. It does not look at a database; dedup.Verify does.
func (h Handler) Validate() error {
	switch {
	case h.Provider == nil:
		return errNoProvider
	case h.Sink == nil:
		return errNoSink
	case h.MaxBody < 0, h.ReadTimeout < 0, h.Timeout < 0:
		return errNegative
	}
	for _, part := range []any{h.Provider, h.Sink} {
		if v, ok := part.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return err
			}
		}
	}
	scope := idem.Scope{Source: h.Provider.Sender().Source, Operation: h.Endpoint}
	if err := scope.Key("x").Validate(); err != nil {
		return fmt.Errorf("webhook: the operation is Handler.Endpoint: %w", err)
	}
	return nil
}

// ServeHTTP verifies a delivery, hands its event to the Sink, and answers; see the package documentation.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, out, err := h.deliver(w, r)
	if h.Report != nil {
		h.Report(r.Context(), e, out, err)
	}
	code := status(err)
	switch code {
	case http.StatusOK:
		if e.Reply != nil {
			e.reply(w)
		}
		return
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case http.StatusServiceUnavailable:
		if after := idem.RetryAfter(err); after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(after/time.Second)))
		}
	}
	http.Error(w, http.StatusText(code), code)
}

// reply answers what is no event.
func (e Event) reply(w http.ResponseWriter) {
	maps.Copy(w.Header(), e.ReplyHeader)
	if len(e.Reply) == 0 && len(e.ReplyHeader) > 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(e.Reply)
}

// deliver returns what could be found out about the event, also with an error.
func (h Handler) deliver(w http.ResponseWriter, r *http.Request) (Event, idem.Outcome, error) {
	if r.Method != http.MethodPost {
		return Event{}, 0, errMethod
	}
	if err := h.Validate(); err != nil {
		return Event{}, 0, err
	}
	sender := h.Provider.Sender()
	body, err := h.read(w, r, sender)
	if err != nil {
		return Event{Source: sender.Source}, 0, err
	}
	e, err := h.Provider.Verify(r, body, time.Now())
	if err != nil {
		return Event{Source: sender.Source}, 0, err
	}
	e.Source = sender.Source
	e.Body = body
	if e.Reply != nil {
		return e, 0, nil
	}
	key := keyOf(sender, h.Endpoint, e)
	if err := key.Validate(); err != nil {
		return e, 0, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	// A sender that hangs up has not withdrawn the event.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), or(h.Timeout, defaultTimeout))
	defer cancel()
	out, err := h.Sink.Accept(ctx, key, e)
	return e, out, err
}

func keyOf(sender Sender, endpoint string, e Event) idem.Key {
	scope := idem.Scope{Source: sender.Source, Operation: endpoint}
	if e.Key != nil {
		return scope.Key(e.Key...)
	}
	key := scope.Key(e.ID)
	if sender.Dated && !e.Time.IsZero() {
		key = key.OccurredAt(e.Time)
	}
	return key
}

// read returns the whole body. Its memory grows with what arrives, never with what a header announces.
func (h Handler) read(w http.ResponseWriter, r *http.Request, sender Sender) ([]byte, error) {
	limit := or(h.MaxBody, or(sender.MaxBody, defaultMaxBody))
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not worth reading
		return nil, errTooLarge
	}
	if r.Body == nil || r.Body == http.NoBody {
		return []byte{}, nil // no end of it would come, to take away the limit below
	}
	// Where the server has no such thing, its own limits hold. The Sink has time of its own: net/http takes the limit away
	// at the end of the body.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.readTimeout(r)))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, errBody
	}
	return body, nil
}

// readTimeout never makes a server more patient than it was told to be, unless the field does.
func (h Handler) readTimeout(r *http.Request) time.Duration {
	limit := defaultReadTimeout
	if srv, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && srv.ReadTimeout > 0 {
		limit = min(limit, srv.ReadTimeout)
	}
	return or(h.ReadTimeout, limit)
}

// status returns the answer to a delivery that ended with err.
func status(err error) int {
	var final *idem.FinalError
	var own *effectError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &own) && !errors.Is(own, ErrMalformed):
		if idem.Retryable(err) {
			return http.StatusServiceUnavailable
		}
		return http.StatusInternalServerError
	case errors.Is(err, errMethod):
		return http.StatusMethodNotAllowed
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errBody):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrSignature), errors.Is(err, ErrStale):
		return http.StatusUnauthorized
	case errors.Is(err, ErrMalformed), errors.As(err, &final),
		errors.Is(err, idem.ErrPayloadMismatch), errors.Is(err, idem.ErrExpired):
		return http.StatusUnprocessableEntity
	case errors.Is(err, idem.ErrFuture), idem.Retryable(err):
		return http.StatusServiceUnavailable // time alone can mend both
	}
	return http.StatusInternalServerError
}

// or returns n, or its default.
func or[N ~int64](n, otherwise N) N {
	if n == 0 {
		return otherwise
	}
	return n
}
