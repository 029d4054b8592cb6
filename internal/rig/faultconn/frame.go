package faultconn

import "encoding/binary"

// A shape says how the next piece of a stream is delimited.
type shape uint8

const (
	typed    shape = iota // one byte of type, four of length
	untyped               // four bytes of length: what a client sends before its session begins
	single                // one byte: the answer to a request for encryption
	freeform              // not to be read: encrypted, or not this protocol
)

const (
	headerLen  = 5
	maxStartup = 10000   // the server's own limit for untyped messages
	maxMessage = 1 << 30 // the server's own limit for typed ones
)

// A framer cuts a byte stream, fed in pieces of any size, into messages.
type framer struct {
	buf []byte
}

func (f *framer) feed(p []byte) { f.buf = append(f.buf, p...) }

// next returns the next whole message with its header, or nil where more bytes are needed. valid is false when the
// stream cannot be cut: the length is impossible. Whether it is never depends on how the bytes were fed.
func (f *framer) next(s shape) (frame []byte, valid bool) {
	switch s {
	case single:
		return f.take(1), true
	case freeform:
		return f.take(len(f.buf)), true
	case untyped:
		if len(f.buf) < 4 {
			return nil, true
		}
		n := binary.BigEndian.Uint32(f.buf)
		if n < 8 || n > maxStartup {
			return nil, false
		}
		return f.take(int(n)), true
	default:
		if len(f.buf) < headerLen {
			return nil, true
		}
		n := binary.BigEndian.Uint32(f.buf[1:])
		if n < 4 || n > maxMessage {
			return nil, false
		}
		return f.take(1 + int(n)), true
	}
}

// take removes n bytes, or returns nil when fewer are there.
func (f *framer) take(n int) []byte {
	if n == 0 || len(f.buf) < n {
		return nil
	}
	// A copy, because feed may reuse the memory while the message waits to be delivered.
	frame := append([]byte(nil), f.buf[:n]...)
	f.buf = f.buf[:copy(f.buf, f.buf[n:])]
	return frame
}
