package faultconn

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

const soon = 10 * time.Second

// ends returns a wrapped connection whose session has begun, and the server's end of it.
func ends(t *testing.T, s *Script) (client *conn, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	nc, err := s.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); server.Close(); s.Release() })
	require.NoError(t, server.SetDeadline(time.Now().Add(soon)))
	client = nc.(*conn)
	client.session.phase = open
	return client, server
}

func query(t *testing.T, sql string) []byte { return encode(t, &pgproto3.Query{String: sql}) }

func isQuery(sql string) func(Message) bool { return func(m Message) bool { return m.SQL == sql } }

// in returns a channel that gets what f returns.
func in(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func get(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(soon):
		require.FailNow(t, "blocked")
		return nil
	}
}

// A failed Write says how much was sent: pgx takes nothing for safe to retry.
func TestWriteCountsWhatWasSent(t *testing.T) {
	t.Parallel()
	a, b := query(t, "a"), query(t, "b")
	for _, test := range []struct {
		name   string
		writes [][]byte
		n      int // of the last
	}{
		{"the first message", [][]byte{b}, 0},
		{"the second", [][]byte{append(a[:len(a):len(a)], b...)}, len(a)},
		{"one begun before", [][]byte{b[:3], b[3:]}, 0},
		{"after the end of one begun before", [][]byte{a[:3], append(a[3:len(a):len(a)], b...)}, len(a) - 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, _ := ends(t, &Script{When: isQuery("b"), Mode: Reset})
			for i, p := range test.writes {
				n, err := client.Write(p)
				if i < len(test.writes)-1 {
					require.NoError(t, err)
					require.Equal(t, len(p), n)
					continue
				}
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.Equal(t, test.n, n)
			}
			_, err := client.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// What the server has said and the client has not read must not turn the end of the stream into an RST, which can
// overtake the messages before it.
func TestEndOfStreamDespiteUnreadReplies(t *testing.T) {
	t.Parallel()
	client, server := ends(t, &Script{When: isQuery("b"), Mode: DropBefore})
	_, err := server.Write(encode(t, &pgproto3.NoticeResponse{Code: "00000"}))
	require.NoError(t, err)
	a := query(t, "a")
	_, err = client.Write(append(a[:len(a):len(a)], query(t, "b")...))
	require.NoError(t, err)
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, a, got)
}

func TestWriteInPieces(t *testing.T) {
	t.Parallel()
	client, server := ends(t, &Script{})
	stream := append(query(t, "a"), query(t, "b")...)
	for i := range stream {
		n, err := client.Write(stream[i : i+1])
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	got := make([]byte, len(stream))
	_, err := io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, stream, got)
}

// Read returns one message at a time, whatever the server's chunks and the client's buffer are.
func TestReadOneMessageAtATime(t *testing.T) {
	t.Parallel()
	client, server := ends(t, &Script{From: Backend, N: 2, Mode: DropBefore})
	complete, ready := encode(t, &pgproto3.CommandComplete{CommandTag: []byte("A")}),
		encode(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	_, err := server.Write(append(complete, ready...))
	require.NoError(t, err)
	var got []byte
	buf := make([]byte, 4)
	for len(got) < len(complete) {
		require.Zero(t, client.script.Hits(), "before the client has read the message before")
		n, err := client.Read(buf)
		require.NoError(t, err)
		got = append(got, buf[:n]...)
	}
	require.Equal(t, complete, got)
	_, err = client.Read(buf)
	require.Equal(t, io.EOF, err)
	require.Equal(t, 1, client.script.Hits())
	_, err = server.Read(buf)
	require.Equal(t, io.EOF, err)
	_, err = client.Write(query(t, "a"))
	require.ErrorIs(t, err, syscall.EPIPE)
}

// A Read that waits for the server is ended by what happens to the connection meanwhile.
func TestReadIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		script *Script
		act    func(client *conn) error
		want   error
	}{
		{"cut, server kept", &Script{Mode: DropBefore, KeepServer: true}, write("a"), io.EOF},
		{"reset", &Script{Mode: Reset}, write("a"), syscall.ECONNRESET},
		{"close", &Script{}, (*conn).Close, net.ErrClosed},
		{"close after a stall, server kept", &Script{Mode: Stall, KeepServer: true}, func(client *conn) error {
			_ = write("a")(client)
			return client.Close()
		}, net.ErrClosed},
		{"goodbye after a stall", &Script{Mode: Stall}, func(client *conn) error {
			_ = write("a")(client)
			_, err := client.Write([]byte{'X', 0, 0, 0, 4})
			return err
		}, io.EOF},
		{"deadline", &Script{}, func(client *conn) error { return client.SetDeadline(past) }, os.ErrDeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client, _ := ends(t, test.script)
			reading := make(chan struct{})
			done := in(func() error {
				close(reading)
				_, err := client.Read(make([]byte, 1))
				return err
			})
			<-reading
			_ = test.act(client)
			require.ErrorIs(t, get(t, done), test.want)
		})
	}
}

func write(sql string) func(*conn) error {
	return func(client *conn) error {
		stream, err := (&pgproto3.Query{String: sql}).Encode(nil)
		if err == nil {
			_, err = client.Write(stream)
		}
		return err
	}
}

