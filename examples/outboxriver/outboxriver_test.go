package outboxriver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type mailer struct {
	river.WorkerDefaults[Mail]
	sent chan string
}

func (m *mailer) Work(_ context.Context, job *river.Job[Mail]) error {
	m.sent <- job.Args.Order
	return nil
}

// Four reports of each payment, at once: one row, one mail, and one event each, published by a job of River's.
func TestRiver(t *testing.T) {
	ctx := t.Context()
	pool := pgtest.Pool(t)
	require.NoError(t, dedup.Migrate(ctx, pool))
	require.NoError(t, outbox.Migrate(ctx, pool))
	_, err := pool.Exec(ctx, `CREATE TABLE paid_orders (id text)`)
	require.NoError(t, err)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	require.NoError(t, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	require.NoError(t, err)

	var mu sync.Mutex
	published := map[string]int{}
	mails := &mailer{sent: make(chan string, 100)}
	workers := river.NewWorkers()
	river.AddWorker(workers, mails)
	river.AddWorker(workers, &Publisher{DB: pool, Relay: outbox.Relay{Publisher: outbox.PublisherFunc(
		func(_ context.Context, events []outbox.Event) error {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				published[e.Key]++
			}
			return nil
		})}})
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}, Workers: workers,
		PeriodicJobs: []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(time.Second),
			func() (river.JobArgs, *river.InsertOpts) { return PublishJob{}, nil }, &river.PeriodicJobOpts{RunOnStart: true})},
	})
	require.NoError(t, err)
	orders := []string{"a", "b", "c", "d", "e"}
	var reports sync.WaitGroup
	var executed sync.Map
	for _, order := range orders {
		for range 4 {
			reports.Go(func() {
				outcome, err := Pay(ctx, pool, jobs, "report-"+order, order)
				if err != nil {
					t.Error(err)
				}
				if outcome == idem.Executed {
					if _, twice := executed.LoadOrStore(order, true); twice {
						t.Error("twice")
					}
				}
			})
		}
	}
	reports.Wait()
	require.NoError(t, jobs.Start(ctx))
	defer func() { require.NoError(t, jobs.StopAndCancel(context.WithoutCancel(ctx))) }()
	want := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
	got := map[string]int{}
	for range orders {
		got[<-mails.sent]++
	}
	require.Equal(t, want, got)
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(published) == len(orders) },
		20*time.Second, 10*time.Millisecond)
	require.Equal(t, want, published)
	var rows int
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM paid_orders`).Scan(&rows)
	}))
	require.Equal(t, len(orders), rows)
	require.Empty(t, mails.sent)
}
