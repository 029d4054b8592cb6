package pgtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestDockerAnswers(t *testing.T) {
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("DOCKER_TLS_VERIFY", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("HOME", t.TempDir())

	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "OK") }))
	defer engine.Close()
	host := "tcp://" + engine.Listener.Addr().String()
	require.NoError(t, dockerAnswers(t.Context(), host), "from the properties file")
	t.Setenv("DOCKER_HOST", host)
	require.NoError(t, dockerAnswers(t.Context(), ""))

	hangs := listen(t, func(net.Conn) { select {} })
	t.Setenv("DOCKER_HOST", hangs)
	began := time.Now()
	require.Error(t, dockerAnswers(t.Context(), ""))
	require.Less(t, time.Since(began), 10*time.Second)

	t.Setenv("DOCKER_HOST", listen(t, func(c net.Conn) {
		bufio.NewReader(c).ReadString('\n')
		fmt.Fprintln(c, "SSH-2.0-dropbear")
		c.Close()
	}))
	require.Error(t, dockerAnswers(t.Context(), ""))
	engine.Close()
	t.Setenv("DOCKER_HOST", host)
	require.Error(t, dockerAnswers(t.Context(), ""))
}

// listen serves connections on loopback, by a function each.
func listen(t *testing.T, serve func(net.Conn)) (host string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "tcp://" + l.Addr().String()
}

func TestDockerHosts(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	home := filepath.Join(dir, "home")
	t.Setenv("HOME", home)
	run, desktop := filepath.Join(home, ".docker/run/docker.sock"), filepath.Join(home, ".docker/desktop/docker.sock")
	user := filepath.Join(dir, "docker.sock")
	require.NotContains(t, dockerHosts(""), "unix://"+user)
	for _, path := range []string{user, run, desktop} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.Contains(t, dockerHosts(""), "unix://"+path)
	}
	require.Equal(t, []string{"tcp://x:1"}, dockerHosts("tcp://x:1"))
	t.Setenv("DOCKER_HOST", "tcp://y:1")
	require.Equal(t, []string{"tcp://y:1"}, dockerHosts("tcp://x:1"))
}

// engine plays a Docker engine with one image. Its containers are the server that this test runs on.
type engine struct {
	c    *pgconn.Config
	mu   sync.Mutex
	seen []string
	req  map[string]any // what the container was created with
	live bool
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	path := regexp.MustCompile(`^/v[\d.]+`).ReplaceAllString(r.URL.Path, "")
	e.seen = append(e.seen, r.Method+" "+path)
	w.Header().Set("Api-Version", "1.47")
	reply := func(v any) { json.NewEncoder(w).Encode(v) }
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	switch {
	case path == "/_ping":
		fmt.Fprint(w, "OK")
	case path == "/info":
		reply(map[string]any{"OperatingSystem": "test", "ServerVersion": "27", "OSType": "linux"})
	case strings.HasPrefix(path, "/images/"):
		reply(map[string]any{"Id": "sha256:" + id, "RepoTags": []string{"postgres:18-alpine"}})
	case path == "/networks":
		reply([]any{map[string]any{"Name": "bridge", "Id": id}})
	case path == "/containers/json":
		reply([]any{})
	case path == "/containers/create":
		json.NewDecoder(r.Body).Decode(&e.req)
		w.WriteHeader(http.StatusCreated)
		reply(map[string]any{"Id": id})
	case path == "/containers/"+id+"/start":
		e.live = true
		w.WriteHeader(http.StatusNoContent)
	case path == "/containers/"+id+"/json":
		reply(map[string]any{
			"Id": id, "Name": "/x", "Image": "postgres:18-alpine",
			"State": map[string]any{
				"Running": e.live,
				"Status":  map[bool]string{true: "running", false: "created"}[e.live],
			},
			"Config":     map[string]any{"Env": []string{"POSTGRES_PASSWORD=" + e.c.Password}},
			"HostConfig": map[string]any{"PortBindings": map[string]any{}},
			"NetworkSettings": map[string]any{"Ports": map[string]any{
				"5432/tcp": []any{map[string]any{"HostIp": "0.0.0.0", "HostPort": fmt.Sprint(e.c.Port)}},
			}},
		})
	case r.Method == http.MethodDelete || strings.HasSuffix(path, "/stop"):
		e.live = false
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotFound)
		reply(map[string]any{"message": "no such thing"})
	}
}

// A run where Docker is all there is.
func TestDocker(t *testing.T) {
	t.Parallel()
	cfg := Config(t)
	e := &engine{c: &cfg.ConnConfig.Config}
	daemon := httptest.NewServer(e)
	defer daemon.Close()
	out, code := run(t, "TestChildPasses", "HOME="+t.TempDir(), "PATH=/nowhere", "PGONCE_TEST_SOURCES=docker",
		"DOCKER_HOST=tcp://"+daemon.Listener.Addr().String(), "TESTCONTAINERS_RYUK_DISABLED=true")
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Equal(t, 0, code, "%s\n%s", out, strings.Join(e.seen, "\n"))
	require.False(t, e.live, "the container is removed")
	require.Equal(t, "postgres:18-alpine", e.req["Image"])
	require.Contains(t, e.req["Cmd"], "fsync=off")
	require.Contains(t, fmt.Sprint(e.req["Env"]), "POSTGRES_PASSWORD=")
}
