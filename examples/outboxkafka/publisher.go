// Package outboxkafka is an outbox's publisher to Kafka, to be copied: outbox.Relay{Publisher:
// outboxkafka.Publisher{...}}.
//
// An event becomes a record of its topic, with the event's ordering key as its key, so that a partition has all events
// of that key. The event's id is the header "event-id": the consumer's key. The records of a retry are not known to the
// broker as such, for they are of another session; so a consumer sees some twice.
package outboxkafka

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgonce/pgonce/dedup/outbox"
)

// IDHeader is the record's header that holds the event's id.
const IDHeader = "event-id"

// Publisher publishes with a client of franz-go, whose defaults are right: acknowledged by all replicas, idempotent.
type Publisher struct{ Client *kgo.Client }

// Publish sends events of different keys together, and of one key the next when the one before it is stored: a record
// that is refused, for its size say, does not keep the client from storing those after it.
func (p Publisher) Publish(ctx context.Context, events []outbox.Event) error {
	errs, failed := make(outbox.EventErrors, len(events)), map[string]error{}
	for _, round := range rounds(events) {
		var records []*kgo.Record
		at := map[*kgo.Record]int{}
		for _, i := range round {
			if errs[i] = failed[events[i].Key]; errs[i] == nil {
				r := record(events[i])
				records, at[r] = append(records, r), i
			}
		}
		for _, res := range p.Client.ProduceSync(ctx, records...) {
			i := at[res.Record]
			if errs[i] = meaning(res.Err); errs[i] != nil && events[i].Key != "" {
				failed[events[i].Key] = errs[i]
			}
		}
	}
	return errs.Err()
}

// record leaves the timestamp to the client, which counts its own limits from there: an event that has waited for long
// would be over its time before it is sent.
func record(e outbox.Event) *kgo.Record {
	r := &kgo.Record{Topic: e.Topic, Value: e.Payload}
	if e.Key != "" {
		r.Key = []byte(e.Key)
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: IDHeader, Value: []byte(e.ID)})
	for name, value := range e.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return r
}

// meaning tells brokers that are away, for which no event is to blame, from all other errors.
func meaning(err error) error {
	var network net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &network), kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownTopicOrPartition),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries), errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
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
