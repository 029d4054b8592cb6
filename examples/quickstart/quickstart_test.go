package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

var seed = flag.Uint64("quickstart.seed", 0, "the seed of TestAnyOrder; 0: by the clock")

// What must hold after any run of the file that comes with the program.
const (
	shippedEvents = 28
	shippedProof  = "proof: 28 effects = 28 distinct events, none lost, none repeated"
)

var shippedStates = map[string]string{
	"sub_zJoDX9YVFx": "canceled",
	"sub_9AtPGys7RX": "canceled",
	"sub_BENb3WNME7": "canceled",
	"sub_4ow7VTnJEq": "active",
	"sub_9xZDmfmNcw": "incomplete_expired",
}

func opener(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

// runOn runs the program's run on a database.
func runOn(t *testing.T, ctx context.Context, dsn string, open func() (io.ReadCloser, error)) (out string, err error) {
	t.Helper()
	var b strings.Builder
	err = run(ctx, dsn, open, &b, io.Discard)
	return b.String(), err
}

func poolOn(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func query[T any](t *testing.T, pool *pgxpool.Pool, sql string) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return all
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// effects returns the events of the ledger. It fails the test where one is there twice, or where key and effect are not
// there together.
func effects(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	ledger := query[string](t, pool, `SELECT provider || ' ' || event_id FROM quickstart_ledger ORDER BY 1`)
	keys := query[string](t, pool, `SELECT source || ' ' || key FROM processed_events ORDER BY 1`)
	require.Equal(t, keys, ledger, "each key has one effect, and each effect its key")
	return ledger
}

// requireShipped fails the test unless the database is as it must be after the file that comes with the program.
func requireShipped(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Len(t, effects(t, pool), shippedEvents)
	states := map[string]string{}
	for _, s := range query[string](t, pool,
		`SELECT stripe_subscription_id || ' ' || status FROM quickstart_subscriptions`) {
		id, status, _ := strings.Cut(s, " ")
		states[id] = status
	}
	require.Equal(t, shippedStates, states)
}

func TestShippedFile(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	for i, own := range []int{shippedEvents, 0} {
		out, err := runOn(t, t.Context(), dsn, opener(shipped))
		require.NoError(t, err, "run %d", i)
		require.Contains(t, out, shippedProof)
		require.Contains(t, out, fmt.Sprintf("rows in the database, %d of them from this run", own))
		require.Contains(t, out, "3 canceled, 1 active, 1 incomplete_expired")
		requireShipped(t, poolOn(t, dsn))
	}
}

func TestAnyOrder(t *testing.T) {
	t.Parallel()
	start := *seed
	if start == 0 {
		start = uint64(time.Now().UnixNano())
	}
	for s := start; s < start+3; s++ {
		t.Run(fmt.Sprint("seed ", s), func(t *testing.T) {
			t.Parallel()
			t.Logf("replay with: go test -run TestAnyOrder ./examples/quickstart -quickstart.seed=%d", s)
			r := rand.New(rand.NewPCG(s, 0))
			lines := strings.SplitAfter(strings.TrimRight(shipped, "\n")+"\n", "\n")
			r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
			dsn := pgtest.DSN(t)
			out, err := runOn(t, t.Context(), dsn, opener(strings.Join(lines, "")))
			require.NoError(t, err)
			require.Contains(t, out, shippedProof)
			requireShipped(t, poolOn(t, dsn))
		})
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, after := range []int{1, 20, 51} {
		t.Run(fmt.Sprint("before line ", after), func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := newLineReader(shipped, func(n int) {
				if n == after {
					cancel()
				}
			})
			_, err := runOn(t, ctx, dsn, func() (io.ReadCloser, error) { return io.NopCloser(r), nil })
			require.ErrorIs(t, err, context.Canceled)
			require.Less(t, r.n, after+3, "it must not read on")
			pool := poolOn(t, dsn)
			first := len(effects(t, pool))
			require.LessOrEqual(t, first, after)
			if after > 1+workers {
				require.NotZero(t, first)
			}

			out, err := runOn(t, t.Context(), dsn, opener(shipped))
			require.NoError(t, err)
			require.Contains(t, out, shippedProof)
			require.Contains(t, out, fmt.Sprintf(", %d of them from this run", shippedEvents-first))
			requireShipped(t, pool)
		})
	}
}

// lockLedger makes a database in which every effect waits until the returned function is called.
func lockLedger(t *testing.T) (pool *pgxpool.Pool, unlock func()) {
	t.Helper()
	pool = poolOn(t, pgtest.DSN(t))
	require.NoError(t, dedup.Migrate(t.Context(), pool))
	execute(t, pool, schema)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `BEGIN; LOCK TABLE quickstart_ledger IN EXCLUSIVE MODE`)
	require.NoError(t, err)
	return pool, func() { require.NoError(t, conn.Close(t.Context())) }
}

// waitForEffects returns when n effects wait for the lock.
func waitForEffects(t *testing.T, pool *pgxpool.Pool, n int64) {
	t.Helper()
	const waiting = `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'quickstart_ledger'::regclass`
	require.Eventually(t, func() bool { return query[int64](t, pool, waiting)[0] == n }, 10*time.Second,
		5*time.Millisecond)
}

// A delivery that is cut off in its transaction leaves neither key nor effect.
func TestCutOff(t *testing.T) {
	t.Parallel()
	pool, unlock := lockLedger(t)
	d := first(t, shipped)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := handle(ctx, pool, d)
		done <- err
	}()
	waitForEffects(t, pool, 1)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	unlock()
	require.Empty(t, effects(t, pool))

	res, err := handle(t.Context(), pool, d)
	require.NoError(t, err)
	require.Equal(t, idem.Executed, res.outcome)
	require.Len(t, effects(t, pool), 1)
}

