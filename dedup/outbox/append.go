package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	engine "github.com/pgonce/pgonce/internal/outbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Event is what Append stores, and what a [Publisher] gets.
type Event struct {
	// ID is fixed when the event is appended, and the same each time it is published: the consumer's key. It is a UUID
	// in its usual form, in lower case. Empty means a new one ([NewID]), which the Publisher sees.
	ID string

	// Topic says where it goes: a subject, a queue, a topic. 1 to 255 bytes.
	Topic string

	// Key is the ordering key: events of one key are published in order. Empty means no order. At most 1,024 bytes.
	Key string

	// Headers travel with the event: the trace context, a content type. At most 1 MB as JSON.
	Headers map[string]string

	// Payload is any bytes, at most 256 MB.
	Payload []byte

	// The rest is what the relay knows; Append ignores it.

	AppendedAt time.Time // by the server's clock
	Attempt    int       // of the Publisher: from 1. Attempts that were not counted do not show
	LastError  string    // of a parked event: what the Publisher said last, at most 1,000 bytes
}

// The longest topic, key and payload, and the longest headers as JSON, in bytes.
const (
	MaxTopicBytes   = engine.MaxTopic
	MaxKeyBytes     = engine.MaxKey
	MaxPayloadBytes = engine.MaxPayload
	MaxHeaderBytes  = engine.MaxHeaders
)

// ErrInvalid: an event cannot be stored, or an id is none.
var ErrInvalid = engine.ErrInvalid

// NewID returns a new UUID of version 7, if you must know an event's id before Append.
func NewID() string { return engine.NewID() }

// Append stores events in the zero [Table], in tx: they are published, in this order for each key, if and when tx is
// committed. It takes one round trip. For an event that cannot be stored it returns [ErrInvalid] before anything is
// sent. Any other error is the server's or the connection's: tx has failed, and must be rolled back.
func Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	return Table{}.Append(ctx, tx, events...)
}

// Append is [Append] for this table.
func (t Table) Append(ctx context.Context, tx pgx.Tx, events ...Event) error {
	s, err := t.sql()
	if err != nil {
		return fmt.Errorf("outbox: append: %w", err)
	}
	all := make([]engine.Event, len(events))
	for i, e := range events {
		all[i] = engine.Event(e)
	}
	if err := s.Append(ctx, pg.FromPgxTx(tx), all...); err != nil {
		return fmt.Errorf("outbox: append: %w", err)
	}
	return nil
}

func events(found []engine.Event) []Event {
	all := make([]Event, len(found))
	for i, e := range found {
		all[i] = Event(e)
	}
	return all
}
