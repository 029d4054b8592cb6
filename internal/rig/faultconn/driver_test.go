package faultconn_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"io"
	"math/big"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// types returns the types of the traced messages of one side.
func types(s *faultconn.Script, from faultconn.Side) (names []string) {
	for _, m := range s.Trace() {
		if m.From == from {
			names = append(names, m.Type)
		}
	}
	return names
}

func TestCancelRequestIsSeenAndPasses(t *testing.T) {
	t.Parallel()
	isCancel := func(m faultconn.Message) bool { return m.Type == "CancelRequest" }
	s := &faultconn.Script{Outside: true, When: isCancel}
	b := newBench(t, s)
	conn, err := b.pool.Acquire(b.ctx())
	require.NoError(t, err)
	defer conn.Release()
	result := make(chan error, 1)
	go func() {
		_, err := conn.Exec(b.ctx(), "SELECT pg_sleep(60)")
		result <- err
	}()
	b.eventually("the statement runs", func() bool { return len(b.sessions()) == 1 && b.sessions()[0] == "active" })
	require.NoError(t, conn.Conn().PgConn().CancelRequest(b.ctx()))
	require.ErrorContains(t, await(t, result), "57014")
	require.Equal(t, 1, s.Matches())
}

// With Outside the messages of the startup phase can be cut.
func TestStartup(t *testing.T) {
	t.Parallel()
	counted := newBench(t, &faultconn.Script{Outside: true})
	require.NoError(t, counted.pool.Ping(counted.ctx()))
	require.Equal(t, "StartupMessage", counted.script.Trace()[0].Type)
	for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Reset} {
		for _, from := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
			b := counted.attach(t, &faultconn.Script{Outside: true, From: from, Mode: mode})
			b.broken(b.pool.Ping(b.ctx()))
			require.NoError(t, b.pool.Ping(b.ctx()))
		}
	}
}

// Two scripts on the same connections: each sees all messages and does its own thing.
func TestTwoScripts(t *testing.T) {
	t.Parallel()
	second := &faultconn.Script{When: faultconn.Statement, N: 1, Mode: faultconn.Reset}
	first := &faultconn.Script{When: faultconn.CommitReply, Mode: faultconn.DropReply}
	second.Pause()
	b := newBench(t, second, func(cfg *pgxpool.Config) { first.Attach(&cfg.ConnConfig.Config) })
	require.Error(t, insert(b.ctx(), b.pool, 1))
	require.Equal(t, 1, first.Hits())
	require.Equal(t, 1, b.rows())
	second.Resume()
	require.Error(t, insert(b.ctx(), b.pool, 2))
	require.Equal(t, 1, second.Hits())
	b.noSessions()
	require.NoError(t, insert(b.ctx(), b.pool, 2))
}

func TestLibPQ(t *testing.T) {
	t.Parallel()
	shared := newBench(t, &faultconn.Script{})
	for drop, want := range map[faultconn.Mode]int{faultconn.DropBefore: 0, faultconn.DropReply: 1} {
		s := &faultconn.Script{When: faultconn.Commit, Mode: drop}
		b := shared.attach(t, &faultconn.Script{})
		connector, err := pq.NewConnector(b.plain.ConnString())
		require.NoError(t, err)
		connector.Dialer(s)
		db := sql.OpenDB(connector)
		defer db.Close()
		tx, err := db.BeginTx(b.ctx(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(b.ctx(), "INSERT INTO t (id, note) VALUES ($1, $2)", 1, "secret")
		require.NoError(t, err)
		require.Error(t, tx.Commit())
		require.Equal(t, 1, s.Hits(), "%v", s)
		b.noSessions()
		require.Equal(t, want, b.rows())
		require.NotContains(t, s.String(), "secret")
	}
}

// Behind TLS the script sees the messages inside.
func TestTLS(t *testing.T) {
	t.Parallel()
	plain := newBench(t, &faultconn.Script{})
	server := plain.plain.ConnConfig
	proxy := tlsProxy(t, net.JoinHostPort(server.Host, strconv.Itoa(int(server.Port))))
	for _, mode := range []faultconn.Mode{faultconn.DropBefore, faultconn.DropReply, faultconn.Reset} {
		s, other := &faultconn.Script{When: faultconn.Commit, Mode: mode}, &faultconn.Script{}
		b := plain.attach(t, s, func(cfg *pgxpool.Config) {
			other.Attach(&cfg.ConnConfig.Config)
			host, port, err := net.SplitHostPort(proxy)
			require.NoError(t, err)
			n, err := strconv.ParseUint(port, 10, 16)
			require.NoError(t, err)
			cfg.ConnConfig.Host, cfg.ConnConfig.Port = host, uint16(n)
			cfg.ConnConfig.TLSConfig = &tls.Config{InsecureSkipVerify: true}
			cfg.ConnConfig.Fallbacks = nil
		})
		b.broken(insert(b.ctx(), b.pool, 1))
		b.noSessions()
		want := 0
		if mode == faultconn.DropReply {
			want = 1
		}
		require.Equal(t, want, b.rows())
		require.Contains(t, types(s, faultconn.Frontend), "SSLRequest")
		require.Contains(t, types(s, faultconn.Backend), "EncryptionAccepted")
		require.Contains(t, b.trace(), "F Query begin")
		require.Contains(t, other.String(), "F Query begin")
		require.NoError(t, insert(b.ctx(), b.pool, 2))
		b.pool.Close()
	}
}

// tlsProxy speaks TLS to clients, as a server with ssl = on does, and passes what is inside on to address.
func tlsProxy(t *testing.T, address string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	serve := func(nc net.Conn) {
		defer nc.Close()
		if _, err := io.ReadFull(nc, make([]byte, 8)); err != nil { // SSLRequest
			return
		}
		if _, err := nc.Write([]byte("S")); err != nil {
			return
		}
		client := tls.Server(nc, config)
		server, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		go func() {
			defer server.Close()
			io.Copy(server, client)
		}()
		io.Copy(client, server)
	}
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go serve(nc)
		}
	}()
	return l.Addr().String()
}

func TestDialTimeout(t *testing.T) {
	t.Parallel()
	s := &faultconn.Script{}
	_, err := s.DialTimeout("tcp", "127.0.0.1:1", time.Nanosecond)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = s.DialContext(ctx, "tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, context.Canceled)
}
