package pgtest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Without any PostgreSQL the run fails at once, with one message that helps, and nothing is skipped.
func TestNoServer(t *testing.T) {
	t.Parallel()
	nothing := []string{"PATH=/nowhere", "HOME=", "PGONCE_TEST_SOURCES=url,docker"}
	check := func(t *testing.T, messages int, env ...string) string {
		began := time.Now()
		out, code := run(t, "TestChild(Passes|Fails)", env...)
		require.Equal(t, 1, code, out)
		require.Equal(t, messages, strings.Count(out, "no PostgreSQL to test on"), out)
		for _, help := range []string{
			"apt-get install postgresql", "dnf install", "brew install", "docker",
			"export PGONCE_TEST_DATABASE_URL=", "PGONCE_PG_BIN",
			"url: PGONCE_TEST_DATABASE_URL is not set", "docker: no Docker engine",
		} {
			require.Contains(t, out, help)
		}
		require.NotContains(t, out, "SKIP")
		require.NotContains(t, out, "PASS")
		require.Less(t, time.Since(began), time.Minute)
		return out
	}
	t.Run("with Main", func(t *testing.T) {
		t.Parallel()
		require.NotContains(t, check(t, 1, nothing...), "=== RUN", "no test is begun")
	})
	t.Run("without Main", func(t *testing.T) {
		t.Parallel()
		out := check(t, 2, append(nothing, roleEnv+"=without Main")...)
		require.Contains(t, out, "--- FAIL: TestChildPasses")
	})
	// Nothing runs, so nothing is needed.
	cmd := exec.Command(os.Args[0], "-test.list=TestChildPasses")
	cmd.Env = nothing
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "TestChildPasses\n", string(out))
}

// The server that somebody asked for is the one, or there is none.
func TestURLThatFails(t *testing.T) {
	t.Parallel()
	out, code := run(t, "TestChildPasses", "PATH="+os.Getenv("PATH"),
		"PGONCE_TEST_DATABASE_URL=postgres://nobody:sesame@127.0.0.1:1/x")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "127.0.0.1:1")
	require.NotContains(t, out, "sesame")
}

// On a server that is not ours a failing test's database stays, and the log says which, but not the password.
func TestURL(t *testing.T) {
	t.Parallel()
	cfg := Config(t)
	c := cfg.ConnConfig
	for name, dsn := range map[string]string{
		"url": cfg.ConnString(),
		"keywords": "host=" + c.Host + " port=" + portOf(c) + " user=" + c.User + " password=" + c.Password +
			" sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := run(t, "TestChildFails", "PGONCE_TEST_DATABASE_URL="+dsn)
			require.Equal(t, 1, code, out)
			require.NotContains(t, out, c.Password)
			found := regexp.MustCompile(`the database stays: postgres://postgres:xxxxx@127.0.0.1:\d+/(\w+)`).FindStringSubmatch(out)
			require.NotNil(t, found, out)
			requireDatabase(t, found[1], true)
			s, err := current()
			require.NoError(t, err)
			_, err = s.admin.Exec(t.Context(), `DROP DATABASE `+pgx.Identifier{found[1]}.Sanitize())
			require.NoError(t, err)

			out, code = run(t, "TestChildPasses", "PGONCE_TEST_DATABASE_URL="+dsn)
			require.Equal(t, 0, code, out)
			require.NotContains(t, out, "stays")
			found = regexp.MustCompile(`database (pgonce_test_\w+)`).FindStringSubmatch(out)
			require.NotNil(t, found, out)
			requireDatabase(t, found[1], false)
		})
	}
}

func portOf(c *pgx.ConnConfig) string {
	return regexp.MustCompile(`:(\d+)/`).FindStringSubmatch(c.ConnString())[1]
}

// A private server and a failing test's database stay when that was asked for.
func TestKeep(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pgtest-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildFails$", "-test.v")
	cmd.Env = []string{
		roleEnv + "=child", "PATH=" + os.Getenv("PATH"), "PGONCE_PG_BIN=" + os.Getenv("PGONCE_PG_BIN"),
		"PGONCE_TEST_SOURCES=local", "TMPDIR=" + dir, "PGONCE_TEST_KEEP=1",
	}
	b, err := cmd.CombinedOutput()
	out := string(b)
	require.Error(t, err, out)
	found := regexp.MustCompile(`the database stays: (\S+)`).FindStringSubmatch(out)
	require.NotNil(t, found, out)
	stop := regexp.MustCompile(`to stop it: (.+)`).FindStringSubmatch(out)
	require.NotNil(t, stop, out)
	defer func() { require.NoError(t, exec.Command("sh", "-c", stop[1]).Run()) }()

	time.Sleep(3 * time.Second) // longer than a shared server waits for the next package
	c, err := pgx.Connect(t.Context(), found[1])
	require.NoError(t, err)
	defer c.Close(t.Context())
	var x int
	require.NoError(t, c.QueryRow(t.Context(), `SELECT x FROM evidence`).Scan(&x))
	require.Equal(t, 42, x)
}

func TestDSNOf(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"postgres://u:p@h:5/x?sslmode=disable":     "postgres://u:p@h:5/db?sslmode=disable",
		"postgresql://u@h/?dbname=x&database=y":    "postgresql://u@h/db",
		"host=h user=u dbname=x":                   "host=h user=u dbname=x dbname=db",
		"postgres://u:p%2F@h/x?application_name=a": "postgres://u:p%2F@h/db?application_name=a",
	} {
		cfg, err := pgxpool.ParseConfig(given)
		require.NoError(t, err)
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		got := (&server{admin: pool}).dsn("db")
		pool.Close()
		require.Equal(t, want, got)
		parsed, err := pgx.ParseConfig(got)
		require.NoError(t, err)
		require.Equal(t, "db", parsed.Database)
		require.Equal(t, cfg.ConnConfig.Host, parsed.Host)
		require.Equal(t, cfg.ConnConfig.User, parsed.User)
	}
}
