package idem_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// long asks for the long form of the fault tests. Its figures are written down in internal/RUNS.md.
var long = os.Getenv("PGONCE_LONG") != ""

// site is a database that is reached over a sound pool, and over pools whose connections a script breaks.
type site struct {
	*testing.T
	ctx   context.Context
	sound *pgxpool.Pool
	cfg   *pgxpool.Config
}

func newSite(t *testing.T) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cfg := pgtest.Config(t)
	return &site{t, ctx, migrated(t, pgtest.PoolConfig(t, cfg.Copy())), cfg}
}

// broken returns a pool over the script. Its connections are made by need only, so that messages can be counted.
func (s *site) broken(script *faultconn.Script, mode pgx.QueryExecMode) *pgxpool.Pool {
	s.Helper()
	cfg := s.cfg.Copy()
	cfg.ConnConfig.DefaultQueryExecMode = mode
	cfg.MaxConns, cfg.MinConns = 2, 0
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	script.Attach(&cfg.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(s.ctx, cfg)
	require.NoError(s, err)
	return pool
}

// open returns a sound pool from a changed configuration.
func (s *site) open(cfg *pgxpool.Config) *pgxpool.Pool {
	s.Helper()
	pool, err := pgxpool.NewWithConfig(s.ctx, cfg)
	require.NoError(s, err)
	s.Cleanup(pool.Close)
	return pool
}

// effect leaves a row for the key, and counts its calls.
func (s *site) effect(key idem.Key, calls *atomic.Int32) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		calls.Add(1)
		_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, key.ID())
		return err
	}
}

func (s *site) effects(key idem.Key) (n int) {
	s.Helper()
	require.NoError(s, s.sound.QueryRow(s.ctx, `SELECT count(*) FROM effects WHERE what = $1`, key.ID()).Scan(&n))
	return n
}

// deliver runs the key over the sound pool, wants one of the outcomes, and one effect afterwards.
func (s *site) deliver(key idem.Key, want ...idem.Outcome) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	out, err := idem.Run(ctx, s.sound, key, s.effect(key, new(atomic.Int32)))
	require.NoError(s, err, "the same key again")
	require.Contains(s, want, out)
	require.Equal(s, 1, s.effects(key))
}

// gone closes a broken pool, which must return, and waits until the server has no transaction of it open.
func (s *site) gone(pool *pgxpool.Pool) {
	s.Helper()
	// A broken connection is taken away in the background.
	require.Eventually(s, func() bool { return pool.Stat().AcquiredConns() == 0 }, 20*time.Second, time.Millisecond,
		"a connection is lost to the pool")
	closes(s.T, pool)
	require.True(s, newDB(s.sound).Idle(s.ctx), "a transaction is still open")
}

// modes are those of the short and of the long form.
func modes() []pgx.QueryExecMode {
	if long {
		return execModes
	}
	return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
}

var keyNumber atomic.Int64

func newKey() idem.Key { return stripe.Key(fmt.Sprintf("evt_%d", keyNumber.Add(1))) }

// hooked calls before each transaction that Run begins.
type hooked struct {
	*pgxpool.Pool
	begins atomic.Int32
	before func(n int32)
}

func (h *hooked) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	h.before(h.begins.Add(1))
	return h.Pool.SendBatch(ctx, b)
}

// breakable is what the fault tests of the suite need, in one mode.
func breakable(mode pgx.QueryExecMode) func(*testing.T) conformance.Breakable {
	return func(t *testing.T) conformance.Breakable {
		s := newSite(t)
		return conformance.Breakable{Sound: newDB(s.sound), Broken: func(script *faultconn.Script) (conformance.DB, func()) {
			pool := s.broken(script, mode)
			return newDB(pool), func() { s.gone(pool) }
		}}
	}
}

func TestLostCommit(t *testing.T) {
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) { conformance.LostCommit(t, breakable(mode)) })
	}
}

func TestUnknownCommit(t *testing.T) {
	conformance.UnknownCommit(t, breakable(pgx.QueryExecModeCacheStatement))
}

