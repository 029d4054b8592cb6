package faultconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A flow is what becomes of the messages of one direction.
type flow uint8

const (
	passing flow = iota
	holding      // kept for Release
	losing       // read and thrown away
)

// A conn is the client's side of a wrapped connection. Everything happens inside the client's own Reads and Writes;
// there are no goroutines. Write takes writeMu and Read takes readMu for their whole length, hooks included. mu is
// never held while something can block, so that deadlines and Close work at any time. Locks are taken in the order
// readMu or writeMu, mu, Script.mu.
type conn struct {
	script   *Script
	id       int
	raw      net.Conn
	deadline deadline // of Reads

	writeMu sync.Mutex
	heldOut []byte // stalled messages of the client

	readMu sync.Mutex
	ready  []byte // rest of the message that the client is reading
	heldIn []byte // stalled message of the server
	buf    [8192]byte

	mu      sync.Mutex
	session session
	out, in flow
	until   int             // in is losing: the number of answers after which the connection ends
	keep    bool            // the server's side outlives the client's
	given   bool            // raw was closed, or belongs to the script because of KeepServer
	release <-chan struct{} // ends the stall or KeepServer
	lost    error           // what Read returns since the connection ended
	closed  bool
	broken  chan struct{} // closed with lost
	done    chan struct{} // closed by Close
}

// Write implements net.Conn. A message that is not whole is kept for the next Write.
func (c *conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	carried, err := c.feedFront(p)
	if err != nil {
		return 0, err
	}
	var out []byte
	sent := 0
	flush := func() error {
		if len(out) == 0 {
			return nil
		}
		n, err := c.raw.Write(out)
		sent, out = sent+n, nil
		return err
	}
	// How much of p was sent matters: pgx takes a failed Write of nothing for safe to retry.
	failed := func(err error) (int, error) { return min(max(sent-carried, 0), len(p)), err }

	for {
		frame, m, to, ok := c.nextFront()
		if !ok {
			break
		}
		a := c.observe(&m, to)
		if a.fire {
			if err := flush(); err != nil {
				return failed(err)
			}
			if to, err = c.actFront(m, a); err != nil {
				return failed(err)
			}
		}
		switch to {
		case passing:
			out = append(out, frame...)
		case holding:
			c.heldOut = append(c.heldOut, frame...)
		}
	}
	if err := flush(); err != nil {
		return failed(err)
	}
	return len(p), nil
}

// feedFront takes what the client writes, and returns how much was kept from the Write before.
func (c *conn) feedFront(p []byte) (carried int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.opError("write", net.ErrClosed)
	case c.lost != nil && c.lost != io.EOF:
		return 0, c.opError("write", c.lost)
	case c.lost != nil:
		return 0, c.opError("write", os.NewSyscallError("write", syscall.EPIPE))
	}
	carried = len(c.session.front.buf)
	c.session.front.feed(p)
	return carried, nil
}

// nextFront returns the client's next message and what is to become of it unless the script acts.
func (c *conn) nextFront() (frame []byte, m Message, to flow, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	frame, m, ok = c.session.nextFront()
	to = c.out
	if m.Type == "Terminate" {
		if c.keep {
			to = losing // the server is not to notice
		}
		if c.out == holding || c.in == holding {
			// Nobody wants to wait the 15 seconds that pgx gives the server to answer a goodbye.
			c.end(io.EOF)
		}
	}
	return frame, m, to, ok
}

// Read implements net.Conn. It returns at most one message at a time, so that the client has dealt with all before it
// when something happens to the next.
func (c *conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for {
		if c.deadline.expired() {
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		}
		if len(c.ready) > 0 {
			n := copy(p, c.ready)
			c.ready = c.ready[n:]
			return n, nil
		}
		frame, m, from, err := c.nextBack()
		switch {
		case err != nil:
			return 0, err
		case from == holding:
			err = c.await()
		case frame == nil:
			err = c.fill()
		default:
			c.arrive(frame, m, from)
		}
		if err != nil {
			return 0, err
		}
	}
}

// nextBack returns the server's next message, or nil when more has to be read, and what becomes of messages now.
func (c *conn) nextBack() (frame []byte, m Message, from flow, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, m, 0, c.opError("read", net.ErrClosed)
	case c.lost == io.EOF:
		return nil, m, 0, io.EOF
	case c.lost != nil:
		return nil, m, 0, c.opError("read", c.lost)
	case c.in == holding:
		return nil, m, holding, nil
	}
	frame, m, _ = c.session.nextBack()
	return frame, m, c.in, nil
}

// fill reads from the server.
func (c *conn) fill() error {
	n, err := c.raw.Read(c.buf[:])
	c.mu.Lock()
	c.session.back.feed(c.buf[:n])
	lost, draining := c.lost != nil || c.closed, c.in == losing
	c.mu.Unlock()
	if n > 0 || lost { // the loop in Read has the right error for a connection that was lost meanwhile
		return nil
	}
	if draining && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.cut(io.EOF)
		c.script.signal()
		return nil
	}
	return err
}

// await waits until the stalled message may go on.
func (c *conn) await() error {
	c.mu.Lock()
	release := c.release
	c.mu.Unlock()
	for {
		at, changed := c.deadline.get()
		var timer <-chan time.Time
		if !at.IsZero() {
			left := time.Until(at)
			if left <= 0 {
				return c.opError("read", os.ErrDeadlineExceeded)
			}
			timer = time.After(left)
		}
		select {
		case <-release:
			c.mu.Lock()
			c.in = passing
			c.mu.Unlock()
			c.ready, c.heldIn = c.heldIn, nil
			return nil
		case <-c.broken:
			return nil
		case <-c.done:
			return nil
		case <-changed:
		case <-timer:
		}
	}
}

// NetConn returns the wrapped connection, as the method of tls.Conn does.
func (c *conn) NetConn() net.Conn { return c.raw }

// CloseWrite ends the stream to the server, where the wrapped connection can do that, or closes it.
func (c *conn) CloseWrite() error {
	hangUp(c.raw)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.raw.LocalAddr() }

// RemoteAddr implements net.Conn. pgx sends cancel requests there.
func (c *conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline.set(t)
	if c.lost != nil || c.given {
		return nil // raw has a deadline of its own, see end
	}
	return c.raw.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil || c.given {
		return nil
	}
	return c.raw.SetWriteDeadline(t)
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: c.raw.RemoteAddr().Network(), Addr: c.raw.RemoteAddr(), Err: err}
}

func (c *conn) unreadable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.phase == unreadable
}
