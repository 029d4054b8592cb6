package main

import (
	"context"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// startLink starts a proxy before the server, over which a round trip takes that much longer. What it returns
// makes a configuration use it. The program sees the link that an application in another room sees; the server's
// own work is as before.
func startLink(server *pgx.ConnConfig, trip time.Duration) (use func(*pgx.ConnConfig), stop func(), err error) {
	network, address := pgconn.NetworkAddress(server.Host, server.Port)
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	go func() {
		for {
			near, err := door.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial(network, address)
			if err != nil {
				near.Close()
				continue
			}
			go carry(near, far, trip/2)
			go carry(far, near, trip/2)
		}
	}()
	use = func(c *pgx.ConnConfig) {
		c.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", door.Addr().String())
		}
	}
	var once sync.Once
	return use, func() { once.Do(func() { door.Close() }) }, nil
}

// carry hands on what it reads, later by the delay, and in the same pieces.
func carry(to, from net.Conn, delay time.Duration) {
	type piece struct {
		due   time.Time
		bytes []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				pieces <- piece{time.Now().Add(delay), slices.Clone(buf[:n])}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range pieces {
		// Not time.Sleep: in a program that has nothing else to do it takes a millisecond at the least.
		for time.Now().Before(p.due) {
			runtime.Gosched()
		}
		if !broken {
			_, err := to.Write(p.bytes)
			broken = err != nil
		}
	}
	to.Close()
}

func medianTrip(ctx context.Context, db *pgxpool.Pool) (time.Duration, error) {
	var took []time.Duration
	for range 101 {
		begun := time.Now()
		if _, err := db.Exec(ctx, `SELECT 1`); err != nil {
			return 0, err
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
