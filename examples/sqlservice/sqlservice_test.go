package main

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type endpoint struct {
	*testing.T
	url string
	db  *sql.DB
}

func start(t *testing.T) endpoint {
	t.Helper()
	db, err := sql.Open("pgx", pgtest.DSN(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	handler, err := newService(t.Context(), db)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return endpoint{t, server.URL + "/webhooks/payments", db}
}

func (e endpoint) post(body string) (status int, text string) {
	res, err := http.Post(e.url, "application/json", strings.NewReader(body))
	if err != nil {
		e.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		e.Error(err)
	}
	return res.StatusCode, strings.TrimSpace(string(b))
}

func (e endpoint) balance(account string) (n int64) {
	e.Helper()
	err := e.db.QueryRowContext(context.Background(), `SELECT balance FROM sqlservice_accounts WHERE id = $1`,
		account).Scan(&n)
	require.NoError(e, err)
	return n
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	e := start(t)
	const evt1 = `{"id": "evt_1", "account": "alice", "amount": 500}`
	for _, want := range []string{"executed", "duplicate", "duplicate"} {
		status, text := e.post(evt1)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, want, text)
	}
	require.EqualValues(t, 500, e.balance("alice"))

	for body, want := range map[string]int{
		`{"id": "evt_1", "account": "bob", "amount": 500}`:    http.StatusUnprocessableEntity, // the id again, another body
		`{"id": "evt_2", "account": "nobody", "amount": 500}`: http.StatusUnprocessableEntity,
		`{"id": "", "account": "bob", "amount": 500}`:         http.StatusBadRequest,
		`{"id": "evt_3", "account": "bob"}`:                   http.StatusBadRequest,
		`{`:                                                   http.StatusBadRequest,
	} {
		status, _ := e.post(body)
		require.Equal(t, want, status, body)
	}
	require.Zero(t, e.balance("bob"))

	// What failed has left nothing behind: it may be delivered again.
	_, err := e.db.ExecContext(t.Context(), `INSERT INTO sqlservice_accounts (id) VALUES ('nobody')`)
	require.NoError(t, err)
	status, text := e.post(`{"id": "evt_2", "account": "nobody", "amount": 500}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "executed", text)
}

func TestDeliveriesAtTheSameTime(t *testing.T) {
	t.Parallel()
	e := start(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if status, _ := e.post(`{"id": "evt_1", "account": "alice", "amount": 500}`); status != http.StatusOK {
				e.Error(status)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 500, e.balance("alice"))
}

// The program itself: it starts with a database of its own, and stops when it is told to.
func TestRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, "", "localhost:0", in)
		_ = in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	e := endpoint{T: t, url: strings.TrimSpace(strings.TrimPrefix(line, "listening on "))}
	status, text := e.post(`{"id": "evt_1", "account": "alice", "amount": 500}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "executed", text)
	cancel()
	require.NoError(t, <-done)
}
