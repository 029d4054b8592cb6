package outboxrabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// server returns the URL of a RabbitMQ: the one in PGONCE_TEST_AMQP_URL, or one that is started for this test, in
// folders and on ports of its own.
func server(t *testing.T) string {
	t.Helper()
	if url := os.Getenv("PGONCE_TEST_AMQP_URL"); url != "" {
		return url
	}
	// Debian's programs in the path change to another user, who may not write into the test's folder.
	bin := "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(bin); err != nil {
		if bin, err = exec.LookPath("rabbitmq-server"); err != nil {
			t.Skip("no RabbitMQ here: install rabbitmq-server, or name a server in PGONCE_TEST_AMQP_URL")
		}
	}
	dir, err := os.MkdirTemp("", "rabbitmq")
	require.NoError(t, err)
	port, dist, epmd := free(t), free(t), free(t)
	conf := filepath.Join(dir, "rabbitmq.conf")
	require.NoError(t, os.WriteFile(conf,
		[]byte("listeners.tcp.1 = 127.0.0.1:"+port+
			"\nvm_memory_high_watermark.relative = 0.9\ndisk_free_limit.absolute = 1MB\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "plugins"), []byte("[]."), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "env.conf"), nil, 0o644))
	env := append(os.Environ(), "HOME="+dir, "RABBITMQ_HOME="+dir, "RABBITMQ_BASE="+dir,
		"RABBITMQ_MNESIA_BASE="+dir+"/mnesia",
		"RABBITMQ_LOG_BASE="+dir+"/log", "RABBITMQ_CONFIG_FILE="+conf, "RABBITMQ_CONF_ENV_FILE="+dir+"/env.conf",
		"RABBITMQ_ENABLED_PLUGINS_FILE="+dir+"/plugins", "RABBITMQ_PID_FILE="+dir+"/pid",
		"RABBITMQ_NODENAME=t"+port+"@localhost",
		"RABBITMQ_NODE_PORT="+port, "RABBITMQ_DIST_PORT="+dist, "ERL_EPMD_PORT="+epmd, "ERL_EPMD_ADDRESS=127.0.0.1")
	run := func(name string, args ...string) ([]byte, error) {
		cmd := exec.Command(name, args...)
		cmd.Env, cmd.Dir = env, dir
		return cmd.CombinedOutput()
	}
	out, err := run(bin, "-detached")
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		_, _ = run(filepath.Join(filepath.Dir(bin), "rabbitmqctl"), "shutdown", "--timeout", "30")
		_, _ = run("epmd", "-kill")
		_ = os.RemoveAll(dir)
	})
	url := "amqp://guest:guest@127.0.0.1:" + port
	require.Eventually(t, func() bool {
		conn, err := amqp091.Dial(url)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, 90*time.Second, 100*time.Millisecond, "RabbitMQ does not answer")
	return url
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// Events reach a queue with their id, headers and bytes, those of a key in order; one without a queue is parked, and
// holds up its key alone; a connection that breaks parks nothing, and what is published again has the same id.
func TestRabbitMQ(t *testing.T) {
	ctx := t.Context()
	url := server(t)
	pool := pgtest.Pool(t)
	require.NoError(t, outbox.Migrate(ctx, pool))
	conn, err := amqp091.Dial(url)
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare("orders", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)

	dials := 0
	p := New(func() (*amqp091.Connection, error) {
		if dials++; dials%2 == 1 {
			return nil, errors.New("refused")
		}
		return amqp091.Dial(url)
	})
	calls := 0
	relay := outbox.Relay{
		MaxAttempts: 2, MinRetry: time.Millisecond, MaxRetry: time.Millisecond,
		Publisher: outbox.PublisherFunc(
			func(ctx context.Context, events []outbox.Event) error {
				if calls++; calls%4 == 0 { // the connection breaks, before or while it publishes
					broken := p.conn
					go func() { _ = broken.Close() }()
				}
				err := p.Publish(ctx, events)
				if calls%4 == 2 {
					return fmt.Errorf("%w: the answer was lost", outbox.ErrUnavailable)
				}
				return err
			}),
	}
	defer p.Close()
	const keys, each = 5, 20
	want := map[string]outbox.Event{}
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for n := range each {
			for k := range keys {
				e := outbox.Event{
					ID: outbox.NewID(), Topic: "orders", Key: fmt.Sprint("k", k), Payload: []byte(fmt.Sprint(k, "\x00\xff", n)),
					Headers: map[string]string{"traceparent": "00-1-2-01"},
				}
				if k == 0 && n == each/2 {
					e.Topic = "nowhere"
				}
				want[e.ID] = e
				if err := outbox.Append(ctx, tx, e); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	parked := int64(0)
	require.Eventually(t, func() bool {
		s, _ := relay.Drain(ctx, pool)
		parked += s.Parked
		lag, err := outbox.Table{}.Lag(ctx, pool)
		require.NoError(t, err)
		return lag.Waiting == each/2 && lag.Parked == 1
	}, time.Minute, 10*time.Millisecond)
	require.EqualValues(t, 1, parked)

	messages, err := ch.Consume("orders", "", true, false, false, false, nil)
	require.NoError(t, err)
	seen, again := map[string]bool{}, 0
	last := map[string]int{}
	for len(seen) < keys*each-each/2 {
		m := <-messages
		e := want[m.MessageId]
		require.Equal(t, e.Payload, m.Body)
		require.Equal(t, amqp091.Table{"traceparent": "00-1-2-01"}, m.Headers)
		if seen[m.MessageId] {
			again++
			continue
		}
		seen[m.MessageId] = true
		var n int
		_, err := fmt.Sscanf(string(m.Body[3:]), "%d", &n)
		require.NoError(t, err)
		require.Equal(t, last[e.Key], n, e.Key)
		last[e.Key]++
	}
	require.Positive(t, again)
}
