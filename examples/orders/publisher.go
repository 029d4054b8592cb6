package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// publisher hands events to NATS JetStream. Events of different keys are under way together; of one key the next is
// sent when the one before it is stored, for a connection that breaks may lose the first and keep the second.
type publisher struct{ js jetstream.JetStream }

func (p publisher) Publish(ctx context.Context, events []outbox.Event) error {
	errs, failed := make(outbox.EventErrors, len(events)), map[string]error{}
	for _, round := range rounds(events) {
		acks := make(map[int]jetstream.PubAckFuture, len(round))
		for _, i := range round {
			e := events[i]
			if errs[i] = failed[e.Key]; errs[i] != nil {
				continue
			}
			msg := nats.NewMsg(e.Topic)
			msg.Data = e.Payload
			for name, value := range e.Headers {
				msg.Header.Set(name, value)
			}
			// The id is the consumer's key. The server, too, drops what it has seen in the last two minutes.
			if acks[i], errs[i] = p.js.PublishMsgAsync(msg, jetstream.WithMsgID(e.ID)); errs[i] != nil {
				delete(acks, i)
			}
		}
		for i, ack := range acks {
			select {
			case <-ack.Ok():
			case errs[i] = <-ack.Err():
			case <-ctx.Done():
				errs[i] = ctx.Err()
			}
		}
		for _, i := range round {
			if errs[i] = meaning(errs[i]); errs[i] != nil && events[i].Key != "" {
				failed[events[i].Key] = errs[i]
			}
		}
	}
	return errs.Err()
}

// meaning tells a broker that is away, for which no event is to blame, from all other errors.
func meaning(err error) error {
	var network net.Error
	for _, away := range []error{
		context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrConnectionClosed, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, jetstream.ErrAsyncPublishTimeout,
		jetstream.ErrTooManyStalledMsgs,
	} {
		if errors.Is(err, away) || errors.As(err, &network) {
			return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		}
	}
	return err
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
