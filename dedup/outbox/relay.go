package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgonce/pgonce/dedup"
	engine "github.com/pgonce/pgonce/internal/outbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Publisher hands events to a broker.
type Publisher interface {
	// Publish returns nil when the broker has confirmed every event. It publishes those of one key in order, and none
	// after one of the same key that failed. An [EventErrors] tells what became of each, and one of [ErrUnavailable]
	// says that no event is to blame; see the package's table. A panic is an error, too.
	//
	// It must return soon after ctx has ended. For one event that is after three quarters of the lease, for several
	// after half of that, so that they can be tried one by one. It may be called by several goroutines at once, with
	// events of different keys, and again with events that it has published. It must not change the events, nor keep
	// them.
	Publish(ctx context.Context, events []Event) error
}

// PublisherFunc is a function as a [Publisher].
type PublisherFunc func(ctx context.Context, events []Event) error

// Publish calls f.
func (f PublisherFunc) Publish(ctx context.Context, events []Event) error { return f(ctx, events) }

// ErrUnavailable is for a [Publisher] to wrap, if the broker cannot be reached: no attempt is counted.
var ErrUnavailable = engine.ErrUnavailable

// ErrPanic: the Publisher panicked.
var ErrPanic = engine.ErrPanic

// EventErrors is an error of a [Publisher] that knows what became of each event: one entry for each, nil if it was
// published.
type EventErrors []error

// Error names the first of them.
func (e EventErrors) Error() string {
	n, first := 0, error(nil)
	for _, err := range e {
		if err != nil {
			n, first = n+1, cmp.Or(first, err)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d events were not published", n, len(e))
	if first != nil {
		fmt.Fprintf(&b, "; the first: %v", first)
	}
	return b.String()
}

// Unwrap returns those that are not nil.
func (e EventErrors) Unwrap() []error {
	var all []error
	for _, err := range e {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Err returns e, or nil if all events were published.
func (e EventErrors) Err() error {
	if len(e.Unwrap()) == 0 {
		return nil
	}
	return e
}

// Stats is what a relay has done.
type Stats struct {
	Published int64 // events published and deleted
	Failed    int64 // attempts that failed and were counted
	Parked    int64 // events that had their last attempt
	Again     int64 // events published that will be published again: the lease was lost, or the database did not answer
}

// Relay publishes what was committed. It is a plain value, safe for concurrent use; only Publisher has no default.
type Relay struct {
	Table     Table
	Publisher Publisher

	// Batch is how many events Publish gets at most, all of one lane. 0 means 100. Their payloads have 8 MB together,
	// or there is one event.
	Batch int

	// Workers is how many batches Run publishes at a time, each with a connection while it talks to the database. 0
	// means 1; more than the 32 lanes is of no use.
	Workers int

	// Lease is how long a batch may take. A dead relay's lane is free after that, by the database's clock. 0 means 30
	// seconds.
	Lease time.Duration

	// Poll is how long to wait after nothing was found. 0 means 25 ms. A look writes nothing.
	Poll time.Duration

	// Wake, if not nil, ends such a wait: send to it, without blocking, after a COMMIT of this process, or let [Listen]
	// do it. It only saves time; a lost wake-up loses nothing.
	Wake <-chan struct{}

	// MaxAttempts is how often an event is tried before it is parked. 0 means 20: about nine hours.
	MaxAttempts int

	// MinRetry and MaxRetry are the first and the longest time between two attempts, give or take a fifth. 0 means a
	// second, and an hour.
	MinRetry, MaxRetry time.Duration

	// Done, if not nil, is called after each batch, and after each error of the database's, by one goroutine or
	// several. err is the Publisher's, or the database's; without Done nobody hears of it. The relay waits for it.
	Done func(ctx context.Context, s Stats, err error)
}

// Validate reports whether r can be a relay, without looking at a database.
func (r Relay) Validate() error {
	if _, err := r.options().Relay(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

func (r Relay) options() engine.Options {
	o := engine.Options{
		Table: r.Table.Name, Batch: r.Batch, Workers: r.Workers, Lease: r.Lease, Poll: r.Poll, Wake: r.Wake,
		MaxAttempts: r.MaxAttempts, MinRetry: r.MinRetry, MaxRetry: r.MaxRetry,
	}
	if r.Publisher != nil {
		o.Publish = r.publish
	}
	return o
}

// publish says what the publisher's error means.
func (r Relay) publish(ctx context.Context, found []engine.Event) engine.Result {
	err := r.Publisher.Publish(ctx, events(found))
	var each EventErrors
	if errors.As(err, &each) {
		return engine.Result{Each: each, Err: err}
	}
	return engine.Result{Err: err}
}

// Run publishes until ctx ends, and returns its error, or at once one that says what is wrong with r. After an error of
// the database's it goes on after a rest. It may run in any number of processes. When ctx ends while Publish runs, so
// does Publish's; what it has published is still deleted, and the lane is free for others at once.
//
// It owns its transactions, and if db is a pool holds no connection while Publish runs. They are READ COMMITTED and do
// not wait for the disk or a standby (synchronous_commit): what a crash undoes is published again. It needs SELECT,
// UPDATE and DELETE on both tables.
func (r Relay) Run(ctx context.Context, db dedup.DB) error {
	tell := func(s engine.Stats, published, err error) {
		if r.Done != nil {
			r.Done(ctx, Stats(s), cmp.Or(wrapped("relay", err), wrapped("publish", published)))
		}
	}
	err := r.options().Run(ctx, pg.WriterPgxAlone(db), pg.WriterPgx(db), tell)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("outbox: run: %w", err)
	}
	return err
}

// Drain publishes until nothing is due, and returns: for tests, and for a scheduler. It returns the Publisher's first
// error, though others may have been published; a later call tries again what failed, when its time has come. An error
// of the database's ends it.
func (r Relay) Drain(ctx context.Context, db dedup.DB) (Stats, error) {
	e, err := r.options().Relay()
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: drain: %w", err)
	}
	s, published, err := e.New(pg.WriterPgxAlone(db), pg.WriterPgx(db)).Drain(ctx)
	return Stats(s), cmp.Or(wrapped("drain", err), wrapped("publish", published))
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outbox: %s: %w", what, err)
}
