// Package outboxrabbitmq is an outbox's publisher to RabbitMQ, to be copied: outbox.Relay{Publisher:
// outboxrabbitmq.New(dial)}.
//
// An event goes to the default exchange, with its topic as the routing key, and so to the queue of that name. Its id is
// the message id: the consumer's key. A queue holds the order of one publisher's channel; a consumer has to take
// one message at a time, for what is requeued may come after what is newer.
package outboxrabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rabbitmq/amqp091-go"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// Publisher holds one connection, and dials again when that is lost.
type Publisher struct {
	dial func() (*amqp091.Connection, error)

	mu   sync.Mutex
	conn *amqp091.Connection
}

// New returns a publisher, which connects when it publishes.
func New(dial func() (*amqp091.Connection, error)) *Publisher { return &Publisher{dial: dial} }

// Close closes the connection.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return nil
	}
	return p.conn.Close()
}

var errReturned = errors.New("no queue is bound to the topic")

var errNacked = errors.New("the broker refused the message")

// Publish sends events of different keys together, and of one key the next when the one before it is confirmed. Each
// message is mandatory: without that the broker confirms what no queue has got. A channel of its own for each call lets
// calls run side by side, and none see what another one left behind.
func (p *Publisher) Publish(ctx context.Context, events []outbox.Event) error {
	ch, err := p.channel()
	if err != nil {
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	// A message that is returned comes before its confirmation; there is room for all.
	returned := ch.NotifyReturn(make(chan amqp091.Return, len(events)))
	errs, failed := make(outbox.EventErrors, len(events)), map[string]error{}
	for _, round := range rounds(events) {
		sent := map[int]*amqp091.DeferredConfirmation{}
		for _, i := range round {
			e := events[i]
			if errs[i] = failed[e.Key]; errs[i] != nil {
				continue
			}
			c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", e.Topic, true, false, message(e))
			if err == nil {
				sent[i] = c
				continue
			}
			if errs[i] = err; ch.IsClosed() || ctx.Err() != nil { // else it is the event's, as a header that cannot be sent
				errs[i] = fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
			}
		}
		for i, c := range sent {
			switch acked, err := c.WaitContext(ctx); {
			case err != nil:
				errs[i] = fmt.Errorf("%w: no confirmation: %w", outbox.ErrUnavailable, err)
			case !acked && ch.IsClosed():
				errs[i] = fmt.Errorf("%w: the channel was closed", outbox.ErrUnavailable)
			case !acked:
				errs[i] = errNacked
			}
		}
		back := map[string]bool{}
		for len(returned) > 0 {
			back[(<-returned).MessageId] = true
		}
		for _, i := range round {
			if back[events[i].ID] {
				errs[i] = errReturned
			}
			if errs[i] != nil && events[i].Key != "" {
				failed[events[i].Key] = errs[i]
			}
		}
	}
	return errs.Err()
}

func message(e outbox.Event) amqp091.Publishing {
	headers := amqp091.Table{}
	for name, value := range e.Headers {
		headers[name] = value
	}
	return amqp091.Publishing{
		MessageId: e.ID, DeliveryMode: amqp091.Persistent, Timestamp: e.AppendedAt, Headers: headers, Body: e.Payload,
	}
}

func (p *Publisher) channel() (*amqp091.Channel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil || p.conn.IsClosed() {
		conn, err := p.dial()
		if err != nil {
			return nil, err
		}
		p.conn = conn
	}
	return p.conn.Channel()
}

// rounds sorts events so that each round has at most one of a key, in the key's order.
func rounds(events []outbox.Event) (all [][]int) {
	next := map[string]int{}
	for i, e := range events {
		n := 0
		if e.Key != "" {
			n = next[e.Key]
			next[e.Key]++
		}
		if n == len(all) {
			all = append(all, nil)
		}
		all[n] = append(all[n], i)
	}
	return all
}