// Deliveries that are in flight when the program is interrupted come to their end.
func TestInFlight(t *testing.T) {
	t.Parallel()
	pool, unlock := lockLedger(t)
	var b strings.Builder
	for i := range 3 * workers {
		fmt.Fprintf(&b, `{"provider":"github","id":"%d","body":"{}"}`+"\n", i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	feeder, err := connect(t.Context(), pool.Config().ConnString())
	require.NoError(t, err)
	defer feeder.Close()
	var counted tally
	done := make(chan error)
	go func() { done <- feed(ctx, feeder, strings.NewReader(b.String()), &counted) }()
	waitForEffects(t, pool, workers)
	cancel()
	unlock()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Equal(t, workers, counted.now().executed)
	require.Zero(t, counted.now().failed)
	require.Len(t, effects(t, pool), workers)
}

func first(t *testing.T, text string) delivery {
	t.Helper()
	for d, err := range read(strings.NewReader(text)) {
		require.NoError(t, err)
		return d
	}
	t.Fatal("there is no delivery")
	return delivery{}
}

// The server ends all connections in the middle, twice.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	admin := poolOn(t, dsn)
	const others = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`
	var killed int64
	r := newLineReader(shipped, func(n int) {
		if n == 15 || n == 35 {
			killed += query[int64](t, admin, others)[0]
		}
	})
	opened := 0
	open := func() (io.ReadCloser, error) {
		if opened++; opened == 1 {
			return io.NopCloser(r), nil
		}
		return opener(shipped)()
	}
	out, err := runOn(t, t.Context(), dsn, open)
	require.NoError(t, err)
	require.NotZero(t, killed)
	require.Contains(t, out, shippedProof)
	requireShipped(t, admin)
}

// The proof is worth something: it does not hold after a lost and a repeated effect, though their number is right.
func TestNotProven(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	_, err := runOn(t, t.Context(), dsn, opener(shipped))
	require.NoError(t, err)
	pool := poolOn(t, dsn)
	execute(t, pool, `DELETE FROM quickstart_ledger WHERE event_id = (SELECT min(event_id) FROM quickstart_ledger)`)
	execute(t, pool, `INSERT INTO quickstart_ledger (provider, event_id) SELECT provider, event_id FROM quickstart_ledger LIMIT 1`)
	out, err := runOn(t, t.Context(), dsn, opener(shipped))
	require.ErrorContains(t, err, "not every event has exactly one effect")
	require.Contains(t, out, "NOT PROVEN: 28 effects, 28 distinct events, 1 lost, 1 repeated")
}

func TestSchemaOfTheDSN(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := poolOn(t, dsn)
	execute(t, pool, `CREATE SCHEMA "my own"`)
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	q := u.Query()
	q.Set("search_path", `"my own"`)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes a plus for a plus
	_, err = runOn(t, t.Context(), u.String(), opener(shipped))
	require.NoError(t, err)
	schemas := `SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relname IN
		('processed_events', 'quickstart_ledger', 'quickstart_subscriptions')`
	require.Equal(t, []string{`"my own"`}, query[string](t, pool, schemas))
}

func TestMalformedLine(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	lines := strings.SplitAfter(shipped, "\n")
	broken := slices.Clone(lines)
	broken[20] = broken[20][:len(broken[20])/2] + "\n"
	_, err := runOn(t, t.Context(), dsn, opener(strings.Join(broken, "")))
	require.ErrorContains(t, err, "line 21: not JSON")
	require.ErrorContains(t, err, "before that: 20 deliveries,")
	pool := poolOn(t, dsn)
	want := map[string]bool{}
	for d, err := range read(strings.NewReader(strings.Join(lines[:20], ""))) {
		require.NoError(t, err)
		want[d.Provider+" "+d.ID] = true
	}
	require.Len(t, effects(t, pool), len(want))

	_, err = runOn(t, t.Context(), dsn, opener(shipped))
	require.NoError(t, err)
	requireShipped(t, pool)
}

// A delivery that cannot succeed does not keep the others from it, and is named at the end.
func TestFailedDelivery(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	const unknown = `{"provider":"stripe","id":"evt_s3cret","body":"{\"created\":1793880000,` +
		`\"data\":{\"object\":{\"id\":\"sub_s3cret\",\"object\":\"subscription\",\"status\":\"s3cret\"}}}"}` + "\n"
	out, err := runOn(t, t.Context(), dsn, opener(unknown+shipped+unknown))
	require.ErrorContains(t, err, "2 deliveries failed")
	require.ErrorContains(t, err, "line 1: the subscription's status is not one that this program knows")
	require.ErrorContains(t, err, "line 54: ")
	require.NotContains(t, err.Error(), "s3cret")
	require.Contains(t, out, "NOT PROVEN: 28 effects, 29 distinct events, 1 lost, 0 repeated")
	requireShipped(t, poolOn(t, dsn))

	// Once it is mended, it goes through.
	out, err = runOn(t, t.Context(), dsn, opener(strings.ReplaceAll(unknown, `\"s3cret\"`, `\"paused\"`)+shipped))
	require.NoError(t, err)
	require.Contains(t, out, "proof: 29 effects = 29 distinct events")
}

// Several programs feed the same file to one new database at once.
func TestSeveralAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	const programs = 3
	outs, errs := make([]string, programs), make([]error, programs)
	var wg sync.WaitGroup
	for i := range programs {
		wg.Go(func() { outs[i], errs[i] = runOn(t, t.Context(), dsn, opener(shipped)) })
	}
	wg.Wait()
	for i := range programs {
		require.NoError(t, errs[i])
		require.Contains(t, outs[i], shippedProof)
	}
	requireShipped(t, poolOn(t, dsn))
}

// IF NOT EXISTS alone would not do: in several sessions at once it fails on a unique index of the catalog.
func TestSchemaAtOnce(t *testing.T) {
	t.Parallel()
	pool, err := connect(t.Context(), pgtest.DSN(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for range 5 {
		var wg sync.WaitGroup
		errs := make([]error, workers)
		for i := range workers {
			wg.Go(func() { _, errs[i] = pool.Exec(t.Context(), schema) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		execute(t, pool, `DROP TABLE quickstart_ledger, quickstart_subscriptions`)
	}
}
