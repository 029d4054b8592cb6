package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// queue is a system that takes deliveries and has their effects done, here or on workers of its own.
type queue struct {
	name, says string
	deliver    func(ctx context.Context, id string) error // returns when the delivery is acknowledged
}

// queueFigure is what was measured of a queue.
type queueFigure struct {
	name, says    string
	rate          float64       // deliveries a second, from the first to the last effect; the median of the turns
	ratio         float64       // how many times as long as the first queue it took, the median of the turns
	p50, p99      time.Duration // from the first delivery of a message to its effect
	lost, doubled int
}

// finished notes when effects were committed.
type finished struct {
	mu   sync.Mutex
	when map[string]time.Time
	all  chan struct{} // closed at the last one
	want int
}

func (f *finished) expect(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.when, f.all, f.want = make(map[string]time.Time, n), make(chan struct{}), n
}

func (f *finished) note(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, twice := f.when[id]; twice {
		return
	}
	f.when[id] = time.Now()
	if len(f.when) == f.want {
		close(f.all)
	}
}

// queues has each system handle messages that come twice each, from eight deliverers at once, in turns.
func (b *bench) queues(ctx context.Context, p *page) (err error) {
	done := &finished{}
	ours := func(ctx context.Context, id string) error {
		a, err := run1(ctx, b.many, message{id: id})
		if err == nil && a == executed {
			done.note(id)
		}
		return err
	}
	pool, err := b.pool(ctx, 4*workers, nil) // River and DBOS take connections for their own work, too
	if err != nil {
		return err
	}
	defer pool.Close()
	jobs, stopRiver, err := startRiver(ctx, pool, done)
	if err != nil {
		return err
	}
	defer stopRiver()
	flows, stopDBOS, err := startDBOS(ctx, pool, done)
	if err != nil {
		return err
	}
	defer stopDBOS()
	all := []queue{
		{"`idem.Run`", "the effect in the call; no queue, no retry after the call, no record of what failed", ours},
		{"`idem.Run`, again", "the control", ours},
		{
			"River", "a unique job, worked once it is committed, JobCompleteTx in the effect's transaction. " +
				"It also keeps jobs that fail, " +
				"retries them on a schedule, and has priorities, cancellation and a dashboard", jobs,
		},
		{
			"DBOS", "a workflow with the message's id, RunAsTransaction on the system's own database. " +
				"It also records every step, resumes " +
				"a workflow after a crash, keeps inputs and outputs, and waits for timers and signals", flows,
		},
	}
	took := make([][]time.Duration, len(all)) // by turn
	waits := make([][]time.Duration, len(all))
	figures := make([]queueFigure, len(all))
	for turn := range b.cfg.turns + 1 { // the first warms up
		for n := range all {
			i := (n + turn) % len(all)
			b.say("%s, turn %d of %d", all[i].name, turn, b.cfg.turns)
			d, w, lost, doubled, err := b.turnOf(ctx, all[i], done)
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].name, err)
			}
			figures[i].lost += lost
			figures[i].doubled += doubled
			if turn > 0 {
				took[i], waits[i] = append(took[i], d), append(waits[i], w...)
			}
		}
	}
	for i, q := range all {
		var ratios []float64
		for turn := range took[i] {
			ratios = append(ratios, float64(took[i][turn])/float64(took[0][turn]))
		}
		slices.Sort(ratios)
		slices.Sort(waits[i])
		f := &figures[i]
		f.name, f.says, f.ratio = q.name, q.says, ratios[len(ratios)/2]
		f.p50, f.p99 = at(waits[i], 0.5), at(waits[i], 0.99)
		slices.Sort(took[i])
		f.rate = float64(2*b.cfg.ids) / at(took[i], 0.5).Seconds()
		if i == 1 {
			for _, r := range ratios {
				p.queueControl = max(p.queueControl, math.Abs(r-1))
			}
		}
	}
	p.queues = figures
	return nil
}

