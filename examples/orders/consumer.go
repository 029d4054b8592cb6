package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgonce/pgonce/idem"
)

var shipments = idem.Scope{Source: "orders", Operation: "book-shipment"}

// handle makes the effect of an event, once: its key is the event's id, which the outbox fixed when it was appended.
func handle(ctx context.Context, db idem.DB, id string, body []byte) (idem.Outcome, error) {
	var event orderMoved
	if err := json.Unmarshal(body, &event); err != nil {
		return 0, fmt.Errorf("the body is no event of ours: %w", err)
	}
	return idem.Run(ctx, db, shipments.Key(id), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders_shipments (order_id, step) VALUES ($1::text, $2::int)`, event.Order,
			event.Step)
		return err
	})
}

const stream = "ORDERS"

// prepare makes the stream, and a consumer for each partition. One message of a partition is under way at a time:
// with more, what comes again after a failure would come after what is newer.
func prepare(ctx context.Context, js jetstream.JetStream, ackWait time.Duration) error {
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}})
	for p := 0; err == nil && p < partitions; p++ {
		_, err = js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
			Durable: durable(p), FilterSubject: fmt.Sprintf("orders.%d", p),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 1,
		})
	}
	return err
}

func durable(p int) string { return fmt.Sprintf("shipments-%d", p) }

// consume handles the messages of a partition until ctx ends. Any number of processes may do so.
func consume(ctx context.Context, js jetstream.JetStream, db idem.DB, p int, seen func(idem.Outcome, error)) error {
	for ctx.Err() == nil {
		if err := consumeOne(ctx, js, db, p, seen); err != nil {
			seen(0, err)
			select { // the broker is away: not too often
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return ctx.Err()
}

func consumeOne(ctx context.Context, js jetstream.JetStream, db idem.DB, p int, seen func(idem.Outcome, error)) error {
	consumer, err := js.Consumer(ctx, stream, durable(p))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		msg, err := consumer.Next(jetstream.FetchMaxWait(time.Second))
		if errors.Is(err, jetstream.ErrNoMessages) {
			continue
		}
		if err != nil {
			return err
		}
		outcome, err := handle(ctx, db, msg.Headers().Get(jetstream.MsgIDHeader), msg.Data())
		seen(outcome, err)
		if err != nil {
			_ = msg.NakWithDelay(20 * time.Millisecond) // it comes again, and before any other of its partition
			continue
		}
		// The effect is committed. Where this acknowledgement is lost, the message comes again, and is a duplicate.
		_ = msg.DoubleAck(ctx)
	}
	return nil
}
