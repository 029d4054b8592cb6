package faultconn

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// A read is a stream fed in pieces and what came of it.
type read struct {
	lines []string
	out   []byte
	phase phase
}

// readAll feeds stream to a new session, cut into pieces whose lengths next gives.
func readAll(from Side, begin phase, stream []byte, next func() int) read {
	s := session{phase: begin}
	r := read{}
	for len(stream) > 0 {
		n := min(max(next(), 1), len(stream))
		f, step := &s.front, s.nextFront
		if from == Backend {
			f, step = &s.back, s.nextBack
		}
		f.feed(stream[:n])
		stream = stream[n:]
		for {
			frame, m, ok := step()
			if !ok {
				break
			}
			r.out = append(r.out, frame...)
			if m.Type != "" {
				r.lines = append(r.lines, m.String())
			}
		}
	}
	r.out = append(r.out, s.front.buf...)
	r.out = append(r.out, s.back.buf...)
	r.phase = s.phase
	return r
}

// FuzzChunks: however a stream is cut into Writes or Reads, the same messages are seen and all bytes come out.
func FuzzChunks(f *testing.F) {
	for _, stream := range [][]byte{
		clientStream(f), serverStream(f),
		{0x16, 3, 1, 0, 5, 'h', 'e', 'l', 'l', 'o'},
		{'Q', 0, 0, 0, 3, 1},
	} {
		f.Add(stream, uint8(opening), false, uint64(1))
		f.Add(stream, uint8(open), true, uint64(2))
		f.Add(stream, uint8(open), false, uint64(3))
		f.Add(stream, uint8(negotiating), true, uint64(4))
	}
	f.Fuzz(func(t *testing.T, stream []byte, begin uint8, backend bool, seed uint64) {
		from := Frontend
		if backend {
			from = Backend
		}
		begin %= uint8(unreadable) + 1
		random := rand.New(rand.NewPCG(seed, seed))
		whole := readAll(from, phase(begin), stream, func() int { return len(stream) })
		require.Equal(t, whole, readAll(from, phase(begin), stream, func() int { return 1 }))
		require.Equal(t, whole, readAll(from, phase(begin), stream, func() int { return random.IntN(9) }))
		require.True(t, bytes.Equal(stream, whole.out))
	})
}

func clientStream(tb testing.TB) []byte {
	return encode(tb, &pgproto3.SSLRequest{}, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30},
		&pgproto3.PasswordMessage{Password: "secret"},
		&pgproto3.Query{String: "BEGIN; SELECT 'secret'"},
		&pgproto3.Parse{Name: "s", Query: "commit"}, &pgproto3.Describe{ObjectType: 'S', Name: "s"}, &pgproto3.Sync{},
		&pgproto3.Bind{DestinationPortal: "p", PreparedStatement: "s", Parameters: [][]byte{[]byte("secret")}},
		&pgproto3.Describe{ObjectType: 'P', Name: "p"}, &pgproto3.Execute{Portal: "p"},
		&pgproto3.Close{ObjectType: 'S', Name: "s"}, &pgproto3.Bind{PreparedStatement: "s"}, &pgproto3.Execute{},
		&pgproto3.CopyData{Data: []byte("secret")}, &pgproto3.Terminate{})
}

func serverStream(tb testing.TB) []byte {
	return encode(tb, &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}},
		&pgproto3.AuthenticationOk{},
		&pgproto3.BackendKeyData{ProcessID: 42, SecretKey: []byte("key!")}, &pgproto3.ReadyForQuery{TxStatus: 'I'},
		&pgproto3.DataRow{Values: [][]byte{[]byte("secret")}}, &pgproto3.CommandComplete{CommandTag: []byte("COMMIT")},
		&pgproto3.ErrorResponse{Severity: "ERROR", Code: "23505", Message: "secret"},
		&pgproto3.NoticeResponse{Code: "00000"}, &pgproto3.ReadyForQuery{TxStatus: 'E'})
}

func encode(tb testing.TB, messages ...interface{ Encode([]byte) ([]byte, error) }) (stream []byte) {
	tb.Helper()
	for _, m := range messages {
		var err error
		stream, err = m.Encode(stream)
		require.NoError(tb, err)
	}
	return stream
}

func TestClientMessages(t *testing.T) {
	r := readAll(Frontend, opening, clientStream(t), func() int { return 7 })
	// In the startup phase a real client sends no Query; only ReadyForQuery would end it.
	require.Equal(t, strings.Split(strings.TrimSpace(`
F SSLRequest
F StartupMessage
F PasswordMessage
F Query BEGIN; SELECT ?
F Parse commit
F Describe s
F Sync
F Bind s
F Describe
F Execute commit
F Close s
F Bind s
F Execute
F CopyData
F Terminate`), "\n"), r.lines)
}

func TestServerMessages(t *testing.T) {
	r := readAll(Backend, starting, serverStream(t), func() int { return 7 })
	require.Equal(t, strings.Split(strings.TrimSpace(`
B Authentication
B AuthenticationOk
B BackendKeyData
B ReadyForQuery I
B DataRow
B CommandComplete COMMIT
B ErrorResponse 23505
B NoticeResponse 00000
B ReadyForQuery E`), "\n"), r.lines)
}

func TestEncryption(t *testing.T) {
	for _, test := range []struct {
		answer string
		lines  []string
		phase  phase
	}{
		{"N", []string{"B EncryptionRefused"}, opening},
		{"Sxxxxxxxxx", []string{"B EncryptionAccepted"}, unreadable},
		{"Gxxxxxxxxx", []string{"B EncryptionAccepted"}, unreadable},
		{"E\x00\x00\x00\x0bC0A000\x00", []string{"B ErrorResponse 0A000"}, negotiating},
	} {
		r := readAll(Backend, negotiating, []byte(test.answer), func() int { return 1 })
		require.Equal(t, read{test.lines, []byte(test.answer), test.phase}, r)
	}
}

func TestUnreadableStreamsPass(t *testing.T) {
	for _, stream := range []string{
		"\x16\x03\x01\x02\x00\x01\x00", "GET / HTTP/1.1\r\n\r\n",
		"\x00\x00\x00\x07\x00\x03\x00",
	} {
		r := readAll(Frontend, opening, []byte(stream), func() int { return 2 })
		require.Equal(t, read{nil, []byte(stream), unreadable}, r)
	}
}
