// Package inbox is the engine of the inbox, over either driver: it stores messages once, and has them handled
// afterwards. The front doors are dedup/inbox (pgx) and inboxsql.
//
// A worker takes a message in two steps. The first is committed at once: it counts the attempt and gives the message
// a token, so that an attempt which kills its process is counted, too. The second is the handler's transaction, which
// locks the message's row for as long as it runs. So no lease has to outlast a handler: whoever looks for work passes
// over a locked row, and the lock ends with the worker's connection.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/internal/pg"
)

// Message is one message. Its fields are those of package inbox.
type Message struct {
	Source, Operation, ID string
	Key                   string
	Headers               map[string]string
	Body                  []byte
	ReceivedAt            time.Time
	State                 State
	Attempt               int
	ErrorClass, LastError string
}

// State is what has become of a message, as the table has it.
type State uint8

// The states.
const (
	Waiting   State = 1
	Handled   State = 2
	Dead      State = 3
	Discarded State = 4
)

// The longest parts of a message, in bytes; those of its name are dedup's.
const (
	maxScope = 255
	maxID    = 1024
	MaxKey   = 1024
)

// ErrInvalid: the message cannot be stored.
var ErrInvalid = errors.New("the message is invalid")

var errHidden = errors.New("the message's row can be neither inserted nor read: " +
	"a trigger, a rule or row security keeps it away; inbox.Verify names it")

// looks is how often a message is stored whose row can be neither inserted nor read. One purge in between makes two.
const looks = 3

// Store stores m once. fresh is false where a row that is committed, or of this transaction, has its name; age says
// for how long. In a transaction of its own where conn is none.
func (s SQL) Store(ctx context.Context, conn pg.Conn, m Message) (fresh bool, age time.Duration, err error) {
	if err := m.check(); err != nil {
		return false, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	headers, err := headersText(m.Headers)
	if err != nil {
		return false, 0, err
	}
	body := m.Body
	if body == nil {
		body = []byte{}
	}
	for range looks {
		var seq, micros int64
		// The texts come first: by them the adapter of database/sql finds out that the transaction has ended.
		insert := &pg.Stmt{SQL: s.store, Args: append(m.name(), m.Key, headers, body), Dest: []any{&seq}}
		if err := conn.Send(ctx, insert); err != nil || insert.Rows == 1 {
			return err == nil, 0, err
		}
		read := &pg.Stmt{SQL: s.seen, Args: m.name(), Dest: []any{&micros}}
		if err := conn.Send(ctx, read); err != nil || read.Rows == 1 {
			return false, time.Duration(micros) * time.Microsecond, err
		}
	}
	return false, 0, errHidden
}

// name returns the arguments that every statement on one message begins with.
func (m Message) name() []any { return []any{m.ID, m.Operation, m.Source} }

// check holds a message's name to what idem asks of a key, so that the one can be made of the other.
func (m Message) check() error {
	for _, part := range []struct {
		role, text string
		size, max  int
	}{
		{"source", m.Source, len(m.Source), maxScope},
		{"operation", m.Operation, len(m.Operation), maxScope},
		{"id", m.ID, storedLen(m.ID), maxID},
	} {
		switch {
		case part.text == "":
			return errors.New("the " + part.role + " is empty")
		case strings.TrimSpace(part.text) == "":
			return errors.New("the " + part.role + " is blank")
		case part.size > part.max:
			return errors.New("the " + part.role + " is too long")
		case !storable(part.text):
			return errors.New("the " + part.role + " holds a NUL byte or is not UTF-8")
		}
	}
	switch {
	case len(m.Key) > MaxKey:
		return errors.New("the key is too long")
	case !storable(m.Key):
		return errors.New("the key holds a NUL byte or is not UTF-8")
	}
	return nil
}

func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// storedLen is how long idem.Scope.Key would make an id: it escapes these two.
func storedLen(id string) int { return len(id) + 2*(strings.Count(id, "%")+strings.Count(id, "/")) }
