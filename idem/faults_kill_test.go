package idem_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgserver"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

const killEnv = "PGONCE_CONSUMER"

// TestMain makes the test binary one of the processes that a test starts, where the environment says so.
func TestMain(m *testing.M) {
	for env, process := range map[string]func(spec string) int{killEnv: consumer, callerEnv: caller} {
		if spec := os.Getenv(env); spec != "" {
			os.Exit(process(spec))
		}
	}
	pgtest.Main(m)
}

// consumerSpec is what a consumer process is told: a file of deliveries (a key a line), a file to which it appends the
// number of each line that it acknowledges, and where it dies.
type consumerSpec struct {
	DSN, Deliveries, Acks, Deaths string

	Point string // "before commit", "after commit", or "" to live
	N     int    // the how manieth COMMIT it is
}

// consumer consumes every delivery that is not acknowledged, with 8 workers, as a consumer of a broker would.
func consumer(spec string) int {
	var c consumerSpec
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return fail(err)
	}
	cfg.MaxConns = 8
	// From the N-th COMMIT on no worker begins anything: to die takes a while, and they would go on meanwhile.
	var ending atomic.Bool
	var commits atomic.Int64
	script := &faultconn.Script{N: c.N, Do: func(faultconn.Message) {
		appendLine(c.Deaths, c.Point)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}}
	die := func(at func(faultconn.Message) bool) func(faultconn.Message) bool {
		return func(m faultconn.Message) bool {
			if !at(m) {
				return false
			}
			if commits.Add(1) >= int64(c.N) {
				ending.Store(true)
			}
			return true
		}
	}
	switch c.Point {
	case "before commit": // fn has sent its first statement, and has its answer
		script.When = die(faultconn.Commit)
	case "after commit": // the server has committed; neither the client nor the sender knows
		script.When = die(faultconn.CommitReply)
	default:
		script = &faultconn.Script{}
	}
	script.Attach(&cfg.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fail(err)
	}
	defer pool.Close()

	lines, err := readLines(c.Deliveries)
	if err != nil {
		return fail(err)
	}
	acked := map[string]bool{}
	acks, _ := readLines(c.Acks) // none yet is no file
	for _, a := range acks {
		acked[a] = true
	}
	queue := make(chan int)
	go func() {
		defer close(queue)
		for i := range lines {
			if !acked[strconv.Itoa(i)] {
				queue <- i
			}
		}
	}()
	var wg sync.WaitGroup
	var failed atomic.Bool
	for range 8 {
		wg.Go(func() {
			for i := range queue {
				if ending.Load() {
					select {}
				}
				_, err := idem.Run(ctx, pool, stripe.Key(lines[i]), func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, lines[i])
					return err
				})
				if err != nil {
					failed.Store(true)
					fail(err)
					continue
				}
				appendLine(c.Acks, strconv.Itoa(i))
			}
		})
	}
	wg.Wait()
	if failed.Load() {
		return 1
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func readLines(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		lines = append(lines, sc.Text())
	}
	return lines, sc.Err()
}

// appendLine is one write, so that lines of several workers do not mix, and a killed process leaves none half written.
func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		panic(err)
	}
}

// writeDeliveries makes n events, each delivered one to four times, late ones after newer ones.
func writeDeliveries(t *testing.T, file string, n int, r *rand.Rand) {
	t.Helper()
	var lines []string
	for i := range n {
		for range 1 + r.IntN(4) {
			lines = append(lines, fmt.Sprintf("event %d", i))
		}
	}
	r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// seeded returns a source of random numbers whose seed is logged with the command that replays it.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("PGONCE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("to replay: PGONCE_SEED=%d go test ./idem -run '^%s$'", seed, t.Name())
	return rand.New(rand.NewPCG(seed, 0))
}

