package faultconn

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// With KeepServer the server hears nothing, not even the client's goodbye, until Release.
func TestKeptServerHearsNothing(t *testing.T) {
	t.Parallel()
	a, goodbye := query(t, "a"), encode(t, &pgproto3.Terminate{})
	for _, test := range []struct {
		script *Script
		hears  []byte
	}{
		{&Script{Mode: DropBefore}, nil},
		{&Script{Mode: Stall}, nil},
		{&Script{Mode: DropReply}, a},
		{&Script{From: Backend, Mode: DropBefore}, a},
		{&Script{From: Backend, Mode: Stall}, a},
	} {
		s := test.script
		s.KeepServer = true
		client, server := ends(t, s)
		_, err := server.Write(encode(t, &pgproto3.NoticeResponse{}))
		require.NoError(t, err)
		require.NoError(t, write("a")(client))
		require.NoError(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, _ = client.Read(make([]byte, 100))
		_, _ = client.Write(goodbye)
		require.NoError(t, client.Close())
		require.NoError(t, server.SetDeadline(time.Now().Add(50*time.Millisecond)))
		got, err := io.ReadAll(server)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the server has noticed")
		require.Equal(t, string(test.hears), string(got))
		s.Release()
		require.NoError(t, server.SetDeadline(time.Now().Add(soon)))
		_, err = server.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

// A lost reply waits for the answer to what was asked, which the server may not give before the client has sent more.
func TestWhenAReplyIsLost(t *testing.T) {
	t.Parallel()
	var (
		copyIn   = encode(t, &pgproto3.CopyInResponse{})
		password = encode(t, &pgproto3.AuthenticationMD5Password{})
		complete = encode(t, &pgproto3.CommandComplete{CommandTag: []byte("A")})
		ready    = encode(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})
		sync     = encode(t, &pgproto3.Sync{})
		execute  = encode(t, &pgproto3.Execute{})
		copyDone = encode(t, &pgproto3.CopyDone{})
	)
	ofType := func(name string) func(Message) bool { return func(m Message) bool { return m.Type == name } }
	type step struct{ client, server, reads []byte } // reads: what reaches the client; nil: nothing does, for now
	for _, test := range []struct {
		name  string
		when  func(Message) bool
		steps []step
		last  []byte // then the server says this, and the connection ends
	}{
		{"query", ofType("Query"), []step{{query(t, "a"), complete, nil}}, ready},
		{"copy", ofType("Query"), []step{{query(t, "a"), copyIn, copyIn}, {copyDone, complete, nil}}, ready},
		{"copy, the client goes on", ofType("CopyInResponse"), []step{{query(t, "a"), nil, nil}}, copyIn},
		{"end of a copy", ofType("CopyDone"), []step{{query(t, "a"), copyIn, copyIn}, {copyDone, complete, nil}}, ready},
		{"password", ofType("Query"), []step{{query(t, "a"), password, password}}, ready},
		{"two syncs", ofType("Execute"), []step{{append(sync, execute...), ready, nil}, {sync, complete, nil}}, ready},
		{"sync", ofType("Sync"), []step{{append(execute, sync...), complete, nil}}, ready},
		{"reply", ofType("CommandComplete"), []step{{query(t, "a"), complete, nil}}, ready},
		{"end of the reply", ofType("ReadyForQuery"), []step{{query(t, "a"), complete, complete}}, ready},
		{"the server has gone", ofType("Query"), []step{{query(t, "a"), complete, nil}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client, server := ends(t, &Script{When: test.when, Mode: DropReply})
			buf := make([]byte, 100)
			for _, step := range test.steps {
				_, err := client.Write(step.client)
				require.NoError(t, err)
				_, err = server.Write(step.server)
				require.NoError(t, err)
				require.NoError(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
				n, err := client.Read(buf)
				if step.reads == nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					require.False(t, fired(client.script))
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, string(step.reads), string(buf[:n]))
			}
			if test.last == nil {
				require.NoError(t, server.Close())
			} else {
				_, err := server.Write(test.last)
				require.NoError(t, err)
			}
			require.NoError(t, client.SetReadDeadline(time.Now().Add(soon)))
			_, err := client.Read(buf)
			require.Equal(t, io.EOF, err)
			require.True(t, fired(client.script))
		})
	}
}

func fired(s *Script) bool {
	select {
	case <-s.Fired():
		return true
	default:
		return false
	}
}

// The client does not wait for the reply any longer: that is an end of the fault, too.
func TestCloseBeforeTheReplyIsLost(t *testing.T) {
	t.Parallel()
	client, _ := ends(t, &Script{Mode: DropReply})
	require.NoError(t, write("a")(client))
	require.False(t, fired(client.script))
	require.NoError(t, client.Close())
	require.True(t, fired(client.script))
}
