package faultconn

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Side says who sends a message.
type Side uint8

const (
	// Either is the zero value: messages of both directions.
	Either Side = iota
	// Frontend messages go from the client to the server.
	Frontend
	// Backend messages go from the server to the client.
	Backend
)

// String returns "F", "B" or "-".
func (s Side) String() string {
	switch s {
	case Frontend:
		return "F"
	case Backend:
		return "B"
	}
	return "-"
}

// A Message is one message of the PostgreSQL protocol, decoded as far as a test needs. Parameter values, rows and the
// texts of errors are never decoded.
type Message struct {
	From    Side
	N       int    // number among the counted messages of its side, from 1; 0 when it was not counted
	Conn    int    // number of the connection, from 1, in the order of connecting
	PID     uint32 // process id of the connection's server session; 0 before the server has told it
	Outside bool   // not of the session proper: startup, up to and with its ReadyForQuery; CancelRequest; Terminate

	Type string // the protocol's name for it: "Query", "Parse", "CommandComplete"
	// SQL is the text of a Query or Parse; of a Bind, Describe or Execute it is the text of the prepared statement. In a
	// trace the string and number literals of a Query are replaced by ?, because pgx's simple protocol puts the
	// parameters there.
	SQL    string
	Name   string // prepared statement of a Parse, Bind, Describe or Close; "" is the unnamed one
	Tag    string // CommandComplete: "INSERT 0 1"
	Status byte   // ReadyForQuery: 'I' idle, 'T' in a transaction, 'E' in a failed one
	Code   string // ErrorResponse and NoticeResponse: the SQLSTATE

	note string
	conn *conn
}

// String returns one line for a trace, such as "F Query begin", "B CommandComplete COMMIT" or "B ReadyForQuery I". What
// was done to the message follows in brackets: "F Query commit [DropReply]", "B ReadyForQuery I [dropped]".
func (m Message) String() string {
	parts := []string{m.From.String(), m.Type}
	switch m.Type {
	case "Query":
		parts = append(parts, brief(mask(m.SQL)))
	case "Parse", "Execute":
		parts = append(parts, brief(m.SQL))
	case "Bind", "Describe", "Close":
		parts = append(parts, brief(m.Name))
	}
	parts = append(parts, m.Tag, m.Code)
	if m.Status != 0 {
		parts = append(parts, string(rune(m.Status)))
	}
	if m.note != "" {
		parts = append(parts, "["+m.note+"]")
	}
	filled := parts[:0]
	for _, p := range parts {
		if p != "" {
			filled = append(filled, p)
		}
	}
	return strings.Join(filled, " ")
}

// AwaitDeadline blocks until the client has set a deadline on this connection that is over, which is how pgx passes on
// that a context was cancelled, or until five seconds have passed; it then returns false. For hooks, so that what a
// cancelled context meets is the same in every run:
//
//	Do: func(m faultconn.Message) { cancel(); m.AwaitDeadline() }
func (m Message) AwaitDeadline() bool {
	if m.conn == nil {
		return false
	}
	limit := time.After(5 * time.Second)
	for {
		at, changed := m.conn.deadline.get()
		var timer <-chan time.Time
		if !at.IsZero() {
			left := time.Until(at)
			if left <= 0 {
				return true
			}
			timer = time.After(left)
		}
		select {
		case <-timer:
		case <-changed:
		case <-limit:
			return false
		}
	}
}

// brief returns s on one line and of bounded length.
func brief(s string) string {
	const limit = 100
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "..."
	}
	return s
}

var frontendTypes = map[byte]string{
	'B': "Bind", 'C': "Close", 'D': "Describe", 'E': "Execute", 'F': "FunctionCall", 'H': "Flush", 'P': "Parse",
	'Q': "Query", 'S': "Sync", 'X': "Terminate", 'c': "CopyDone", 'd': "CopyData", 'f': "CopyFail",
	'p': "PasswordMessage", // and the SASL and GSS responses, which differ by what was asked only
}

var backendTypes = map[byte]string{
	'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'A': "NotificationResponse", 'C': "CommandComplete",
	'D': "DataRow", 'E': "ErrorResponse", 'G': "CopyInResponse", 'H': "CopyOutResponse", 'I': "EmptyQueryResponse",
	'K': "BackendKeyData", 'N': "NoticeResponse", 'R': "Authentication", 'S': "ParameterStatus", 'T': "RowDescription",
	'V': "FunctionCallResponse", 'W': "CopyBothResponse", 'Z': "ReadyForQuery", 'c': "CopyDone", 'd': "CopyData",
	'n': "NoData", 's': "PortalSuspended", 't': "ParameterDescription", 'v': "NegotiateProtocolVersion",
}

func typeName(names map[byte]string, b byte) string {
	if name, ok := names[b]; ok {
		return name
	}
	return "Unknown " + strconv.QuoteRune(rune(b))
}

// cstring returns the zero-terminated string at the start of b, and what follows it.
func cstring(b []byte) (string, []byte) {
	for i, c := range b {
		if c == 0 {
			return string(b[:i]), b[i+1:]
		}
	}
	return string(b), nil
}

// errorCode returns the SQLSTATE among the fields of an ErrorResponse or NoticeResponse.
func errorCode(body []byte) string {
	for len(body) > 0 && body[0] != 0 {
		kind := body[0]
		var value string
		value, body = cstring(body[1:])
		if kind == 'C' {
			return value
		}
	}
	return ""
}

var _ fmt.Stringer = Message{}
