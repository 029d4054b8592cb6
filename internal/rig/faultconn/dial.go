package faultconn

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Attach has the script watch every connection made from cfg, cancel requests among them. For a pool, cfg is
// &poolConfig.ConnConfig.Config. With TLS the messages inside it are seen. Several scripts may be attached, one after
// the other; the last one is nearest to the client.
func (s *Script) Attach(cfg *pgconn.Config) {
	dial := cfg.DialFunc
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	// Both hooks, because pgx takes cancel requests past AfterNetConnect, and only AfterNetConnect gets to see inside TLS.
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.dial(ctx, network, address, dial)
	}
	after := cfg.AfterNetConnect
	cfg.AfterNetConnect = func(ctx context.Context, cfg *pgconn.Config, nc net.Conn) (net.Conn, error) {
		if after != nil {
			inner, err := after(ctx, cfg, nc)
			if err != nil {
				return inner, err
			}
			nc = inner
		}
		if s.reads(nc) {
			return nc, nil
		}
		return s.Wrap(nc), nil
	}
}

// Wrap returns a connection that passes everything on to raw, as the script says. raw must be new: nothing sent,
// nothing received. Closing the result closes raw.
func (s *Script) Wrap(raw net.Conn) net.Conn {
	s.mu.Lock()
	s.conns++
	c := &conn{script: s, id: s.conns, raw: raw, broken: make(chan struct{}), done: make(chan struct{})}
	refused := s.refusing
	s.mu.Unlock()
	if refused {
		c.cut(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	return c
}

// Dial, with DialTimeout and DialContext, makes a Script a dialer of lib/pq. Only connections without TLS can be read
// that way; encrypted ones pass through unseen.
func (s *Script) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), network, address)
}

// DialTimeout is Dial with a time limit.
func (s *Script) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.DialContext(ctx, network, address)
}

// DialContext is Dial with a context.
func (s *Script) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return s.dial(ctx, network, address, (&net.Dialer{}).DialContext)
}

func (s *Script) dial(ctx context.Context, network, address string, dial pgconn.DialFunc) (net.Conn, error) {
	s.mu.Lock()
	refusing := s.refusing
	s.mu.Unlock()
	if refusing {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return s.Wrap(raw), nil
}

// inside returns the connection that nc wraps, or nil.
func inside(nc net.Conn) net.Conn {
	if w, ok := nc.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// reads reports whether s already sees the messages on nc.
func (s *Script) reads(nc net.Conn) bool {
	for ; nc != nil; nc = inside(nc) {
		if c, ok := nc.(*conn); ok && c.script == s && !c.unreadable() {
			return true
		}
	}
	return false
}

// reset closes nc so that the peer gets an RST.
func reset(nc net.Conn) {
	for under := nc; under != nil; under = inside(under) {
		if tcp, ok := under.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close() // first, as tls.Conn would say goodbye
		}
	}
	_ = nc.Close()
}

// hangUp ends the stream to the server. The other direction stays open, where that can be, until the client closes:
// an RST because of unread replies could overtake what was sent.
func hangUp(nc net.Conn) {
	if _, encrypted := nc.(*tls.Conn); !encrypted {
		if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			return
		}
	}
	_ = nc.Close()
}
