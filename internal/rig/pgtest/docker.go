package pgtest

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	dockerProbeTimeout = 2 * time.Second
	dockerTimeout      = 5 * time.Minute // the image may have to be fetched
)

// fromDocker starts a container. The packages of a test run share it, and testcontainers' reaper removes it after the
// run, in whatever way it ends; where the reaper is switched off, each process has a container of its own and
// removes it.
func fromDocker(ctx context.Context) (*server, error) {
	cfg := testcontainers.ReadConfig().Config
	if err := dockerAnswers(ctx, cfg.Host); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dockerTimeout)
	defer cancel()
	command := []string{"postgres"}
	for name, value := range settings() {
		command = append(command, "-c", name+"="+value)
	}
	req := testcontainers.GenericContainerRequest{
		ContainerRequest: testcontainers.ContainerRequest{
			Image:        cmp.Or(os.Getenv("PGONCE_TEST_IMAGE"), "postgres:18-alpine"),
			ExposedPorts: []string{"5432/tcp"},
			Env: map[string]string{
				// Docker publishes the port on all of the machine's addresses.
				"POSTGRES_PASSWORD":    rand.Text(),
				"POSTGRES_INITDB_ARGS": "--locale=C --encoding=UTF8 --no-sync",
			},
			Cmd: command,
		},
		Started: true,
		Logger:  log.NewNoopLogger(),
	}
	if !cfg.RyukDisabled {
		req.Reuse = true
		req.Name = "pgonce-test-" + testcontainers.SessionID()[:16]
	}
	container, err := testcontainers.GenericContainer(ctx, req)
	if err != nil {
		return nil, errors.Join(err, testcontainers.TerminateContainer(container))
	}
	stop := func() error { return nil }
	if cfg.RyukDisabled {
		stop = func() error { return testcontainers.TerminateContainer(container) }
	}
	s, err := connectContainer(ctx, container)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	s.stop = stop
	return s, nil
}

// connectContainer waits for the server in a container.
func connectContainer(ctx context.Context, container testcontainers.Container) (*server, error) {
	endpoint, err := container.PortEndpoint(ctx, "5432/tcp", "")
	if err != nil {
		return nil, err
	}
	// Another process may have made the container: its password counts.
	info, err := container.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	var password string
	for _, kv := range info.Config.Env {
		if v, ok := strings.CutPrefix(kv, "POSTGRES_PASSWORD="); ok {
			password = v
		}
	}
	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password), Host: endpoint,
		Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return waitForServer(ctx, dsn.String())
}

// dockerAnswers says quickly whether there is a Docker engine: testcontainers takes its time when there is none, and an
// engine that hangs takes connections.
func dockerAnswers(ctx context.Context, configured string) error {
	ctx, cancel := context.WithTimeout(ctx, dockerProbeTimeout)
	defer cancel()
	var err error = absent("no Docker engine: DOCKER_HOST is not set, and there is no socket")
	for _, host := range dockerHosts(configured) {
		if err = ping(ctx, host); err == nil {
			return nil
		}
	}
	return err
}

// dockerHosts lists where an engine may listen: where we are told, else the sockets that testcontainers tries too.
func dockerHosts(configured string) []string {
	if host := cmp.Or(os.Getenv("DOCKER_HOST"), configured); host != "" {
		return []string{host}
	}
	sockets := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		sockets = append(sockets, filepath.Join(dir, "docker.sock"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		sockets = append(sockets, filepath.Join(home, ".docker/run/docker.sock"),
			filepath.Join(home, ".docker/desktop/docker.sock"))
	}
	sockets = append(sockets, fmt.Sprintf("/run/user/%d/docker.sock", os.Getuid()))
	var hosts []string
	for _, path := range sockets {
		if _, err := os.Stat(path); err == nil {
			hosts = append(hosts, "unix://"+path)
		}
	}
	return hosts
}

// ping asks an engine whether it is there.
func ping(ctx context.Context, host string) error {
	u, err := url.Parse(host)
	if err != nil {
		return err
	}
	network, address := "tcp", u.Host
	if u.Scheme == "unix" {
		network, address = "unix", u.Path
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if os.Getenv("DOCKER_TLS_VERIFY") != "" {
		return nil // that somebody listens must do
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(c, "GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the Docker engine at %s does not answer: %w", host, err)
	}
	if !strings.HasPrefix(line, "HTTP/1.") {
		return fmt.Errorf("no Docker engine at %s", host)
	}
	return nil
}
