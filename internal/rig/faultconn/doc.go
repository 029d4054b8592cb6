// Package faultconn breaks the connection between a client and a real PostgreSQL server, at a chosen message of the
// protocol. It is for tests of what a client makes of lost COMMITs, lost replies, stalls, resets and killed processes.
//
// A [Script] wraps the client's connections. It counts the messages of both directions, keeps a readable trace of them,
// and does one thing to one of them: calls a hook, loses the message or the reply to it, stalls, resets.
//
// # Basic use
//
// The reply to the first COMMIT is lost, after the server has surely committed:
//
//	s := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropReply}
//	cfg := pgtest.Config(t)
//	s.Attach(&cfg.ConnConfig.Config)
//	pool := pgtest.PoolConfig(t, cfg)
//	err := work(ctx, pool)
//	require.Equal(t, 1, s.Hits(), "%v", s) // the trace, when it did not happen
//
// A COMMIT that never arrives is DropBefore instead of DropReply. With KeepServer the server does not notice for now,
// and keeps the transaction and its locks until [Script.Release].
//
// Cut at every message, one after the other, with a new pool each time. A first run, in which nothing is broken,
// tells how many there are:
//
//	for _, from := range []faultconn.Side{faultconn.Frontend, faultconn.Backend} {
//		for n := 1; n <= counted.Count(from); n++ {
//			s := &faultconn.Script{From: from, N: n, Mode: faultconn.DropBefore}
//			...
//		}
//	}
//
// With When: [Statement] it is every statement: DropBefore and DropReply are then before and after it, and
// [Script.Matches] is their number. [Script.Pause] keeps preparations out of the count. A pool that lies idle for a
// second pings its connections, which counts as well; where that may happen, set ShouldPing of the pool's
// configuration.
//
// # Hooks
//
// Do runs at the message, in the middle of the client's Write or Read, and may do what it likes to the rest of the
// world:
//
//	Do: func(m faultconn.Message) { cancel(); m.AwaitDeadline() }                 // a context ends just there
//	Do: func(m faultconn.Message) { admin.Exec(ctx, terminate, m.PID) }           // the session is killed
//	Do: func(m faultconn.Message) { syscall.Kill(os.Getpid(), syscall.SIGKILL) }  // the process is
//
// # Drivers
//
// [Script.Attach] is for pgx, with TLS or without. A *Script is also a dialer of lib/pq (give it to
// Connector.Dialer), and [Script.Wrap] is for everything else that can be given a net.Conn; both need sslmode=disable
// to see messages.
//
// After a fault pgx sends a cancel request on a connection of its own. It is in the trace, and passes, unless Refuse
// is set or Outside has it chosen.
package faultconn
