package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// roleEnv is set in the processes that the tests of this package start of themselves, to see how a run goes.
const roleEnv = "PGTEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "without Main" {
		os.Exit(m.Run())
	}
	Main(m)
}

// run runs one test of this package in another process, in the given environment and nothing else.
func run(t *testing.T, test string, env ...string) (output string, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(env, "TMPDIR="+os.TempDir())
	if !strings.Contains(strings.Join(env, " "), roleEnv) {
		cmd.Env = append(cmd.Env, roleEnv+"=child")
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// The tests that run runs. In an ordinary run they do nothing.
func TestChildPasses(t *testing.T) {
	if os.Getenv(roleEnv) != "" {
		pool := Pool(t)
		require.NoError(t, pool.Ping(t.Context()))
		t.Logf("database %s", pool.Config().ConnConfig.Database)
	}
}

func TestChildFails(t *testing.T) {
	if os.Getenv(roleEnv) == "" {
		return
	}
	_, err := Pool(t).Exec(t.Context(), `CREATE TABLE evidence AS SELECT 42 AS x`)
	require.NoError(t, err)
	t.Error("on purpose")
}

// recorder is a test whose failure is what another test wants to see.
type recorder struct {
	testing.TB
	failed   bool
	output   strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()                      {}
func (r *recorder) Name() string                 { return "TestRecorded" }
func (r *recorder) Failed() bool                 { return r.failed }
func (r *recorder) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(format string, a ...any) { r.printf(format, a...) }
func (r *recorder) Errorf(format string, a ...any) {
	r.failed = true
	r.printf(format, a...)
}

func (r *recorder) printf(format string, a ...any) { fmt.Fprintf(&r.output, format+"\n", a...) }

// end runs the clean-ups, as the end of a test does.
func (r *recorder) end() {
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
}
