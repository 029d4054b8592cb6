package webhook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/idem"
)

// Sink takes events. [Effect] is one; one that stores them, to work later, is another.
type Sink interface {
	// Accept returns nil when the event is safe: its effect is committed, or whatever will bring it about is, by this
	// call or an earlier one for the same key. The Handler answers 200 then; for errors see the package documentation.
	// One of idem's counts as there, also wrapped. ErrMalformed is a 422, for an event that no retry can make better;
	// if a new version of the program might understand it, return an error of your own, for a 500. ctx ends after the
	// Handler's Timeout. It is called by several goroutines at once, for one key, too.
	Accept(ctx context.Context, key idem.Key, e Event) (idem.Outcome, error)
}

// SinkFunc is a function as a [Sink].
type SinkFunc func(ctx context.Context, key idem.Key, e Event) (idem.Outcome, error)

// Accept calls f.
func (f SinkFunc) Accept(ctx context.Context, key idem.Key, e Event) (idem.Outcome, error) {
	return f(ctx, key, e)
}

// Effect is the [Sink] that runs Fn once for each event, in a transaction that also holds the event's key. DB and Fn
// are needed. See idem.Run for duplicates, concurrent ones, and errors.
type Effect struct {
	DB   idem.DB
	Once idem.Once // the table, MaxWait, and so on

	// Fn makes the effect, in tx. It may run more than once, and only its last run is committed. Its error rolls back;
	// the sender gets a 500 (503 for what idem.Retryable names), and repeats. That holds for one of idem's about a key
	// of Fn's own, too. Only ErrMalformed is a 422. Fn returns nil for an event that does not matter to it.
	Fn func(ctx context.Context, tx pgx.Tx, e Event) error
}

// Accept runs Fn, if the event is new.
func (f Effect) Accept(ctx context.Context, key idem.Key, e Event) (idem.Outcome, error) {
	return f.Once.Run(ctx, f.DB, key, func(ctx context.Context, tx pgx.Tx) error {
		if err := f.Fn(ctx, tx, e); err != nil {
			return &effectError{err}
		}
		return nil
	})
}

// effectError is an error of Fn's. What it wraps may look like one about the event.
type effectError struct{ cause error }

func (e *effectError) Error() string { return e.cause.Error() }
func (e *effectError) Unwrap() error { return e.cause }

// Validate reports what is missing. It does not look at a database.
func (f Effect) Validate() error {
	switch {
	case f.DB == nil:
		return errNoDB
	case f.Fn == nil:
		return errNoFn
	}
	return f.Once.Table.Validate()
}
