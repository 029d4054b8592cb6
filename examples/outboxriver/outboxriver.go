// Package outboxriver shows an outbox beside River, for those who have it: a job that the outbox is not for (a mail,
// with retries and a schedule of its own) and an event that other services wait for are committed with the same row.
//
// Which is for what: a job has one worker, that may take its time, and no order. An event has any number of readers,
// comes in the order of its key, and is gone when the broker has it.
package outboxriver

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem"
)

// Mail is the job.
type Mail struct {
	Order string `json:"order"`
}

// Kind names the job.
func (Mail) Kind() string { return "mail" }

var payments = idem.Scope{Source: "provider", Operation: "pay-order"}

// Pay books a payment that the provider may report more than once. Row, job and event are there once, or not at all: a
// second report inserts no job and appends no event.
func Pay(ctx context.Context, db idem.DB, jobs *river.Client[pgx.Tx], report, order string) (idem.Outcome, error) {
	return idem.Run(ctx, db, payments.Key(report), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO paid_orders (id) VALUES ($1::text)`, order); err != nil {
			return err
		}
		if _, err := jobs.InsertTx(ctx, tx, Mail{order}, nil); err != nil {
			return err
		}
		return outbox.Append(ctx, tx, outbox.Event{Topic: "orders.paid", Key: order, Payload: []byte(order)})
	})
}

// PublishJob is the other way to run a relay, where River is there anyway: a periodic job that publishes what is due.
// Its schedule is the longest that an event waits.
type PublishJob struct{}

// Kind names the job.
func (PublishJob) Kind() string { return "publish-outbox" }

// Publisher works PublishJob.
type Publisher struct {
	river.WorkerDefaults[PublishJob]
	Relay outbox.Relay
	DB    idem.DB
}

// Work publishes until nothing is due. What failed stays in the outbox, whose own attempts count: so it is no failure
// of the job's.
func (p *Publisher) Work(ctx context.Context, _ *river.Job[PublishJob]) error {
	_, err := p.Relay.Drain(ctx, p.DB)
	if ctx.Err() != nil {
		return err
	}
	return nil
}
