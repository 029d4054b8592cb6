package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/idem"
)

// Inbox is the [Sink] that stores each event once and returns, so that the sender is answered at once; see package
// inbox. A worker handles it later, in its own transaction, and gets the event back by [Stored]. DB is needed.
//
// The first delivery is Executed, every further one Duplicate, whatever became of the message. A concurrent one waits
// for the first. An event that no message can hold is [ErrMalformed].
type Inbox struct {
	DB    inbox.Conn
	Table inbox.Table

	// Order, if not nil, returns the ordering key of an event: those of one key are handled one at a time, in the order
	// in which they came. Empty means no order.
	Order func(Event) string
}

// The headers of a stored event. Their names are no sender's.
const (
	inboxID   = "pgonce-id"
	inboxType = "pgonce-type"
	inboxTime = "pgonce-time"
)

// Accept stores the event, if it is new.
func (i Inbox) Accept(ctx context.Context, key idem.Key, e Event) (idem.Outcome, error) {
	scope := key.Scope()
	m := inbox.Message{
		Source: scope.Source, Operation: scope.Operation, ID: key.ID(), Body: e.Body,
		Headers: map[string]string{inboxID: e.ID, inboxType: e.Type},
	}
	if !e.Time.IsZero() {
		m.Headers[inboxTime] = e.Time.Format(time.RFC3339Nano)
	}
	if i.Order != nil {
		m.Key = i.Order(e)
	}
	out, err := i.Table.Store(ctx, i.DB, m)
	switch {
	case errors.Is(err, inbox.ErrInvalid):
		return 0, fmt.Errorf("%w: %w", ErrMalformed, err)
	case err != nil:
		return 0, err
	case out == inbox.Stored:
		return idem.Executed, nil
	}
	return idem.Duplicate, nil
}

// Validate reports what is missing. It does not look at a database.
func (i Inbox) Validate() error {
	if i.DB == nil {
		return errNoInbox
	}
	return i.Table.Validate()
}

// Stored returns the event of a message that an [Inbox] has stored. Its Key is nil.
func Stored(m inbox.Message) Event {
	at, _ := time.Parse(time.RFC3339Nano, m.Headers[inboxTime]) // zero where the sender states none
	return Event{Source: m.Source, ID: m.Headers[inboxID], Type: m.Headers[inboxType], Time: at, Body: m.Body}
}
