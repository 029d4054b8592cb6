package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// A relay whose ctx ends while any of its statements is on its way leaves no lane leased: after a deployment nothing
// lies still for a lease.
func TestStopAnywhere(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		pool := migrated(t)
		add(t, pool, ev("k", 1))
		ctx, cancel := context.WithCancel(t.Context())
		s := &faultconn.Script{
			From: faultconn.Frontend, Do: func(faultconn.Message) { cancel() }, N: n,
			When: func(m faultconn.Message) bool { return strings.Contains(m.SQL, "outbox_lanes") },
		}
		b := &broker{}
		relays := watched(t, pool, s)
		err := outbox.Relay{Publisher: b}.Run(ctx, relays)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, s.Hits())
		relays.Close()
		require.Eventually(t, func() bool { // then what was on its way has come
			return count(t, pool, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'watched'`) == 0
		}, 20*time.Second, time.Millisecond)
		require.Zero(t, count(t, pool, `SELECT count(*) FROM outbox_lanes WHERE lease_until > now()`), "statement %d", n)
	}
}

// looked reports whether a relay has looked for events since it deleted some, and has its answer.
func looked(s *faultconn.Script) bool {
	const deleted, looks, knows = 1, 2, 3
	step := 0
	for _, m := range s.Trace() {
		switch {
		case strings.Contains(m.SQL, "DELETE FROM"):
			step = deleted
		case step == deleted && strings.Contains(m.SQL, "SKIP LOCKED"):
			step = looks
		case step == looks && m.Type == "ReadyForQuery" && m.Status == 'I':
			step = knows
		}
	}
	return step == knows
}

// What was announced while nobody listened is not waited for: whoever begins to listen wakes the relay.
func TestListenWakesAtFirst(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := migrated(t)
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	run, stop := context.WithCancel(ctx)
	wake := make(chan struct{}, 1)
	b := &broker{}
	relayed, listened := make(chan error, 1), make(chan error, 1)
	script := &faultconn.Script{}
	relays := watched(t, pool, script)
	go func() { relayed <- outbox.Relay{Publisher: b, Poll: time.Hour, Wake: wake}.Run(run, relays) }()
	add(t, pool, ev("k", 1))
	wake <- struct{}{}
	require.Eventually(t, func() bool { return len(b.payloads()) == 1 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return looked(script) }, 20*time.Second, time.Millisecond)
	add(t, pool, ev("k", 2))
	require.NoError(t, outbox.Notify(ctx, pool))
	go func() { listened <- outbox.Listen(run, conn, wake) }()
	require.Eventually(t, func() bool { return len(b.payloads()) == 2 }, 10*time.Second, time.Millisecond)
	stop()
	<-relayed
	<-listened
}
