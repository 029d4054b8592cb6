package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Handler handles a message, in the transaction in which it is marked as handled. It gets the bytes as they were
// stored.
//
// A handler gets tx behind a wrapper whose Commit and Rollback refuse; calling them fails the attempt. A nested
// tx.Begin is the handler's to use. A handler that swallows an SQL error, or leaves rows open, has failed though it
// returned nil. It must not end the transaction in SQL text: what it committed so stays, and the message is not
// handled. A COMMIT or ROLLBACK is found, AND CHAIN or not, also where the handler then fails; not where an SQL error
// has failed the transaction that began behind it. All of these are [ErrMisuse]. What
// a handler does outside of tx (mail, HTTP) is not undone by a roll back, and is done again by the next attempt.
//
// tx is READ COMMITTED. It is not safe for concurrent use; the handler itself may be called by several goroutines at
// once, with different messages. A panic is an error of the attempt's. ctx ends with that of Run, and after
// [Worker].Timeout; during a statement that closes tx's connection, as in pgx. It must not keep m.Body, nor change it.
type Handler func(ctx context.Context, tx pgx.Tx, m Message) error

// What a handler's error can be, with errors.Is.
var (
	// ErrFinal is for a handler to wrap, if no retry can help: the message is dead at once.
	ErrFinal = engine.ErrFinal

	// ErrPanic: the handler panicked.
	ErrPanic = engine.ErrPanic

	// ErrMisuse: the handler has broken its contract, see [Handler]. The message is dead at once, for each attempt
	// would repeat what the handler committed by itself.
	ErrMisuse = engine.ErrMisuse
)

// Worker handles what was stored. Its zero value works. It is a plain value, safe for concurrent use.
type Worker struct {
	Table Table

	// Workers is how many messages Run handles at a time, each with a connection, and for moments a second one. 0 means
	// 1.
	Workers int

	// Timeout ends the handler's ctx. 0 means never.
	Timeout time.Duration

	// Lease is how long a message is left alone from its claim, if its worker dies; then it is left alone as long again,
	// 5 seconds at most, for a worker that was late and not dead. It need not be longer than a handler takes: the
	// message's row is locked for as long. 0 means 30 seconds.
	Lease time.Duration

	// Poll is how long to wait after nothing was found. 0 means 25 ms. A look writes nothing.
	Poll time.Duration

	// Wake, if not nil, ends such a wait: send to it, without blocking, after a COMMIT of this process, or let [Listen]
	// do it. It only saves time; a lost wake-up loses nothing.
	Wake <-chan struct{}

	// MaxAttempts is how often a message is tried before it is dead. 0 means 20: about nine hours.
	MaxAttempts int

	// MinRetry and MaxRetry are the first and the longest time between two attempts, give or take a fifth. 0 means a
	// second, and an hour.
	MinRetry, MaxRetry time.Duration

	// Done, if not nil, is called after each attempt, and after each error of the database's, by one goroutine or
	// several. m has no headers and no body, and no name if no message was taken. err is nil for a handled message,
	// else the handler's or the database's; without Done nobody hears of it.
	Done func(ctx context.Context, m Message, err error)
}

// Stats is what a worker has done.
type Stats struct {
	Handled int64
	Failed  int64 // attempts
	Dead    int64 // messages that had their last attempt, by a worker that died as well
}

// Validate reports whether w can be a worker, without looking at a database.
func (w Worker) Validate() error {
	none := func(context.Context, pg.Tx, engine.Message) error { return nil }
	_, err := w.options(none).Worker(nil, nil)
	return wrapped("worker", err)
}

func (w Worker) options(h engine.Handler) engine.Options {
	return engine.Options{
		Table: engine.Table(w.Table), Handle: h, Workers: w.Workers, Timeout: w.Timeout, Lease: w.Lease, Poll: w.Poll,
		Wake: w.Wake, MaxAttempts: w.MaxAttempts, MinRetry: w.MinRetry, MaxRetry: w.MaxRetry,
	}
}

// adapt returns the engine's handler; nil for nil.
func adapt(h Handler) engine.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, tx pg.Tx, m engine.Message) error {
		owned := &ownedTx{Tx: pg.PgxOf(tx)}
		err := h(ctx, owned, message(m))
		if owned.refused {
			return errors.Join(fmt.Errorf("%w: %w", ErrMisuse, errOwned), err)
		}
		return err
	}
}

// ownedTx is the transaction as a handler sees it: everything but its end.
type ownedTx struct {
	pgx.Tx
	refused bool
}

var errOwned = errors.New("it may not commit or roll back the transaction it was given; it must return nil or an " +
	"error instead")

func (t *ownedTx) Commit(context.Context) error   { t.refused = true; return errOwned }
func (t *ownedTx) Rollback(context.Context) error { t.refused = true; return errOwned }

// Run handles messages until ctx ends, and returns its error, or at once one that says what is wrong with w. After an
// error of the database's it goes on after a rest. It may run in any number of processes. When ctx ends, so does the
// handler's: if the handler returns nil it is committed, and if it fails no attempt is counted.
//
// It owns its transactions, and if db is a pool holds a connection only while a handler runs.
func (w Worker) Run(ctx context.Context, db dedup.DB, h Handler) error {
	err := w.options(adapt(h)).Run(ctx, pg.WriterPgxAlone(db), pg.FromPgxDB(db, readCommitted()), w.tell(ctx))
	if err != nil && ctx.Err() == nil {
		return wrapped("run", err)
	}
	return err
}

// Drain handles messages, one at a time, until none is due, and returns: for tests, and for a scheduler. It returns the
// handler's first error, though other messages may have been handled; a later call tries again what failed, when its
// time has come. An error of the database's ends it.
func (w Worker) Drain(ctx context.Context, db dedup.DB, h Handler) (Stats, error) {
	e, err := w.options(adapt(h)).Worker(pg.WriterPgxAlone(db), pg.FromPgxDB(db, readCommitted()))
	if err != nil {
		return Stats{}, wrapped("drain", err)
	}
	s, handler, err := e.Drain(ctx, w.tell(ctx))
	return Stats(s), cmp.Or(wrapped("drain", err), wrapped("handle", handler))
}

// tell returns what calls Done.
func (w Worker) tell(ctx context.Context) func(a engine.Attempt, err error) {
	return func(a engine.Attempt, err error) {
		if w.Done != nil {
			w.Done(ctx, message(a.Msg), cmp.Or(wrapped("work", err), wrapped("handle", a.Err)))
		}
	}
}

func readCommitted() pgx.TxOptions {
	return pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
}
