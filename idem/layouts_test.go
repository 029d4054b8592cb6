package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/pgerr"
)

// program claims an id and leaves an effect, in whatever table.
type program func(ctx context.Context, id string) error

// traffic delivers ids, each many times, by several programs at once, while a table is changed under them.
type traffic struct {
	*testing.T
	pool *pgxpool.Pool
	ids  []string
	rand *rand.Rand // of one goroutine

	mu       sync.RWMutex
	programs []program

	delivered atomic.Int64
}

func newTraffic(t *testing.T, n int) *traffic {
	cfg := pgtest.Config(t)
	cfg.MaxConns = 8
	tr := &traffic{T: t, pool: pgtest.PoolConfig(t, cfg), rand: seeded(t)}
	tr.exec(`CREATE TABLE effects (what text NOT NULL)`)
	for i := range n {
		// In the middle of a week and near its ends; with what Scope.Key escapes; with the time inside.
		tr.ids = append(tr.ids, []string{fmt.Sprintf("evt_%d", i), fmt.Sprintf("a/b%%%d", i), uuid7(tr.at(i), i)}[i%3])
	}
	return tr
}

func (tr *traffic) at(i int) time.Time { return lastMonday().Add(time.Duration(i%40-20) * time.Hour) }

func (tr *traffic) exec(sql string) {
	tr.Helper()
	_, err := tr.pool.Exec(tr.Context(), sql)
	require.NoError(tr, err)
}

