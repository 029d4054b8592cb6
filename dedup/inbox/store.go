package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Message is what Store stores, and what a [Handler] gets. Source, Operation and ID are its name: together they are
// unique, for as long as the table keeps it.
type Message struct {
	// Source says who made the id, Operation what is done with the message: as in idem.Scope. 1 to 255 bytes each.
	Source, Operation string

	// ID is the sender's, the same each time the message comes. At most 1,024 bytes, "%" and "/" counting three times,
	// so that it can be a part of an idem.Key. As there, Source, Operation and ID must be UTF-8 without NUL, and not
	// blank.
	ID string

	// Key is the ordering key: messages of one key are handled in order. Empty means no order. At most 1,024 bytes.
	Key string

	// Headers and Body come back as they were, whatever bytes they hold. Each has what a column takes: 1 GB.
	Headers map[string]string
	Body    []byte

	// The rest is what the table knows; Store ignores it.

	ReceivedAt time.Time // by the server's clock
	State      State
	Attempt    int    // from 1
	ErrorClass string // of the last attempt that failed, see the table in the package's documentation
	LastError  string // its text, at most 1,000 bytes
}

// MaxKeyBytes is the longest ordering key, in bytes.
const MaxKeyBytes = engine.MaxKey

// ErrInvalid: a message cannot be stored, or a filter is none.
var ErrInvalid = engine.ErrInvalid

// Outcome says what Store found.
type Outcome uint8

// The outcomes. Zero comes with an error.
const (
	Stored    Outcome = 1
	Duplicate Outcome = 2 // a message of this name is there already, in whatever state
)

// String returns "stored" or "duplicate".
func (o Outcome) String() string {
	switch o {
	case Stored:
		return "stored"
	case Duplicate:
		return "duplicate"
	}
	return "none"
}

// Conn runs single statements: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, a pgx.Tx, or a wrapper of one.
type Conn interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Store stores m once in the zero [Table]. With a pgx.Tx it is there if and when that is committed; else at once. It
// takes one round trip, and for a duplicate two; one more if the session is read only by default.
//
// It waits for an open transaction that has stored the same message. The content is not compared: the first one counts.
// For what cannot be stored it returns [ErrInvalid] before anything is sent. After any other error the message may be
// there, or not: it must come again. A transaction has failed then.
func Store(ctx context.Context, db Conn, m Message) (Outcome, error) {
	return Table{}.Store(ctx, db, m)
}

// Store is [Store] for this table.
func (t Table) Store(ctx context.Context, db Conn, m Message) (Outcome, error) {
	fresh, err := engine.Table(t).Store(ctx, connOf(db), aloneOf(db), m.engine())
	switch {
	case err != nil:
		return 0, wrapped("store", err)
	case fresh:
		return Stored, nil
	}
	return Duplicate, nil
}

// connOf adapts db: of a transaction it is known whether it has ended.
func connOf(db Conn) pg.Conn {
	if tx, ok := db.(pgx.Tx); ok {
		return pg.FromPgxTx(tx)
	}
	return pg.FromPgx(db)
}

// aloneOf adapts db for a transaction of its own; nil where db is a transaction, or in one.
func aloneOf(db Conn) pg.Conn {
	if own, ok := db.(pg.PgxDB); ok && !pg.PgxInTx(db) {
		return pg.WriterPgxAlone(own)
	}
	return nil
}

func (m Message) engine() engine.Message {
	return engine.Message{Source: m.Source, Operation: m.Operation, ID: m.ID, Key: m.Key, Headers: m.Headers, Body: m.Body}
}

func message(m engine.Message) Message {
	return Message{
		Source: m.Source, Operation: m.Operation, ID: m.ID, Key: m.Key, Headers: m.Headers, Body: m.Body,
		ReceivedAt: m.ReceivedAt, State: State(m.State), Attempt: m.Attempt, ErrorClass: m.ErrorClass, LastError: m.LastError,
	}
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inbox: %s: %w", what, err)
}
