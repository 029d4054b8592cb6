package faultconn

import (
	"fmt"
	"net"
	"strings"
	"sync"
)

// Mode is what happens to a connection at the chosen message.
type Mode uint8

const (
	// Pass is the zero value: nothing happens, beyond Script.Do.
	Pass Mode = iota
	// DropBefore loses the message and all that follows it in both directions. The messages before it arrive, those of
	// the same Write too. The client's Write succeeds, as a Write into a socket buffer does, and its next Read gets
	// io.EOF; the server sees the end of the stream. Of a backend message the client sees nothing, and whether the server
	// finishes what it was doing is up to the server.
	DropBefore
	// DropReply delivers the message and what the client sends after it, and loses every reply, save for what asks the
	// client to go on (COPY FROM STDIN, a password). Only when the server's ReadyForQuery has come, or its end of the
	// stream, does the client's Read get io.EOF: by then the server has done what it was asked. Of a backend message, it
	// and what follows up to ReadyForQuery is lost. The wait ends early when the client gives up: its deadlines work.
	DropReply
	// Stall holds the message and what follows it in the same direction until Script.Release; nobody sees an error. A
	// held frontend message looks sent to the client. Deadlines work. A client that closes the connection, or sends
	// Terminate as pgx does before it closes, does not have to wait.
	Stall
	// Reset loses the message and breaks the TCP connection with an RST, so that the server may lose earlier messages of
	// the same Write too. Read or Write return ECONNRESET. Other sockets than TCP are closed.
	Reset
)

// String returns the constant's name.
func (m Mode) String() string {
	switch m {
	case Pass:
		return "Pass"
	case DropBefore:
		return "DropBefore"
	case DropReply:
		return "DropReply"
	case Stall:
		return "Stall"
	case Reset:
		return "Reset"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// traceLimit bounds a trace: a script may watch a long run.
const traceLimit = 10_000

// A Script watches the connections made through it and does one thing to one message. The zero value only counts and
// traces. The fields are set before the first connection is made and not changed after it. The methods are safe for
// concurrent use; a Script must not be copied.
type Script struct {
	// From and When choose messages: those of this side that When accepts. Nil accepts all. When is called without locks,
	// perhaps from several goroutines, and only for counted messages of connections that are whole.
	From Side
	When func(Message) bool
	// N chooses the N-th of these, counted over all connections, from 1; 0 means 1.
	N int
	// Outside includes the messages outside the session proper: of the startup phase, cancel requests and Terminate. They
	// are otherwise traced, but neither counted nor chosen.
	Outside bool

	// Do is called when the message has been read and those before it have been delivered, but not this one. It runs on
	// the goroutine that reads or writes the connection, and holds it up: it may cancel contexts, end server sessions
	// through other connections, or kill the process, but must not wait for the client that it holds up.
	Do func(Message)
	// Mode is what then happens to the connection.
	Mode Mode
	// KeepServer leaves the server's side open until Release, with no word to the server even when the client closes: its
	// session, transaction and locks stay, as when a network loses everything silently. A cancel request of the client
	// still passes, on its own connection, unless Refuse is set. Without meaning for Pass and Reset.
	KeepServer bool
	// Refuse makes new connections fail with ECONNREFUSED from then on until Release, cancel requests among them. Idle
	// connections of a pool stay, so this is mostly used with MaxConns 1.
	Refuse bool
	// Repeat does it at every later message that From and When choose, too. Otherwise it is done once, and later
	// connections are not harmed.
	Repeat bool

	mu       sync.Mutex
	conns    int
	counts   [Backend + 1]int
	matches  int
	hits     int
	trace    []Message
	paused   bool
	refusing bool
	fired    chan struct{}
	done     bool               // fired is closed
	release  chan struct{}      // closed by Release, then made anew
	stalled  map[*conn]struct{} // hold messages of their client
	kept     []net.Conn         // sides of the server without a client
}

// Count returns how many messages of a side were counted; Either: of both.
func (s *Script) Count(side Side) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if side == Either {
		return s.counts[Frontend] + s.counts[Backend]
	}
	return s.counts[side]
}

// Matches returns how many messages From and When have chosen, whatever N is: after a run with Mode Pass, the largest N
// that is worth trying.
func (s *Script) Matches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matches
}

