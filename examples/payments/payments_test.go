package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asProgram makes the test binary behave as the program, which starts itself as the API.
const asProgram = "PAYMENTS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" && !idemtest.Child() {
		main()
		return
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// The program: killed at random, and both ledgers are equal.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), config{dsn: pgtest.DSN(t), orders: 24, kills: 4}, &out), "%s", &out)
	t.Log(out.String())
	counts := regexp.MustCompile(`(\d+) kills, (\d+) replies lost`).FindStringSubmatch(out.String())
	require.Len(t, counts, 3)
	for _, n := range counts[1:] {
		n, err := strconv.Atoi(n)
		require.NoError(t, err)
		require.Positive(t, n, "or this proves nothing")
	}
	require.Contains(t, out.String(), "lines are equal")
}

// A line too many, too few, or another one is noticed.
func TestUnequal(t *testing.T) {
	a, b := booking{"o", "", "rc_1", 100}, booking{"o", "part", "rc_2", -10}
	for _, l := range [][2][]booking{
		{{a}, {a, b}},
		{{a, b, b}, {a, b}},
		{{a, {"o", "part", "rc_2", -20}}, {a, b}},
		{{a, {"o", "part", "rc_3", -10}}, {a, b}},
	} {
		require.ErrorIs(t, tell(io.Discard, l[0], l[1]), errUnequal)
	}
	require.NoError(t, tell(io.Discard, []booking{b, a}, []booking{a, b}))
}

// testAPI serves the API in this process.
func testAPI(t *testing.T, provider string) (*pgxpool.Pool, func(path, body string) (int, string)) {
	t.Helper()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), schema)
	require.NoError(t, err)
	server := httptest.NewServer(api{pool, provider}.handler())
	t.Cleanup(server.Close)
	return pool, func(path, body string) (int, string) {
		resp, err := http.Post(server.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.TrimSpace(string(text))
	}
}

func booked(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM payments_ledger`).Scan(&n))
	return n
}

// persist repeats a request while the answer is that it should be repeated.
func persist(t *testing.T, post func(path, body string) (int, string), path, body string) (status int, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, text = post(path, body)
		return status != http.StatusServiceUnavailable
	}, 20*time.Second, 10*time.Millisecond)
	return status, text
}

// What clients are told.
func TestAnswers(t *testing.T) {
	t.Parallel()
	bank := httptest.NewServer(&provider{})
	t.Cleanup(bank.Close)
	pool, post := testAPI(t, bank.URL)
	for range 2 { // the second time the answers are the stored ones
		status, text := persist(t, post, "/orders/a/charge", `{"amount":100}`)
		require.Equal(t, 200, status)
		require.JSONEq(t, `{"id":"rc_1","amount":100}`, text)
		status, text = persist(t, post, "/orders/a/refunds/part", `{"amount":30}`)
		require.Equal(t, 200, status)
		require.JSONEq(t, `{"id":"rc_2","amount":-30}`, text)
		status, text = persist(t, post, "/orders/b/charge", `{"amount":103}`)
		require.Equal(t, 402, status)
		require.Equal(t, "declined", text)
	}
	require.Equal(t, 2, booked(t, pool))
	status, _ := post("/orders/a/charge", `{"amount":200}`)
	require.Equal(t, 422, status)
	for _, body := range []string{
		"", "{}", `{"amount":0}`, `{"amount":-1}`, `{"amount":null}`,
		strings.Repeat(" ", maxBody+1),
	} {
		status, _ := post("/orders/c/charge", body)
		require.Equal(t, 400, status, body)
	}
	status, _ = post("/orders/%00/charge", `{"amount":1}`)
	require.Equal(t, 400, status)
}

// A second request while the first one is at the provider: to be tried again, and then the same answer.
func TestDoubleClick(t *testing.T) {
	t.Parallel()
	entered, gate := make(chan struct{}), make(chan struct{})
	var calls sync.Once
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Do(func() { close(entered) })
		<-gate
		_, _ = io.WriteString(w, `{"id":"rc_1","amount":5}`)
	}))
	t.Cleanup(bank.Close)
	pool, post := testAPI(t, bank.URL)
	type answer struct {
		status int
		text   string
	}
	first := make(chan answer, 1)
	go func() {
		status, text := persist(t, post, "/orders/a/charge", `{"amount":5}`)
		first <- answer{status, text}
	}()
	<-entered
	status, _ := post("/orders/a/charge", `{"amount":5}`)
	require.Equal(t, 503, status)
	close(gate)
	require.Equal(t, 200, (<-first).status)
	status, _ = post("/orders/a/charge", `{"amount":5}`)
	require.Equal(t, 200, status)
	require.Equal(t, 1, booked(t, pool))
}