func TestStalledReadHonoursDeadlines(t *testing.T) {
	t.Parallel()
	client, server := ends(t, &Script{From: Backend, Mode: Stall})
	ready := encode(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	_, err := server.Write(ready)
	require.NoError(t, err)
	read := func() error {
		_, err := client.Read(make([]byte, 1))
		return err
	}

	require.NoError(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	err = get(t, in(read))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var netErr net.Error
	require.ErrorAs(t, err, &netErr)
	require.True(t, netErr.Timeout())
	require.ErrorIs(t, read(), os.ErrDeadlineExceeded, "it is still over")

	require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Hour)))
	done := in(read)
	require.NoError(t, client.SetReadDeadline(past))
	require.ErrorIs(t, get(t, done), os.ErrDeadlineExceeded, "a nearer one, set during the Read")

	require.NoError(t, client.SetReadDeadline(time.Time{}))
	done = in(read)
	client.script.Release()
	require.NoError(t, get(t, done), "the connection lives")

	for want, end := range map[error]func() error{
		net.ErrClosed: func() error { return client.Close() },
		io.EOF: func() error {
			_, err := client.Write(encode(t, &pgproto3.Terminate{}))
			return err
		},
	} {
		client, server = ends(t, &Script{From: Backend, Mode: Stall})
		_, err = server.Write(ready)
		require.NoError(t, err)
		done = in(read)
		<-client.script.Fired()
		require.NoError(t, end())
		require.ErrorIs(t, get(t, done), want)
	}
}

// What the client writes during a stall arrives in order after it, or not at all once the client has gone.
func TestHeldMessages(t *testing.T) {
	t.Parallel()
	s := &Script{When: isQuery("b"), Mode: Stall}
	client, server := ends(t, s)
	a, b, c := query(t, "a"), query(t, "b"), query(t, "c")
	n, err := client.Write(append(append(a[:len(a):len(a)], b...), c[:2]...))
	require.NoError(t, err)
	require.Equal(t, len(a)+len(b)+2, n)
	got := make([]byte, 100)
	n, err = server.Read(got)
	require.NoError(t, err)
	require.Equal(t, a, got[:n])
	_, err = client.Write(c[2:])
	require.NoError(t, err)
	require.Contains(t, s.String(), "F Query b [Stall]\n1 F Query c [held]\n")
	s.Release()
	got = got[:len(b)+len(c)]
	_, err = io.ReadFull(server, got)
	require.NoError(t, err)
	require.Equal(t, append(b, c...), got)

	s = &Script{Mode: Stall}
	client, server = ends(t, s)
	require.NoError(t, write("a")(client))
	require.NoError(t, client.Close())
	require.Empty(t, s.stalled, "a long run must not collect connections")
	s.Release()
	_, err = server.Read(got)
	require.Equal(t, io.EOF, err)
}

// Release in the middle of what begins a stall: there is none.
func TestReleaseFromTheHook(t *testing.T) {
	t.Parallel()
	s := &Script{Mode: Stall}
	s.Do = func(Message) { s.Release() }
	client, server := ends(t, s)
	require.NoError(t, write("a")(client))
	_, err := io.ReadFull(server, make([]byte, len(query(t, "a"))))
	require.NoError(t, err)
	require.Equal(t, 1, s.Hits())
}

// With Repeat, too, nothing more is done to a connection that is broken, nor are its messages chosen.
func TestOneFaultAConnection(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{DropBefore, DropReply, Stall} {
		s := &Script{Mode: mode, Repeat: true}
		client, _ := ends(t, s)
		a := query(t, "a")
		_, err := client.Write(append(a[:len(a):len(a)], a...))
		require.NoError(t, err)
		require.Equal(t, 1, s.Hits(), "%v", mode)
		require.Equal(t, 1, s.Matches(), "%v", mode)
		require.Equal(t, 2, s.Count(Frontend), "%v", mode)
	}
}

func TestCloseTwice(t *testing.T) {
	t.Parallel()
	client, server := ends(t, &Script{})
	require.NoError(t, client.Close())
	require.ErrorIs(t, client.Close(), net.ErrClosed)
	_, err := client.Write(query(t, "a"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = server.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

func TestWrapRefuses(t *testing.T) {
	t.Parallel()
	s := &Script{When: isQuery("a"), Mode: DropBefore, Refuse: true}
	client, _ := ends(t, s)
	require.NoError(t, write("a")(client))
	a, b := net.Pipe()
	defer b.Close()
	_, err := s.Wrap(a).Write(query(t, "b"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = s.Dial("tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	s.Release()
	a, b = net.Pipe()
	defer b.Close()
	require.NoError(t, s.Wrap(a).SetDeadline(time.Time{}))
}

func TestTraceIsBounded(t *testing.T) {
	t.Parallel()
	s := &Script{}
	for range 3*traceLimit + 7 {
		s.observe(Message{From: Backend, Type: "DataRow"}, true, "")
	}
	trace := s.Trace()
	require.LessOrEqual(t, len(trace), traceLimit)
	require.Greater(t, len(trace), traceLimit/4)
	require.Equal(t, 3*traceLimit+7, trace[len(trace)-1].N)
}

func TestAwaitDeadlineWithoutConnection(t *testing.T) {
	require.False(t, Message{}.AwaitDeadline(), "a message of a trace")
}