func TestEndsDuringCommit(t *testing.T) {
	conformance.EndsDuringCommit(t, breakable(pgx.QueryExecModeCacheStatement))
}

func TestCutAtEveryMessage(t *testing.T) { eachCut(t, conformance.CutAtEveryMessage) }

func TestCancelAtEveryMessage(t *testing.T) { eachCut(t, conformance.CancelAtEveryMessage) }

func eachCut(t *testing.T, test func(*testing.T, conformance.Cuts)) {
	short := map[pgx.QueryExecMode][]string{
		pgx.QueryExecModeCacheStatement: {"Run", "Apply"}, pgx.QueryExecModeSimpleProtocol: {"Do with MaxWait", "Apply"},
	}
	for _, mode := range modes() {
		cuts := conformance.Cuts{Open: breakable(mode), Ways: short[mode], Long: long}
		if long {
			cuts.Ways = nil
		}
		t.Run(mode.String(), func(t *testing.T) { test(t, cuts) })
	}
}

// Executed only where the committed row is its own: here, somebody else's delivery came in between.
func TestLostCommitOfSomebodyElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropBefore}
	key := stripe.Key("evt_1")
	var calls atomic.Int32
	pool := &hooked{Pool: s.broken(script, pgx.QueryExecModeCacheStatement), before: func(n int32) {
		if n == 2 {
			s.deliver(key, idem.Executed)
		}
	}}
	out, err := idem.Run(s.ctx, pool, key, s.effect(key, &calls))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, 1, s.effects(key))
	s.gone(pool.Pool)
}

// The same after a failover that lost our transaction: the id of it may have been given out again, and committed.
func TestLostCommitIsNotJudgedByTheIDAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// The reply is lost after the commit; then the row is replaced by somebody else's, as a restored server would have it.
	script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropReply}
	key := stripe.Key("evt_1")
	pool := &hooked{Pool: s.broken(script, pgx.QueryExecModeCacheStatement), before: func(n int32) {
		if n == 2 {
			_, err := s.sound.Exec(s.ctx, `DELETE FROM processed_events`)
			require.NoError(t, err)
			_, err = s.sound.Exec(s.ctx, `INSERT INTO processed_events (source, operation, key) VALUES ('stripe', 'activate', 'evt_1')`)
			require.NoError(t, err)
		}
	}}
	out, err := idem.Run(s.ctx, pool, key, s.effect(key, new(atomic.Int32)))
	require.NoError(t, err)
	require.Equal(t, idem.Duplicate, out)
	s.gone(pool.Pool)
}

// The network loses COMMIT silently: the server keeps the transaction, and the key, until it notices.
func TestLostCommitThatHoldsTheKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropBefore, KeepServer: true}
	pool := s.broken(script, pgx.QueryExecModeCacheStatement)
	key := stripe.Key("evt_1")
	out, err := idem.Once{MaxWait: 200 * time.Millisecond}.Run(s.ctx, pool, key, s.effect(key, new(atomic.Int32)))
	conformance.WantUnknown(t, out, err)
	require.ErrorIs(t, err, idem.ErrInProgress)
	script.Release()
	s.gone(pool)
	s.deliver(key, idem.Executed)
}

// The key's own time passes out of the window while the COMMIT is lost: no row is no answer, for the claim that would
// wait for the old transaction is not made any more.
func TestLostCommitOfAnExpiredKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	script := &faultconn.Script{When: faultconn.Commit, Mode: faultconn.DropBefore, KeepServer: true}
	defer script.Release()
	const window = 3 * time.Second
	key := stripe.Key("evt_1").OccurredAt(time.Now())
	pool := &hooked{Pool: s.broken(script, pgx.QueryExecModeCacheStatement), before: func(n int32) {
		if n == 2 {
			time.Sleep(window) // until the key's time has passed out of the window
		}
	}}
	once := idem.Once{Table: dedup.Table{Retention: window}}
	out, err := once.Run(s.ctx, pool, key, s.effect(key, new(atomic.Int32)))
	conformance.WantUnknown(t, out, err)
	require.ErrorIs(t, err, idem.ErrExpired)
	script.Release()
	s.gone(pool.Pool)
}
