package outboxkafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Events reach Kafka with their id, key, headers and bytes, those of a key in one partition and in order; one that
// Kafka refuses holds up its key alone; brokers that are away park nothing; a lost answer publishes again.
func TestKafka(t *testing.T) {
	ctx := t.Context()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "orders"))
	require.NoError(t, err)
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordDeliveryTimeout(time.Second),
		kgo.ProducerBatchMaxBytes(10_000))
	require.NoError(t, err)
	defer client.Close()
	pool := pgtest.Pool(t)
	require.NoError(t, outbox.Migrate(ctx, pool))
	add := func(events ...outbox.Event) {
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, events...) }))
	}
	relay := outbox.Relay{
		Publisher: Publisher{client}, MaxAttempts: 2, MinRetry: time.Millisecond, MaxRetry: time.Millisecond,
	}
	drain := func() (all outbox.Stats, err error) {
		for range 3 { // what failed is due again
			s, e := relay.Drain(ctx, pool)
			all.Published, all.Parked, all.Failed = all.Published+s.Published, all.Parked+s.Parked, all.Failed+s.Failed
			err = errors.Join(err, e)
			time.Sleep(5 * time.Millisecond)
		}
		return all, err
	}
	const keys, each = 5, 20
	var events []outbox.Event
	for n := range each {
		for k := range keys {
			events = append(events, outbox.Event{
				ID: outbox.NewID(), Topic: "orders", Key: fmt.Sprint("k", k), Payload: []byte(fmt.Sprint(n, "\x00\xff")),
				Headers: map[string]string{"traceparent": "00-1-2-01"},
			})
		}
	}
	add(events...)
	// A connection breaks in the middle.
	requests := 0
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		if requests++; requests < 5 {
			return nil, nil, false
		}
		return nil, errors.New("cut"), true
	})
	published := int64(0)
	require.Eventually(t, func() bool {
		s, _ := drain()
		published += s.Published
		return published == keys*each
	}, 30*time.Second, 10*time.Millisecond)

	// A record that is too large for the client, and one of a topic that is not there.
	add(outbox.Event{Topic: "orders", Key: "k0", Payload: []byte(strings.Repeat("random", 5_000))},
		outbox.Event{Topic: "orders", Key: "k0", Payload: []byte("behind")},
		outbox.Event{Topic: "orders", Key: "k1", Payload: []byte("goes on")})
	s, err := drain()
	require.ErrorIs(t, err, kerr.MessageTooLarge)
	require.EqualValues(t, []int64{1, 1}, []int64{s.Published, s.Parked})

	// Brokers that do not lead any more answer an error for as long as they like.
	away := true
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if !away {
			return nil, nil, false
		}
		cluster.KeepControl()
		produce := req.(*kmsg.ProduceRequest)
		res := produce.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range produce.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.NotEnoughReplicas.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			res.Topics = append(res.Topics, rt)
		}
		return res, nil, true
	})
	add(outbox.Event{Topic: "orders", Key: "k2", Payload: []byte("late")})
	s, err = drain()
	require.ErrorIs(t, err, outbox.ErrUnavailable)
	require.Zero(t, s)
	away = false
	require.Eventually(t, func() bool { s, _ := drain(); return s.Published == 1 }, 20*time.Second, 10*time.Millisecond)

	got := consumed(t, cluster, keys*each+2)
	for k := range keys {
		key, n := fmt.Sprint("k", k), 0
		seen := map[string]bool{}
		for _, r := range got[key] {
			id := string(r.Headers[0].Value)
			if seen[id] || n == each {
				continue
			}
			seen[id] = true
			want := events[n*keys+k]
			require.Equal(t, IDHeader, r.Headers[0].Key)
			require.Equal(t, want.ID, id)
			require.Equal(t, want.Payload, r.Value)
			require.Equal(t, "00-1-2-01", string(r.Headers[1].Value))
			require.Equal(t, got[key][0].Partition, r.Partition)
			n++
		}
		require.Equal(t, each, n)
	}
}

// consumed reads at least n records, and returns them by key.
func consumed(t *testing.T, cluster *kfake.Cluster, n int) map[string][]*kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got := map[string][]*kgo.Record{}
	for n > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err0())
		fetches.EachRecord(func(r *kgo.Record) { got[string(r.Key)] = append(got[string(r.Key)], r); n-- })
	}
	return got
}
