// Package outbox is the engine of the outbox, over either driver: it appends events in a transaction of the
// caller's, and relays them afterwards. The front doors are dedup/outbox (pgx) and outboxsql.
//
// An event is in one of a fixed number of lanes, by a hash of its ordering key. A relay leases a lane, reads a batch
// from its beginning, publishes it, and deletes what was published. So one relay at a time has a key, and any number
// of them share the lanes. What fails is moved out of the way, together with the events of its key that come after
// it.
//
// Why not pg_logical_emit_message, and a replication slot to read it from: while its reader is away a slot holds WAL,
// until the disk is full for everybody. It has one reader, and nothing in it can be parked, tried again alone,
// counted or looked at. It needs wal_level logical, the right REPLICATION, and a direct connection. As a mere wake-up
// it would cost all of that to save a look every 25 ms, which writes nothing.
package outbox

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/internal/pg"
)

// Event is one event. Its fields are those of package outbox.
type Event struct {
	ID         string
	Topic      string
	Key        string
	Headers    map[string]string
	Payload    []byte
	AppendedAt time.Time
	Attempt    int
	LastError  string
}

// The longest topic and key, in bytes.
const (
	MaxTopic = 255
	MaxKey   = 1024
)

// The longest payload, and the longest headers as JSON, in bytes. The server sends no more than 1 GB of a row, and
// twice as many bytes for a payload where the driver wants text: what can be stored can be read, by every driver.
const (
	MaxPayload = 256 << 20
	MaxHeaders = 1 << 20
)

// DefaultTable is the table of a Table without a name.
const DefaultTable = "outbox"

// maxTable leaves room for the suffix of the lanes: PostgreSQL cuts a name that is too long, without an error.
const maxTable = pg.MaxIdentifier - len("_lanes")

// ParseName reads the name of a table; empty is [DefaultTable].
func ParseName(s string) (pg.Name, error) {
	if s == "" {
		return pg.Name{Table: DefaultTable}, nil
	}
	name, err := pg.ParseName(s)
	if err == nil && len(name.Table) > maxTable {
		err = fmt.Errorf("the table's name has %d bytes, more than %d: the name of the table of its lanes is longer",
			len(name.Table), maxTable)
	}
	return name, err
}

// ErrInvalid: the event cannot be stored.
var ErrInvalid = errors.New("the event is invalid")

// Append adds events in tx, in their order, in one round trip where the driver can.
func (s SQL) Append(ctx context.Context, tx pg.Conn, events ...Event) error {
	stmts := make([]*pg.Stmt, len(events))
	for i, e := range events {
		st, err := s.stmt(e)
		if err != nil {
			if len(events) > 1 {
				err = fmt.Errorf("event %d: %w", i, err)
			}
			return err
		}
		stmts[i] = st
	}
	if len(stmts) == 0 {
		return nil
	}
	return tx.Send(ctx, stmts...)
}

func (s SQL) stmt(e Event) (*pg.Stmt, error) {
	id := e.ID
	if id == "" {
		id = NewID()
	}
	if err := e.check(id); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var headers any
	if len(e.Headers) > 0 {
		text, err := json.Marshal(e.Headers)
		if err != nil {
			return nil, err
		}
		if len(text) > MaxHeaders {
			return nil, fmt.Errorf("%w: the headers have %d bytes as JSON, more than %d", ErrInvalid, len(text), MaxHeaders)
		}
		headers = string(text)
	}
	payload := e.Payload
	if payload == nil {
		payload = []byte{}
	}
	lane := laneOf(e.Key)
	if e.Key == "" {
		lane = laneOf(id) // no order: wherever there is room
	}
	// The text comes first: by it the adapter of database/sql finds out that the transaction has ended.
	return &pg.Stmt{SQL: s.append, Args: []any{e.Topic, e.Key, lane, id, headers, payload}}, nil
}

func (e Event) check(id string) error {
	storable := func(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
	switch {
	case e.Topic == "":
		return errors.New("the topic is empty")
	case len(e.Topic) > MaxTopic:
		return fmt.Errorf("the topic has %d bytes, more than %d", len(e.Topic), MaxTopic)
	case len(e.Key) > MaxKey:
		return fmt.Errorf("the key has %d bytes, more than %d", len(e.Key), MaxKey)
	case len(e.Payload) > MaxPayload:
		return fmt.Errorf("the payload has %d bytes, more than %d", len(e.Payload), MaxPayload)
	case !storable(e.Topic) || !storable(e.Key):
		return errors.New("the topic or the key holds a NUL or is not UTF-8")
	case !isUUID(id):
		return errors.New("the id is not a UUID in its usual form")
	}
	for name, value := range e.Headers {
		if !storable(name) || !storable(value) {
			return errors.New("a header holds a NUL or is not UTF-8")
		}
	}
	return nil
}

// errHeaders: the row is not one of Append's.
var errHeaders = errors.New("the headers are not a JSON object of texts")

func headersOf(text string) (headers map[string]string, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &headers); err != nil {
		return nil, errHeaders // not what is in them
	}
	return headers, nil
}

// laneOf is FNV-1a, for it stays what it is: a hash of the server's may change with its version.
func laneOf(key string) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int64(h.Sum32() % Lanes)
}

// failedLane is the number of what failed in a lane.
func failedLane(lane int64) int64 { return -1 - lane }

// NewID returns a UUID of version 7: its first part is the time, which keeps indexes of consumers small.
func NewID() string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // never fails
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// isUUID takes lower case alone, which is what the server gives back: a consumer must not see two forms of one id.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
