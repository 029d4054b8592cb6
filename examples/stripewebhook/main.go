// Command stripewebhook is an endpoint for Stripe: it keeps the newest state of each subscription, and sends one
// welcome mail for each that became active. A stand-in for Stripe signs events with Stripe's own library and delivers
// each up to four times, in a random order, from several workers.
//
//	go run ./examples/stripewebhook
//	go run ./examples/stripewebhook -seed 7 -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// What to copy is endpoint.go. The mails go by way of the outbox: they are stored with the subscription, and sent after
// the COMMIT by a relay, at least once, each with an id that a mail service can use to send it once.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	stripe "github.com/stripe/stripe-go/v85/webhook"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/outbox"
	"github.com/pgonce/pgonce/idem/webhook"
	"github.com/pgonce/pgonce/upsert"
)

//go:embed schema.sql
var schema string

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

const (
	secret        = "whsec_of_this_demonstration"
	subscriptions = 30
	workers       = 8
)

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "the `number` that decides the order")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dsn, *seed, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stripewebhook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dsn string, seed uint64, out io.Writer) (err error) {
	if dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		var stop func() error
		if dsn, stop, err = private.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return err
	}
	h := endpoint(pool, secret)
	if err := h.Validate(); err != nil {
		return err
	}
	server := httptest.NewServer(h) // yours is an http.Server, behind TLS
	defer server.Close()

	events := deliveries(rand.New(rand.NewPCG(seed, 0)))
	fmt.Fprintf(out, "%d deliveries for %d subscriptions, in the order of -seed %d\n", len(events), subscriptions, seed)
	if err := feed(ctx, server.URL, events); err != nil {
		return err
	}
	box := &mailbox{seen: map[string]mail{}}
	if _, err := (outbox.Relay{Publisher: box}).Drain(ctx, pool); err != nil {
		return err
	}
	return prove(ctx, pool, box, out)
}

// prepare makes the tables, and proves that their constraints hold.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	table := webhook.Stripe{}.Sender().Table(dedup.Table{})
	if err := errors.Join(dedup.Migrate(ctx, pool, table), outbox.Migrate(ctx, pool)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	return errors.Join(dedup.Verify(ctx, pool, table), outbox.Verify(ctx, pool), upsert.Verify(ctx, pool, newest))
}

// event is one of Stripe's, as far as this program makes them.
type event struct {
	id, subscription, status string
	created                  int64
}

func (e event) body() string {
	return fmt.Sprintf(`{"id":%q,"object":"event","type":"customer.subscription.updated","created":%d,"data":{"object":`+
		`{"id":%q,"object":"subscription","customer":%q,"status":%q}}}`,
		e.id, e.created, e.subscription, "customer of "+e.subscription, e.status)
}

// request is one attempt to deliver an event: signed anew, as Stripe does.
func (e event) request(ctx context.Context, url string) (*http.Request, error) {
	body := e.body()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Stripe-Signature", stripe.GenerateTestSignedPayload(&stripe.UnsignedPayload{
		Payload: []byte(body), Secret: secret, Timestamp: time.Now(),
	}).Header)
	return r, nil
}

// deliveries makes the events of all subscriptions, each once to four times, and shuffles them.
func deliveries(rng *rand.Rand) (all []event) {
	start := time.Now().Add(-48 * time.Hour).Unix()
	for n := range subscriptions {
		for i, e := range []event{
			{status: "incomplete", created: start},
			{status: "active", created: start}, // in the same second
			{status: "past_due", created: start + 3600},
			{status: "active", created: start + 7200},
			{status: "canceled", created: start + 7200}, // in the same second
		} {
			e.id, e.subscription = fmt.Sprintf("evt_%03d_%d", n, i), fmt.Sprintf("sub_%03d", n)
			for range 1 + rng.IntN(4) {
				all = append(all, e)
			}
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// feed delivers the events from several workers at once.
func feed(ctx context.Context, url string, events []event) error {
	queue := make(chan event, len(events))
	for _, e := range events {
		queue <- e
	}
	close(queue)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for e := range queue {
				if errs[w] == nil {
					errs[w] = deliver(ctx, url, e)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func deliver(ctx context.Context, url string, e event) error {
	r, err := e.request(ctx, url)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("event %s: %s", e.id, res.Status)
	}
	return nil
}

// mailbox stands for a mail service that knows the id of a mail, and sends each once.
type mailbox struct {
	mu   sync.Mutex
	seen map[string]mail
}

// Publish implements outbox.Publisher.
func (b *mailbox) Publish(_ context.Context, events []outbox.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		var m mail
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			return err
		}
		b.seen[e.ID] = m
	}
	return nil
}

// prove counts the subscriptions and the mails.
func prove(ctx context.Context, pool *pgxpool.Pool, box *mailbox, out io.Writer) error {
	var right, all int
	err := pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE status = 'canceled'), count(*)
		FROM stripewebhook_subscriptions`).Scan(&right, &all)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d subscriptions ended canceled, %d welcome mails\n", right, all, len(box.seen))
	to := map[string]int{}
	for _, m := range box.seen {
		to[m.To]++
	}
	if right != subscriptions || all != subscriptions || len(box.seen) != len(to) {
		return errors.New("not one state and one mail for each")
	}
	return nil
}
