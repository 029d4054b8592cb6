package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asProgram makes the test binary behave as the program.
const asProgram = "IDEMCHECK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	pgtest.Main(m)
}

// idemcheck runs the program, and returns its table, what it complained of, and its exit status.
func idemcheck(t *testing.T, args ...string) (table, complaints string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), asProgram+"=1"), &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// verdicts returns the first two columns of a table, a check and its verdict in each line.
func verdicts(table string) (v []string) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		v = append(v, f[0]+" "+f[1])
	}
	return v
}

var callers = []string{"-caller", "Caller: alice", "-other", "Caller:bob"}

// Ours passes whole, under the name that its header has, and the program says so by its exit status.
func TestOurs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), `CREATE TABLE effects (id serial)`)
	require.NoError(t, err)
	once, err := idemhttp.New(pool, idem.Once{MaxWait: 10 * time.Second}, idemhttp.Config{
		Caller:  func(r *http.Request) (string, error) { return r.Header.Get("Caller"), nil },
		OnError: func(*http.Request, error) {}, // a request that was broken off
		Methods: []string{http.MethodPut}, Header: "X-Key",
	})
	require.NoError(t, err)
	srv := httptest.NewServer(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idemhttp.Tx(r.Context())
		var id int
		if err := tx.QueryRow(r.Context(), `INSERT INTO effects DEFAULT VALUES RETURNING id`).Scan(&id); err != nil {
			idemhttp.Fail(r.Context(), err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		time.Sleep(5 * time.Millisecond)
		fmt.Fprint(w, id)
	})))
	t.Cleanup(srv.Close)
	args := append([]string{"-url", srv.URL, "-body", "b", "-method", "PUT", "-header", "X-Key"}, callers...)
	table, complaints, status := idemcheck(t, args...)
	require.Equal(t, []string{
		"missing pass", "malformed pass", "replay pass", "mismatch pass", "concurrent pass", "crash pass", "callers pass",
	}, verdicts(table), "%s", table)
	require.Empty(t, complaints)
	require.Zero(t, status)

	// What was not checked is no pass.
	table, _, status = idemcheck(t, append(args[:8:8], "-caller", "Caller: alice")...)
	require.Contains(t, verdicts(table), "callers not", "%s", table)
	require.Equal(t, 1, status)
}

// A middleware that looks the key up, runs, and keeps the response fails where it should.
func TestNaive(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64
	var kept sync.Map
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		answer, ok := kept.Load(key)
		if !ok {
			answer = fmt.Sprint(effects.Add(1))
			time.Sleep(20 * time.Millisecond)
			kept.Store(key, answer)
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(srv.Close)
	table, complaints, status := idemcheck(t, append([]string{"-url", srv.URL, "-body", "b"}, callers...)...)
	got := verdicts(table)
	require.Len(t, got, 7, "%s", table)
	// Whether the client alone can break a request off in the wrong moment is a matter of luck.
	require.Equal(t, []string{"missing FAIL", "malformed FAIL", "replay pass", "mismatch FAIL", "concurrent FAIL"},
		got[:5],
		"%s", table)
	require.Equal(t, "callers FAIL", got[6], "%s", table)
	require.Empty(t, complaints)
	require.Equal(t, 1, status)
}

// Flags that are wrong are told apart from checks that were not passed.
func TestFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args       []string
		complaints string
		status     int
	}{
		"help":             {[]string{"-h"}, "-otherbody", 0},
		"no address":       {nil, "-url", 2},
		"an argument":      {[]string{"-url", "http://127.0.0.1:1", "http://127.0.0.1:2"}, "-url", 2},
		"an unknown flag":  {[]string{"-uri", "x"}, "-uri", 2},
		"no header":        {[]string{"-url", "http://127.0.0.1:1", "-caller", "alice"}, "-caller", 2},
		"a header unnamed": {[]string{"-url", "http://127.0.0.1:1", "-other", ": bob"}, "-other", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table, complaints, status := idemcheck(t, tc.args...)
			require.Contains(t, complaints, tc.complaints)
			require.Equal(t, tc.status, status, "%s%s", table, complaints)
			require.Empty(t, table)
		})
	}
}
