package pg

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// reply is what a server says to a statement: the state of the transaction afterwards, and an SQLSTATE where it fails.
type reply struct {
	code   string
	status byte // 'I', 'T' or 'E'
}

// connect returns a connection to a server that is not there: answer stands for it. Statements come in the simple
// protocol.
func connect(t *testing.T, answer func(sql string) reply) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig("host=localhost user=u dbname=d sslmode=disable default_query_exec_mode=simple_protocol")
	require.NoError(t, err)
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serve(server, answer)
		return client, nil
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// serve answers until the client has gone. It returns no rows.
func serve(conn net.Conn, answer func(sql string) reply) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for backend.Flush() == nil {
		m, err := backend.Receive()
		if err != nil {
			return
		}
		query, ok := m.(*pgproto3.Query)
		if !ok {
			return
		}
		r := answer(query.String)
		if r.code != "" {
			backend.Send(&pgproto3.ErrorResponse{
				Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: r.code,
				Message: "said the fake",
			})
		} else {
			word, _, _ := strings.Cut(query.String, " ")
			backend.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(word))})
		}
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: r.status})
	}
}

// states answers BEGIN, COMMIT and ROLLBACK as a server does, and everything else by other.
func states(other func(sql string) reply) func(string) reply {
	return func(sql string) reply {
		switch strings.ToLower(sql) {
		case "begin":
			return reply{status: 'T'}
		case "commit", "rollback":
			return reply{status: 'I'}
		}
		return other(sql)
	}
}
