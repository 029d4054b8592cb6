package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem/idemhttp/conformance"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// asProgram makes the test binary behave as the program, for as long as whoever started it lives.
const asProgram = "KEYMIDDLEWARES_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		main()
		return
	}
	pgtest.Main(m)
}

// process is the program, which can be killed and started again.
type process struct {
	*testing.T
	args   []string
	listen string
	cmd    *exec.Cmd
}

func (p *process) start(ctx context.Context) error {
	p.cmd = exec.Command(os.Args[0], p.args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // closed when this process ends, in whatever way
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	for {
		if conn, err := net.Dial("tcp", p.listen); err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// restart kills the program, by SIGKILL, and starts it again.
func (p *process) restart(ctx context.Context) error {
	p.kill()
	return p.start(ctx)
}

// Each middleware, under the same checks: the verdicts are those of the table in README.md.
func TestComparison(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var want, got strings.Builder
	for line := range strings.Lines(string(readme)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "|" && strings.HasPrefix(f[1], "`") {
			want.WriteString(line)
		}
	}
	names := []string{"pgonce", "fiber", "moov"}
	reports := make([]conformance.Report, len(names))
	t.Run("all", func(t *testing.T) {
		for i, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				reports[i] = check(t, name)
				t.Logf("\n%s", reports[i])
			})
		}
	})
	for n, first := range reports[0] {
		got.WriteString("| `" + first.Check + "` |")
		for _, r := range reports {
			got.WriteString(" " + string(r[n].Verdict) + " |")
		}
		got.WriteString("\n")
	}
	require.Equal(t, want.String(), got.String())
}

func check(t *testing.T, name string) conformance.Report {
	pool := pgtest.Pool(t)
	require.NoError(t, setUp(t.Context(), pool))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listen := l.Addr().String()
	require.NoError(t, l.Close())
	dsn := pool.Config().ConnString()
	p := &process{T: t, args: []string{"-dsn", dsn, "-listen", listen, "-middleware", name}, listen: listen}
	require.NoError(t, p.start(t.Context()))
	t.Cleanup(p.kill)
	target := conformance.Target{
		URL: "http://" + listen + "/payments", Body: `{"cents": 500}`, OtherBody: `{"cents": 501}`,
		Caller: http.Header{"Authorization": {"Basic YWxpY2U6"}}, Other: http.Header{"Authorization": {"Basic Ym9iOg=="}},
		Crash: p.restart,
		Effects: func(ctx context.Context) (n int, err error) {
			err = pool.QueryRow(ctx, `SELECT count(*) FROM keymiddlewares_payments`).Scan(&n)
			return n, err
		},
	}
	if name == "moov" {
		target.Header = "X-Idempotency-Key"
	}
	return conformance.Run(t.Context(), target)
}
