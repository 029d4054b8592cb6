package faultconn

import "encoding/binary"

const (
	sslRequest    = 80877103
	gssRequest    = 80877104
	cancelRequest = 80877102
)

// A phase is how far a connection has come.
type phase uint8

const (
	opening     phase = iota // the client's first message is to come
	negotiating              // the server's one byte about encryption is to come
	starting                 // authentication and settings, up to the first ReadyForQuery
	open                     // the session proper
	cancelling               // a connection that carries a CancelRequest and nothing else
	unreadable               // encrypted, or not this protocol: passed through as it is
)

// A session reads both streams of one connection. It decides nothing.
type session struct {
	phase       phase
	front, back framer
	pid         uint32
	statements  map[string]string // SQL of the prepared statements by name
	portals     map[string]string // SQL of the portals by name
	requests    int               // messages sent that the server ends its answer to with ReadyForQuery
	answers     int               // ReadyForQuery received
}

// nextFront returns the next message of the client; ok is false when more bytes are needed, m.Type is empty when the
// stream is unreadable.
func (s *session) nextFront() (frame []byte, m Message, ok bool) {
	if s.phase == opening || s.phase == negotiating {
		frame, valid := s.front.next(untyped)
		switch {
		case !valid:
			s.phase = unreadable
		case frame == nil:
			return nil, m, false
		default:
			return frame, s.first(frame), true
		}
	}
	if s.phase != unreadable {
		frame, valid := s.front.next(typed)
		if valid {
			if frame == nil {
				return nil, m, false
			}
			return frame, s.frontend(frame), true
		}
		s.phase = unreadable
	}
	frame, _ = s.front.next(freeform)
	return frame, m, frame != nil
}

// first decodes a message without a type byte.
func (s *session) first(frame []byte) Message {
	m := Message{From: Frontend, Outside: true}
	switch binary.BigEndian.Uint32(frame[4:]) {
	case sslRequest:
		m.Type, s.phase = "SSLRequest", negotiating
	case gssRequest:
		m.Type, s.phase = "GSSENCRequest", negotiating
	case cancelRequest:
		m.Type, s.phase = "CancelRequest", cancelling
	default:
		m.Type, s.phase = "StartupMessage", starting
		s.requests++
	}
	return m
}

func (s *session) frontend(frame []byte) Message {
	m := Message{From: Frontend, Type: typeName(frontendTypes, frame[0]), PID: s.pid, Outside: s.phase != open}
	body := frame[headerLen:]
	switch m.Type {
	case "Terminate":
		m.Outside = true
	case "Query":
		m.SQL, _ = cstring(body)
		s.requests++
	case "Sync", "FunctionCall":
		s.requests++
	case "Parse":
		m.Name, body = cstring(body)
		m.SQL, _ = cstring(body)
		set(&s.statements, m.Name, m.SQL)
	case "Bind":
		portal, rest := cstring(body)
		m.Name, _ = cstring(rest)
		m.SQL = s.statements[m.Name]
		set(&s.portals, portal, m.SQL)
	case "Execute":
		portal, _ := cstring(body)
		m.SQL = s.portals[portal]
	case "Describe", "Close":
		if len(body) == 0 {
			break
		}
		name, _ := cstring(body[1:])
		known := s.portals
		if body[0] == 'S' {
			m.Name, known = name, s.statements
		}
		m.SQL = known[name]
		if m.Type == "Close" {
			delete(known, name)
		}
	}
	return m
}

// nextBack is nextFront for the server's stream.
func (s *session) nextBack() (frame []byte, m Message, ok bool) {
	if s.phase == negotiating && len(s.back.buf) > 0 {
		switch s.back.buf[0] {
		case 'S', 'G':
			s.phase = unreadable
			frame, _ = s.back.next(single)
			return frame, Message{From: Backend, Type: "EncryptionAccepted", Outside: true}, true
		case 'N':
			s.phase = opening
			frame, _ = s.back.next(single)
			return frame, Message{From: Backend, Type: "EncryptionRefused", Outside: true}, true
		}
		// Anything else is the ErrorResponse of a server that does not know the request.
	}
	if s.phase != unreadable {
		frame, valid := s.back.next(typed)
		if valid {
			if frame == nil {
				return nil, m, false
			}
			return frame, s.backend(frame), true
		}
		s.phase = unreadable
	}
	frame, _ = s.back.next(freeform)
	return frame, m, frame != nil
}

func (s *session) backend(frame []byte) Message {
	m := Message{From: Backend, Type: typeName(backendTypes, frame[0]), Outside: s.phase != open}
	body := frame[headerLen:]
	switch m.Type {
	case "Authentication":
		if len(body) >= 4 && binary.BigEndian.Uint32(body) == 0 {
			m.Type = "AuthenticationOk"
		}
	case "BackendKeyData":
		if len(body) >= 4 {
			s.pid = binary.BigEndian.Uint32(body)
		}
	case "CommandComplete":
		m.Tag, _ = cstring(body)
	case "ErrorResponse", "NoticeResponse":
		m.Code = errorCode(body)
	case "ReadyForQuery":
		if len(body) > 0 {
			m.Status = body[0]
		}
		s.answers++
		if s.phase == starting {
			s.phase = open
		}
	}
	m.PID = s.pid
	return m
}

func set(m *map[string]string, name, sql string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[name] = sql
}