// Hits returns how often Do and Mode were applied, at most 1 without Repeat. A test of a fault checks it: a fault that
// never happened proves nothing.
func (s *Script) Hits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits
}

// Fired returns a channel that is closed when Do and Mode have been applied for the first time. For DropReply that is
// when the server has answered, or the client has closed the connection before it did.
func (s *Script) Fired() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.firedChan()
}

func (s *Script) firedChan() chan struct{} {
	if s.fired == nil {
		s.fired = make(chan struct{})
	}
	return s.fired
}

// Trace returns the messages seen so far, in order for each connection and direction; of a long run the newest.
func (s *Script) Trace() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Message(nil), s.trace...)
}

// String returns the trace, a message a line, for t.Log.
func (s *Script) String() string {
	var b strings.Builder
	for _, m := range s.Trace() {
		fmt.Fprintf(&b, "%d %v\n", m.Conn, m)
	}
	return b.String()
}

// Pause lets messages pass unseen until Resume: neither traced, counted nor chosen. It is for what a test does first,
// to prepare tables or to warm a pool's caches.
func (s *Script) Pause() { s.pause(true) }

// Resume ends Pause. Counting goes on where it was.
func (s *Script) Resume() { s.pause(false) }

func (s *Script) pause(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = on
}

// Release ends what lasts: stalled connections go on with what was held, sides of the server that KeepServer left
// open are closed, connections are no longer refused. A test that uses one of them defers it.
func (s *Script) Release() {
	s.mu.Lock()
	s.refusing = false
	close(s.releaseChan())
	s.release = nil
	stalled, kept := s.stalled, s.kept
	s.stalled, s.kept = nil, nil
	s.mu.Unlock()
	for c := range stalled {
		c.resume()
	}
	for _, raw := range kept {
		_ = raw.Close() // the client has gone: nobody is left to be told
	}
}

func (s *Script) releaseChan() chan struct{} {
	if s.release == nil {
		s.release = make(chan struct{})
	}
	return s.release
}

// observe counts and traces m. fire says that the script's action is to be taken; release is then closed by the next
// Release. live is false for connections that something was done to, and note says what became of their messages.
func (s *Script) observe(m Message, live bool, note string) (_ Message, release <-chan struct{}, fire bool) {
	s.mu.Lock()
	if s.paused {
		s.mu.Unlock()
		return m, nil, false
	}
	counted := !m.Outside || s.Outside
	if counted {
		s.counts[m.From]++
		m.N = s.counts[m.From]
	}
	s.mu.Unlock()

	chosen := live && counted && (s.From == Either || s.From == m.From) && (s.When == nil || s.When(m))

	s.mu.Lock()
	defer s.mu.Unlock()
	if chosen {
		s.matches++
		acts := s.Mode != Pass || s.Do != nil
		fire = acts && s.matches >= s.N && (s.hits == 0 || s.Repeat)
	}
	if fire {
		s.hits++
		s.refusing = s.refusing || s.Refuse
		if note = s.Mode.String(); s.Mode == Pass {
			note = "Do"
		}
	}
	s.record(m, note)
	return m, s.releaseChan(), fire
}

func (s *Script) record(m Message, note string) {
	m.note, m.conn = note, nil
	if m.Type == "Query" {
		m.SQL = mask(m.SQL)
	}
	if len(s.trace) == traceLimit {
		s.trace = append(s.trace[:0], s.trace[traceLimit/2:]...)
	}
	s.trace = append(s.trace, m)
}

// signal says that the action has been taken.
func (s *Script) signal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		s.done = true
		close(s.firedChan())
	}
}

// stall has Release call c.resume. It returns false when Release came first.
func (s *Script) stall(c *conn, release <-chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-release:
		return false
	default:
	}
	if s.stalled == nil {
		s.stalled = map[*conn]struct{}{}
	}
	s.stalled[c] = struct{}{}
	return true
}

func (s *Script) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stalled, c)
}

// keep has Release close raw, or closes it when Release came first.
func (s *Script) keep(raw net.Conn, release <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-release:
		_ = raw.Close()
	default:
		s.kept = append(s.kept, raw)
	}
}
