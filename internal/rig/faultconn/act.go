package faultconn

import (
	"io"
	"net"
	"syscall"
)

// An action is the script's answer to a message.
type action struct {
	fire    bool
	release <-chan struct{} // closed by the next Script.Release
}

// observe shows m to the script; to is what becomes of m unless the script acts.
func (c *conn) observe(m *Message, to flow) (a action) {
	if m.Type == "" {
		return a // unreadable
	}
	m.Conn, m.conn = c.id, c
	note := ""
	switch to {
	case holding:
		note = "held"
	case losing:
		note = "dropped"
	}
	*m, a.release, a.fire = c.script.observe(*m, c.whole(), note)
	return a
}

// whole reports whether nothing has been done to the connection, or nothing that lasts.
func (c *conn) whole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out == passing && c.in == passing && c.lost == nil && !c.closed
}

// begin runs the hook and makes the connection ready for the script's mode.
func (c *conn) begin(m Message, a action) Mode {
	s := c.script
	if s.Do != nil {
		s.Do(m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release = a.release
	c.keep = s.KeepServer && s.Mode != Pass
	return s.Mode
}

// actFront does to a message of the client what the script says, and returns what becomes of it.
func (c *conn) actFront(m Message, a action) (flow, error) {
	switch c.begin(m, a) {
	case DropReply:
		c.drainAfter(m)
		return passing, nil // the reply that is awaited signals
	case DropBefore:
		c.cut(io.EOF)
		c.script.signal()
		return losing, nil
	case Reset:
		c.cut(syscall.ECONNRESET)
		c.script.signal()
		return losing, c.opError("write", syscall.ECONNRESET)
	case Stall:
		to := passing
		if c.script.stall(c, a.release) {
			to = holding
		}
		c.mu.Lock()
		c.out = to
		c.mu.Unlock()
		c.script.signal()
		return to, nil
	}
	c.script.signal()
	return passing, nil
}

// arrive does to a message of the server what the script says.
func (c *conn) arrive(frame []byte, m Message, from flow) {
	if from == losing && asksForMore(m) {
		from = passing // or the server could never do what it was asked
	}
	a := c.observe(&m, from)
	switch {
	case from == losing:
		c.endIfAnswered(m)
		return
	case !a.fire:
		c.ready = frame
		return
	}
	switch c.begin(m, a) {
	case Pass:
		c.ready = frame
	case DropReply:
		c.drainFrom(m)
		c.endIfAnswered(m)
		return // endIfAnswered signals, now or later
	case DropBefore:
		c.cut(io.EOF)
	case Reset:
		c.cut(syscall.ECONNRESET)
	case Stall:
		c.heldIn = frame
		c.mu.Lock()
		c.in = holding
		c.mu.Unlock()
	}
	c.script.signal()
}

// drainAfter loses the replies from now on, up to the ReadyForQuery that ends the one to m.
func (c *conn) drainAfter(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = losing
	switch m.Type {
	case "Query", "Sync", "FunctionCall", "StartupMessage":
		c.until = c.session.requests // m is counted already
	case "CopyData", "CopyDone", "CopyFail":
		c.until = c.session.answers + 1 // what began the copy is counted already
	default:
		c.until = c.session.requests + 1 // the Sync is to come
	}
}

// drainFrom loses m and the replies after it, up to ReadyForQuery.
func (c *conn) drainFrom(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = losing
	c.until = c.session.answers + 1
	if m.Type == "ReadyForQuery" {
		c.until = c.session.answers // m is counted already
	}
}

// asksForMore reports whether the server now waits for the client: for rows to copy, for a password.
func asksForMore(m Message) bool {
	return m.Type == "CopyInResponse" || m.Type == "CopyBothResponse" || m.Type == "Authentication"
}

// endIfAnswered ends a connection whose replies are lost, when m, a lost one, is the last that can be waited for.
func (c *conn) endIfAnswered(m Message) {
	c.mu.Lock()
	answered := c.session.answers >= c.until
	c.mu.Unlock()
	if answered || asksForMore(m) || m.Type == "" {
		c.cut(io.EOF)
		c.script.signal()
	}
}

// cut ends the connection for the client with err, and for the server with an RST or the end of the stream, or not yet.
func (c *conn) cut(err error) {
	c.mu.Lock()
	c.end(err)
	if c.closed { // by the hook: raw is taken care of
		c.mu.Unlock()
		return
	}
	keep, release := c.keep, c.release
	c.given = keep || err != io.EOF // then raw is not for Close to close
	c.mu.Unlock()
	switch {
	case err != io.EOF:
		reset(c.raw)
	case keep:
		c.script.keep(c.raw, release)
	default:
		hangUp(c.raw)
	}
}

// end has the client find the connection lost, a Read that waits for the server included. mu is held.
func (c *conn) end(err error) {
	if c.lost != nil {
		return
	}
	c.lost, c.out = err, losing
	close(c.broken)
	_ = c.raw.SetReadDeadline(past)
}

// resume ends a stall: what the client wrote goes to the server.
func (c *conn) resume() {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.mu.Lock()
	held := c.out == holding && !c.closed
	if held {
		c.out = passing
	}
	c.mu.Unlock()
	if held {
		_, _ = c.raw.Write(c.heldOut) // the client's next Read learns of an error
	}
	c.heldOut = nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	close(c.done)
	given, keep, release, draining := c.given, c.keep, c.release, c.in == losing && c.lost == nil
	if keep && !given {
		c.given = true
		_ = c.raw.SetDeadline(past) // interrupts the client's other goroutines
	}
	c.mu.Unlock()

	c.script.forget(c)
	if draining {
		c.script.signal()
	}
	switch {
	case given:
		return nil
	case keep:
		c.script.keep(c.raw, release)
		return nil
	}
	return c.raw.Close()
}
