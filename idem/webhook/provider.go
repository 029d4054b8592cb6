package webhook

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgonce/pgonce/dedup"
)

// Provider knows one sender. It is safe for concurrent use.
type Provider interface {
	// Sender returns what is known about the sender. It is the same each time.
	Sender() Sender

	// Verify returns the event of a request whose body has been read and whose time of arrival is at. It decides first
	// whether the sender signed exactly these bytes, and looks into them afterwards. It leaves r.Body alone.
	//
	// An error is [ErrSignature] or [ErrStale] if the request is not to be trusted, and [ErrMalformed] if it is, and no
	// retry could help; each may be wrapped. Any other error, of the setup or of a server that is asked for keys, is
	// answered with a 5xx. None may hold a secret, or a part of the body.
	Verify(r *http.Request, body []byte, at time.Time) (Event, error)
}

// What a [Provider] says of a request that it refuses.
var (
	// ErrSignature: the signature is missing, unreadable or not the sender's.
	ErrSignature = errors.New("webhook: no valid signature")

	// ErrStale: the signature is good, and its time too far from the time of arrival.
	ErrStale = errors.New("webhook: the signature's time is too far from now")

	// ErrMalformed: the request is authentic, and not what its sender documents.
	ErrMalformed = errors.New("webhook: the signed request is malformed")
)

// Sender is what a provider's documentation says of its deliveries.
type Sender struct {
	// Source is the source of the events' keys: "stripe". It must not change while keys are kept.
	Source string

	// Resends is for how long an event may be delivered again, by hand too: dedup.Table.Resends. 0: not known.
	Resends time.Duration

	// MaxBody is the longest body that the sender makes, in bytes. 0: not known, and 1 MiB.
	MaxBody int64

	// Dated says that Event.Time is when the sender made the event, shortly before it first delivered it, and never
	// changes. Then keys carry it (idem.Key.OccurredAt): what is delivered after the retention is refused, not run
	// again.
	Dated bool
}

// Table returns t with the Resends that this sender needs, unless t has a longer one. Give the result to dedup.Migrate,
// dedup.Verify and idem.Once.
func (s Sender) Table(t dedup.Table) dedup.Table {
	t.Resends = max(t.Resends, s.Resends)
	return t
}

// Event is a delivery that was verified.
type Event struct {
	// Source is the sender's; the Handler fills it in.
	Source string

	// ID is the sender's id of the event, the same in each delivery of it.
	ID string

	// Type is what happened, as the sender calls it: "invoice.paid".
	Type string

	// Time is the event's own time, for a guard; zero if the sender states none. It is the same in each delivery. The
	// provider's documentation says how fit it is, and how fine.
	Time time.Time

	// Key, if not nil, are the parts of the event's key in place of ID, if two events of different ids can be one. Such
	// a key carries no time.
	Key []string

	// Body is the raw body. A Sink must not change it.
	Body []byte

	// Reply, where not nil, is what the sender wants to be answered (Slack's challenge). Then this is no event: the Sink
	// is not called.
	Reply []byte

	// ReplyHeader are the headers of a Reply. With them, a Reply of no bytes is answered with 204.
	ReplyHeader http.Header
}