// turnOf delivers each of some messages twice, and waits until every effect is committed.
func (b *bench) turnOf(
	ctx context.Context, q queue, done *finished,
) (took time.Duration, waits []time.Duration, lost, doubled int, err error) {
	n := b.cfg.ids
	prefix := ascending() + "_"
	var order []string
	for i := range n {
		id := fmt.Sprint(prefix, i)
		order = append(order, id, id)
	}
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	done.expect(n)
	var mu sync.Mutex
	first := make(map[string]time.Time, n)
	var firstErr error
	in := make(chan string)
	var wg sync.WaitGroup
	begun := time.Now()
	for range workers {
		wg.Go(func() {
			for id := range in {
				mu.Lock()
				if first[id].IsZero() {
					first[id] = time.Now()
				}
				mu.Unlock()
				if err := q.deliver(ctx, id); err != nil {
					mu.Lock()
					firstErr = err
					mu.Unlock()
				}
			}
		})
	}
	for _, id := range order {
		in <- id
	}
	close(in)
	wg.Wait()
	if firstErr != nil {
		return 0, nil, 0, 0, firstErr
	}
	select {
	case <-done.all:
	case <-time.After(time.Minute): // what is missing then is lost
	case <-ctx.Done():
		return 0, nil, 0, 0, ctx.Err()
	}
	took = time.Since(begun)
	done.mu.Lock()
	for id, t := range done.when {
		waits = append(waits, t.Sub(first[id]))
	}
	done.mu.Unlock()
	err = b.one.QueryRow(ctx, `
		SELECT $1::int - count(*), count(*) FILTER (WHERE n > 1)
		  FROM (SELECT count(*) FROM bench_effects WHERE starts_with(id, $2::text) GROUP BY id) AS e (n)`,
		n, prefix).Scan(&lost, &doubled)
	return took, waits, lost, doubled, err
}

type payment struct {
	ID string `json:"id"`
}

// Kind names the job.
func (payment) Kind() string { return "payment" }

type paymentWorker struct {
	river.WorkerDefaults[payment]
	db   *pgxpool.Pool
	done *finished
}

// Work does the effect, and ends the job in the same transaction.
func (w *paymentWorker) Work(ctx context.Context, job *river.Job[payment]) error {
	err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		if err := (message{id: job.Args.ID}).effect(ctx, tx); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.done.note(job.Args.ID)
	}
	return err
}

func startRiver(
	ctx context.Context, pool *pgxpool.Pool, done *finished,
) (deliver func(context.Context, string) error, stop func(), err error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return nil, nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, nil, err
	}
	all := river.NewWorkers()
	river.AddWorker(all, &paymentWorker{db: pool, done: done})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		// The default fetches ten times a second at the most, and so ends at 80 jobs a second with 8 workers.
		FetchCooldown: river.FetchCooldownMin, Logger: quiet, Workers: all,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, nil, err
	}
	deliver = func(ctx context.Context, id string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, payment{id}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
			return err
		})
	}
	return deliver, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = client.StopAndCancel(ctx)
	}, nil
}

func startDBOS(
	ctx context.Context, pool *pgxpool.Pool, done *finished,
) (deliver func(context.Context, string) error, stop func(), err error) {
	dctx, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "bench", SystemDBPool: pool, DatabaseSchema: dbosSchema,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, nil, err
	}
	source, err := dbos.NewDataSource(dctx, pool) // the system's own database: key, effect and step are one transaction
	if err != nil {
		return nil, nil, err
	}
	flow := func(dctx dbos.Context, id string) (bool, error) {
		ok, err := dbos.RunAsTransaction(dctx, source, func(ctx context.Context, tx dbos.Tx) (bool, error) {
			_, err := tx.Exec(ctx, effectSQL, id)
			return true, err
		})
		if err == nil {
			done.note(id)
		}
		return ok, err
	}
	dbos.RegisterWorkflow(dctx, flow)
	if err := dbos.Launch(dctx); err != nil {
		return nil, nil, err
	}
	deliver = func(_ context.Context, id string) error {
		// It is recorded now, and goes on whatever becomes of us. To wait for the result would be slower: of a workflow
		// that another delivery has started, it is looked for once a second.
		_, err := dbos.RunWorkflow(dctx, flow, id, dbos.WithWorkflowID(id))
		return err
	}
	return deliver, func() { _ = dbos.Shutdown(dctx, 10*time.Second) }, nil
}