// effect is what each program does once.
func effect(id string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects (what) VALUES ($1)`, id)
		return err
	}
}

// run has programs deliver random ids until change returns.
func (tr *traffic) run(change func()) {
	ctx, cancel := context.WithCancel(tr.Context())
	var wg sync.WaitGroup
	for range 4 {
		r := rand.New(rand.NewPCG(tr.rand.Uint64(), 0))
		wg.Go(func() {
			for ctx.Err() == nil {
				tr.deliver(tr.ids[r.IntN(len(tr.ids))], r)
			}
		})
	}
	change()
	cancel()
	wg.Wait()
}

// deliver delivers an id until it is acknowledged, to programs that r chooses.
func (tr *traffic) deliver(id string, r *rand.Rand) {
	for try := 0; ; try++ {
		tr.mu.RLock()
		p := tr.programs[r.IntN(len(tr.programs))]
		err := p(tr.Context(), id)
		tr.mu.RUnlock()
		tr.delivered.Add(1)
		// 23505: not the arbiter's. A home-made program knows no more than that it must come again.
		if err == nil || tr.Failed() {
			return
		}
		if !idem.Retryable(err) && !pgerr.Is(err, "23505") || try > 100 {
			tr.Errorf("%s: %v", id, err)
			return
		}
	}
}

// use changes the programs: it waits for the deliveries of those before, as the stop of a process does.
func (tr *traffic) use(programs ...program) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.programs = programs
}

// more waits until some more ids were delivered.
func (tr *traffic) more() {
	tr.Helper()
	until := tr.delivered.Load() + 50
	require.Eventually(tr, func() bool { return tr.delivered.Load() >= until || tr.Failed() }, time.Minute,
		time.Millisecond)
}

// file runs one of the files as psql would, again where a lock was not had in time.
func (tr *traffic) file(name string) {
	tr.Helper()
	sql, err := os.ReadFile(filepath.Join("..", "dedup", "layouts", name))
	require.NoError(tr, err)
	for try := 0; ; try++ {
		conn, err := pgx.Connect(tr.Context(), tr.pool.Config().ConnString())
		require.NoError(tr, err)
		_, err = conn.PgConn().Exec(tr.Context(), string(sql)).ReadAll()
		_ = conn.Close(tr.Context())
		if err == nil {
			return
		}
		require.True(tr, pgerr.Is(err, "55P03") && try < 30, "%s: %v", name, err)
	}
}

// wantOnce wants the effect of every id once, and another delivery of each to be a duplicate.
func (tr *traffic) wantOnce() {
	tr.Helper()
	for _, id := range tr.ids {
		tr.deliver(id, tr.rand)
	}
	var ids, effects int
	require.NoError(tr, tr.pool.QueryRow(tr.Context(), `SELECT count(DISTINCT what), count(*) FROM effects`).Scan(&ids,
		&effects))
	require.Equal(tr, []int{len(tr.ids), len(tr.ids)}, []int{ids, effects}, "ids, and their effects")
}

func (tr *traffic) count(sql string) (n int) {
	tr.Helper()
	require.NoError(tr, tr.pool.QueryRow(tr.Context(), sql).Scan(&n))
	return n
}

// through returns a program that claims with once.
func (tr *traffic) through(once idem.Once, timed bool) program {
	times := map[string]time.Time{}
	for i, id := range tr.ids {
		times[id] = tr.at(i)
	}
	return func(ctx context.Context, id string) error {
		key := stripe.Key(id)
		if timed && len(id) != 36 {
			key = key.OccurredAt(times[id])
		}
		_, err := once.Run(ctx, tr.pool, key, effect(id))
		return err
	}
}

// homeMade returns a program as people write it by hand.
func (tr *traffic) homeMade(insert string) program {
	return func(ctx context.Context, id string) error {
		return pgx.BeginFunc(ctx, tr.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, insert, id)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return effect(id)(ctx, tx)
		})
	}
}

func TestLayoutPlainToHash(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, 1200)
	require.NoError(t, dedup.Migrate(t.Context(), tr.pool, dedup.Table{},
		dedup.Table{Name: "processed_events_new", Layout: dedup.Hash(8)}))
	for _, id := range tr.ids[:500] {
		tr.exec(fmt.Sprintf(`INSERT INTO processed_events (source, operation, key) VALUES ('stripe', 'activate', '%s'); INSERT INTO effects VALUES ('%[2]s')`,
			stripe.Key(id).ID(), id))
	}
	// Reservations and deletions go on, too.
	var reserved, forgotten atomic.Int64
	moves := func(ctx context.Context, _ string) error {
		n := reserved.Add(1)
		r, _, err := idem.Once{}.Reserve(ctx, tr.pool, stripe.Key("reserved", fmt.Sprint(n)), time.Minute)
		if err != nil {
			return err
		}
		if err := pgx.BeginFunc(ctx, tr.pool, func(tx pgx.Tx) error { return r.Confirm(ctx, tx, []byte("v")) }); err != nil {
			return err
		}
		key := stripe.Key("forgotten", fmt.Sprint(forgotten.Add(1)))
		if _, err := idem.Run(ctx, tr.pool, key, nothing); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, tr.pool, func(tx pgx.Tx) error { return idem.Once{}.Forget(ctx, tx, key) })
	}
	plain := tr.through(idem.Once{}, false)
	tr.use(plain, plain, plain, moves)
	tr.run(func() {
		tr.more()
		tr.file("plain_to_hash/1_mirror.sql")
		tr.more()
		tr.file("plain_to_hash/2_backfill.sql")
		sql, err := os.ReadFile("../dedup/layouts/plain_to_hash/3_check.sql")
		require.NoError(t, err)
		require.Zero(t, tr.count(string(sql)))
		tr.file("plain_to_hash/4_swap.sql")
		tr.more()
	})
	require.NoError(t, dedup.Migrate(t.Context(), tr.pool, dedup.Table{Layout: dedup.Hash(8)}),
		"as every program does at its start")
	require.NoError(t, dedup.Verify(t.Context(), tr.pool, dedup.Table{Layout: dedup.Hash(8)}))
	tr.use(plain)
	tr.wantOnce()
	require.Equal(t, int(reserved.Load()),
		tr.count(`SELECT count(*) FROM processed_events WHERE key LIKE 'reserved/%' AND value = 'v' AND lease_until IS NULL`))
	require.Zero(t, tr.count(`SELECT count(*) FROM processed_events WHERE key LIKE 'forgotten/%'`))
	require.Positive(t, reserved.Load())
}

func TestLayoutPlainToWeekly(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, 500)
	once := idem.Once{Table: dedup.Table{Name: "processed_events_weekly", Layout: dedup.Weekly}}
	require.NoError(t, dedup.Migrate(t.Context(), tr.pool, dedup.Table{}, once.Table))
	before, after := tr.through(idem.Once{}, false), tr.through(once, true)
	late := tr.ids[450:] // for the new programs alone: on a busy machine the old ones get through all of the others
	tr.ids = tr.ids[:450]
	tr.use(before)
	tr.run(func() {
		tr.more()
		tr.file("plain_to_weekly/1_both.sql")
		tr.use(before, after)
		tr.more()
		tr.more()

		// What the one kind of program has reserved the other one leaves alone.
		for i, holder := range []idem.Once{{}, once} {
			key := stripe.Key("reserved", fmt.Sprint(i)).OccurredAt(time.Now())
			r, _, err := holder.Reserve(t.Context(), tr.pool, key, time.Millisecond)
			require.NoError(t, err)
			other := []idem.Once{once, {}}[i]
			_, err = other.Run(t.Context(), tr.pool, key, never(t))
			require.True(t, idem.Retryable(err), "%v", err)
			_, _, err = other.Reserve(t.Context(), tr.pool, key, time.Minute)
			require.True(t, idem.Retryable(err), "%v", err)
			require.NoError(t, pgx.BeginFunc(t.Context(), tr.pool,
				func(tx pgx.Tx) error { return r.Confirm(t.Context(), tx, []byte("v")) }))
			_, out, err := once.Reserve(t.Context(), tr.pool, key, time.Minute)
			require.NoError(t, err)
			require.Equal(t, idem.Duplicate, out, "settled by a program of kind %d", i)
		}
		tr.use(after)
		tr.more()
	})
	tr.ids = append(tr.ids, late...)
	tr.wantOnce()
	tr.wantTriggerReported(once.Table)
	tr.forgets(stripe.Key("forgotten").OccurredAt(time.Now()), func(ctx context.Context, tx pgx.Tx, key idem.Key) error {
		return idem.Once{}.Forget(ctx, tx, key)
	}, once)

	// What the old table alone knows to be unfinished keeps it from being dropped.
	open, _, err := idem.Once{}.Reserve(t.Context(), tr.pool, stripe.Key("unfinished"), time.Microsecond)
	require.NoError(t, err)
	last, err := os.ReadFile("../dedup/layouts/plain_to_weekly/2_weekly_only.sql")
	require.NoError(t, err)
	_, err = tr.pool.Exec(t.Context(), string(last), pgx.QueryExecModeSimpleProtocol)
	require.True(t, pgerr.Is(err, "P0001"), "%v", err)
	tr.pool.Reset()
	require.NoError(t, open.Fail(t.Context(), tr.pool, nil))
	reserved, _, err := once.Reserve(t.Context(), tr.pool, stripe.Key("reserved anew").OccurredAt(time.Now()), time.Minute)
	require.NoError(t, err)

	// A window later. What the new programs have claimed, or met, is in the new table.
	_, err = tr.pool.Exec(t.Context(),
		`DELETE FROM effects WHERE what NOT IN (SELECT replace(replace(key, '%2F', '/'), '%25', '%') FROM processed_events_weekly)`)
	require.NoError(t, err)
	kept := map[string]bool{}
	rows, err := tr.pool.Query(t.Context(), `SELECT what FROM effects`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, id := range all {
		kept[id] = true
	}
	require.GreaterOrEqual(t, len(kept), len(late))
	tr.run(func() { tr.file("plain_to_weekly/2_weekly_only.sql"); tr.more() })
	require.NoError(t, dedup.Verify(t.Context(), tr.pool, once.Table))
	require.NoError(t, reserved.Extend(t.Context(), tr.pool, time.Minute),
		"what the new table knows does not depend on the old one")
	for id := range kept {
		require.Equal(t, 1, tr.count(`SELECT count(*) FROM effects WHERE what = '`+id+`'`), id)
	}
}

// wantTriggerReported wants Verify and Migrate to report the triggers that write to both tables, and nothing else.
func (tr *traffic) wantTriggerReported(table dedup.Table) {
	tr.Helper()
	for _, err := range []error{dedup.Verify(tr.Context(), tr.pool, table), dedup.Migrate(tr.Context(), tr.pool, table)} {
		var found *dedup.VerifyError
		require.ErrorAs(tr, err, &found)
		require.NoError(tr, found.Except(dedup.KindTrigger, dedup.KindTriggerAfter))
	}
}

// forgets wants a key that was forgotten in both tables to be new again, and one that was in ours alone not to be.
func (tr *traffic) forgets(
	key idem.Key, forgetElsewhere func(context.Context, pgx.Tx, idem.Key) error, once idem.Once,
) {
	tr.Helper()
	for _, both := range []bool{false, true} {
		_, err := once.Run(tr.Context(), tr.pool, key, nothing)
		require.NoError(tr, err)
		require.NoError(tr, pgx.BeginFunc(tr.Context(), tr.pool, func(tx pgx.Tx) error {
			if both {
				if err := forgetElsewhere(tr.Context(), tx, key); err != nil {
					return err
				}
			}
			err := once.Forget(tr.Context(), tx, key)
			if errors.Is(err, idem.ErrNotFound) {
				return nil // a duplicate's copy was rolled back with its transaction
			}
			return err
		}))
		out, err := once.Run(tr.Context(), tr.pool, key, nothing)
		require.NoError(tr, err)
		require.Equal(tr, both, out == idem.Executed)
	}
}

const homeMadeTable = `
	CREATE TABLE webhook_events (idempotency_key text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now(), payload_hash text)`

func TestLayoutHomeMade(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, 500)
	tr.exec(homeMadeTable)
	require.NoError(t, dedup.Migrate(t.Context(), tr.pool))
	before := tr.homeMade(`INSERT INTO webhook_events (idempotency_key) VALUES ($1) ON CONFLICT (idempotency_key) DO NOTHING`)
	after := tr.through(idem.Once{}, false)
	tr.use(before)
	tr.run(func() {
		tr.more()
		tr.file("home_made/1_both.sql")
		tr.use(before, after)
		tr.more()
		tr.more()
		tr.use(after)
		tr.more()
		tr.wantTriggerReported(dedup.Table{})
		tr.forgets(stripe.Key("forgotten"), func(ctx context.Context, tx pgx.Tx, _ idem.Key) error {
			_, err := tx.Exec(ctx, `DELETE FROM webhook_events WHERE idempotency_key = 'forgotten'`)
			return err
		}, idem.Once{})

		// The last step is refused before the one in the middle was taken.
		sql, err := os.ReadFile("../dedup/layouts/home_made/3_ours_only.sql")
		require.NoError(t, err)
		tr.exec(`INSERT INTO webhook_events (idempotency_key, processed_at, payload_hash) VALUES
			('left', now() - interval '1 day', encode(sha256('body'), 'hex')), ('odd', now(), 'of another kind')`)
		tr.exec(`INSERT INTO effects VALUES ('left'), ('odd')`)
		_, err = tr.pool.Exec(t.Context(), string(sql), pgx.QueryExecModeSimpleProtocol)
		require.True(t, pgerr.Is(err, "P0001"), "%v", err)
		tr.pool.Reset()
		tr.exec(`INSERT INTO webhook_events (idempotency_key, processed_at) VALUES ('old', now() - interval '40 days')`)
		tr.file("home_made/2_backfill.sql")
		_, err = dedup.Table{}.Purge(t.Context(), tr.pool) // a program's Cleaner, which takes what was copied and has expired
		require.NoError(t, err)
		require.Zero(t, tr.count(`SELECT count(*) FROM processed_events WHERE key = 'old'`))
		tr.file("home_made/3_ours_only.sql")
		tr.more()
	})
	tr.exec(`DELETE FROM processed_events WHERE key = 'forgotten'`)
	tr.ids = append(tr.ids, "left", "odd")
	require.NoError(t, dedup.Verify(t.Context(), tr.pool))
	tr.wantOnce()
	require.Equal(t, len(tr.ids), tr.count(`SELECT count(*) FROM processed_events`))
	_, err := idem.Run(t.Context(), tr.pool, stripe.Key("left").WithPayload([]byte("other")), never(t))
	require.ErrorIs(t, err, idem.ErrPayloadMismatch)
	rec, err := idem.Once{}.Lookup(t.Context(), tr.pool, stripe.Key("left"))
	require.NoError(t, err)
	require.Greater(t, rec.Age, 23*time.Hour)
}

func TestLayoutAddSource(t *testing.T) {
	t.Parallel()
	tr := newTraffic(t, 500)
	tr.exec(homeMadeTable)
	before := tr.homeMade(`INSERT INTO webhook_events (idempotency_key) VALUES ($1) ON CONFLICT (idempotency_key) DO NOTHING`)
	of := func(source string) program {
		return tr.homeMade(`INSERT INTO webhook_events (idempotency_key, source) VALUES ($1, '` + source +
			`') ON CONFLICT (idempotency_key, source) DO NOTHING`)
	}
	tr.use(before)
	tr.run(func() {
		tr.more()
		tr.file("add_source/1_column.sql")
		tr.more()
		tr.file("add_source/2_index.sql")
		tr.use(before, of("stripe"))
		tr.more()
		tr.use(of("stripe"))
		tr.file("add_source/3_swap.sql")
		tr.more()
	})
	tr.wantOnce()
	err := before(t.Context(), "evt_0")
	require.True(t, pgerr.Is(err, "42P10"), "%v", err)
	// The same ids of another source are other keys.
	tr.exec(`TRUNCATE effects`)
	tr.use(of("paypal"))
	tr.wantOnce()
	require.Equal(t, 2*len(tr.ids), tr.count(`SELECT count(*) FROM webhook_events`))
}