// A consumer is killed again and again, between the first statement of fn and COMMIT, and between COMMIT and the
// acknowledgement, and restarted until all is done: effects = distinct events.
func TestKilledConsumer(t *testing.T) {
	t.Parallel()
	kills := 12
	if long {
		kills = 200
	}
	// Each process is killed at one of its first COMMITs. From then on its workers begin nothing, so that each has at most
	// one event under way: no more than these are done, and the last process, too, has enough left to be killed at.
	const most, workers = 5, 8
	events := kills * (most + workers)
	s := newSite(t)
	r := seeded(t)
	dir := t.TempDir()
	spec := consumerSpec{
		DSN: s.cfg.ConnString(), Deliveries: filepath.Join(dir, "deliveries"), Acks: filepath.Join(dir, "acks"),
		Deaths: filepath.Join(dir, "deaths"),
	}
	writeDeliveries(t, spec.Deliveries, events, r)
	self, err := os.Executable()
	require.NoError(t, err)
	start := func() error {
		text, err := json.Marshal(spec)
		require.NoError(t, err)
		cmd := exec.CommandContext(s.ctx, self)
		cmd.Env = append(os.Environ(), killEnv+"="+string(text))
		cmd.Stderr = os.Stderr
		return cmd.Run()
	}
	begun := time.Now()
	points := make([]string, kills)
	for i := range points {
		points[i] = []string{"before commit", "after commit"}[i%2]
	}
	r.Shuffle(kills, func(i, j int) { points[i], points[j] = points[j], points[i] })
	for _, point := range points {
		spec.Point, spec.N = point, 1+r.IntN(most)
		require.Error(t, start(), "the consumer ended before it could be killed: too few deliveries")
	}
	spec.Point = ""
	require.NoError(t, start())

	deaths, err := readLines(spec.Deaths)
	require.NoError(t, err)
	count := map[string]int{}
	for _, d := range deaths {
		count[d]++
	}
	var effects, distinct, keys int
	require.NoError(t, s.sound.QueryRow(s.ctx, `
		SELECT count(*), count(DISTINCT what), (SELECT count(*) FROM processed_events) FROM effects`).Scan(&effects, &distinct, &keys))
	t.Logf("%d kills: %d before COMMIT, %d between COMMIT and its acknowledgement; %d events, %d effects, %d keys; %v",
		len(deaths), count["before commit"], count["after commit"], events, effects, keys,
		time.Since(begun).Round(time.Second))
	require.Equal(t, map[string]int{"before commit": kills / 2, "after commit": kills / 2}, count)
	require.Equal(t, events, effects)
	require.Equal(t, events, distinct)
	require.Equal(t, events, keys)
}

// The server is killed and restarted under load. The workers deliver again what failed, and recover by themselves.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	kills, events := 2, 600
	if long {
		kills, events = 20, 20000
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	srv, err := pgserver.Start(ctx, pgserver.Config{})
	require.NoError(t, err)
	defer func() { _ = srv.Stop() }()
	pool, err := pgxpool.New(ctx, srv.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, dedup.Migrate(ctx, pool))
	_, err = pool.Exec(ctx, conformance.Schema)
	require.NoError(t, err)

	r := seeded(t)
	type delivery struct{ event string }
	queue := make(chan delivery, 10*events) // never full: a failed delivery is put back
	var left atomic.Int64
	for i := range events {
		for range 1 + r.IntN(3) {
			queue <- delivery{fmt.Sprintf("event %d", i)}
			left.Add(1)
		}
	}
	var executed, duplicate, again, unknown atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for left.Load() > 0 && ctx.Err() == nil {
				select {
				case d := <-queue:
					out, err := idem.Run(ctx, pool, stripe.Key(d.event), func(ctx context.Context, tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, d.event)
						return err
					})
					switch {
					case err != nil && !idem.Retryable(err):
						t.Errorf("not retryable: %v", err)
						left.Add(-1)
					case err != nil:
						again.Add(1)
						queue <- d
					case out == idem.Executed:
						executed.Add(1)
						left.Add(-1)
					default:
						duplicate.Add(1)
						left.Add(-1)
					}
					if own := new(idem.Error); errors.As(err, &own) && own.Unknown {
						unknown.Add(1)
					}
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	begun := time.Now()
	total := left.Load()
	for i := range kills {
		// Each kill waits for its share of the load, so that all of them fall into it.
		want := total - total*int64(i+1)/int64(kills+2)
		require.Eventually(t, func() bool { return left.Load() <= want }, 2*time.Minute, time.Millisecond)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Restart(ctx))
	}
	wg.Wait()
	require.Zero(t, left.Load(), "the workers did not recover")
	var effects, distinct int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT what) FROM effects`).Scan(&effects, &distinct))
	t.Logf("%d kills of the server: %d deliveries, %d executed, %d duplicates, %d delivered again, of them %d of "+
		"unknown outcome; %d effects; %v",
		kills, total, executed.Load(), duplicate.Load(), again.Load(), unknown.Load(), effects,
		time.Since(begun).Round(time.Second))
	require.Equal(t, events, effects)
	require.Equal(t, events, distinct)
}
