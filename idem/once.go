package idem

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
)

// Outcome says whether the effect ran in this call. The zero Outcome comes with an error.
type Outcome uint8

const (
	// Executed: the key was new, and the effect ran, in this call.
	Executed Outcome = Outcome(claim.Executed)
	// Duplicate: the effect of this key is there already, committed; fn was not called. This is success: acknowledge.
	Duplicate Outcome = Outcome(claim.Duplicate)
)

// String returns "executed", "duplicate", or "none".
func (o Outcome) String() string {
	switch o {
	case Executed:
		return "executed"
	case Duplicate:
		return "duplicate"
	}
	return "none"
}

// DB begins the transaction of [Run]: a *pgxpool.Pool, a *pgxpool.Conn, a *pgx.Conn, or a wrapper of one. A pgx.Tx does
// not fit, so Run inside a transaction does not compile; a connection that is in one is refused. Over a wrapper a
// duplicate takes one more round trip, for its ROLLBACK.
type DB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Once is how keys are claimed: the table, and how long and how often to try. Its zero value works. It is a plain
// value, safe for concurrent use, and usually a field of the service that uses it.
type Once struct {
	// Table is the dedup table; the zero Table is processed_events.
	Table dedup.Table

	// MaxWait is the longest that a call waits, in all, for other transactions that hold the key; then it returns
	// [ErrInProgress]. 0 waits as long as the context and the server's limits allow. The server counts it, rounded up
	// to 1 ms. A smaller statement_timeout or lock_timeout of yours ends the claim earlier, with its own error. A
	// context that ends during the wait costs the transaction and its connection.
	//
	// After MaxWait a last look tells why, in up to one more second: 10 ms for each lock. It claims a key that nobody
	// holds. A locked table (DDL) is 55P03 then, and a slow server 57014, both [Retryable]. While pgx prepares the
	// claim it may wait for a lock on the table before any limit is sent; a lock_timeout of the session bounds that.
	//
	// With Do it costs four short statements in the claim's round trip, and a subtransaction: PostgreSQL looks those up
	// more slowly from the 65th in one transaction on.
	MaxWait time.Duration

	// Tries is how many transactions Run begins at most. 0 means 10: about two seconds, with the pauses between them
	// (exponential, at most 1 s, random). Less is refused.
	Tries int

	// TxOptions are those of Run's transactions. The zero value is the server's default isolation.
	TxOptions pgx.TxOptions

	// Observer, if not nil, is told of every call.
	Observer dedup.Observer
}

// Do runs fn once for key, in the caller's transaction. It inserts the key's row, and calls fn only if that row is new.
// Key and effect stand or fall together with tx.
//
//   - First call: fn runs, and Do returns Executed. It counts when the caller commits.
//   - Duplicate: the row is there, committed (or written earlier in tx). Do returns Duplicate; fn is not called,
//     nothing is written, and tx stays usable.
//   - Concurrent duplicate: Do waits for the transaction that holds the key. If that commits, Duplicate; if it rolls
//     back, this call runs fn. With [Once.MaxWait], ErrInProgress after that long, and tx stays usable. At REPEATABLE
//     READ and SERIALIZABLE, a rival that committed after tx's snapshot is 40001: run the transaction again.
//   - fn returns an error, panics, or ends the goroutine: Do fails tx as an SQL error would, and returns that error,
//     unchanged, or panics on. To go on, call Do inside a savepoint of your own (tx.Begin) and roll back to it: key and
//     effect are gone together, and what was written before stays.
//   - Any other error is an *[Error], or a *[KeyError] before any SQL. The server's errors have failed tx.
//     [ErrInProgress], [ErrPayloadMismatch], [ErrExpired], [ErrUnfinished] and a *[FinalError] leave it usable. If
//     nothing was sent, because rows are open, ctx is done, or tx was ended in SQL text, tx stays as it was.
//
// fn gets tx back behind a wrapper, on which it may Begin. It must not:
//
//   - End the transaction. The wrapper's Commit and Rollback refuse, and fail the call. A COMMIT or ROLLBACK in SQL
//     text is found after fn: an *[Error] of [StageFn], not [Retryable]. What fn has committed so stays, the key
//     perhaps without the whole effect. FN.md, beside this file, says what is not found.
//   - Swallow an SQL error, or leave rows open: Do returns an error though fn returned nil.
//   - Write its own key (Do, [Run], [Once.DoMany], [Once.Forget], [Once.Reserve], [Call], its [Reservation]): that call
//     is [ErrNested] before any SQL, and the call around it fails too. Give such an effect an operation of its own.
//   - Count on what it does outside tx (mail, HTTP): no rollback undoes it, and the next delivery does it again.
//
// Claim several keys of one transaction in one order everywhere, else two transactions can deadlock (40P01).
//
// The caller owns tx: Do begins, commits and rolls back nothing. A ctx that ends during a statement closes tx's
// connection, as in pgx. tx is not safe for concurrent use; Do on different transactions is. fn must not be nil.
func Do(ctx context.Context, tx pgx.Tx, key Key, fn func(context.Context, pgx.Tx) error) (Outcome, error) {
	return Once{}.Do(ctx, tx, key, fn)
}

// Run runs fn once for key, in a transaction of its own, and commits it. Begin and claim share one round trip.
//
//   - First call: fn runs, Run commits, and returns Executed.
//   - Duplicate: Run returns Duplicate; fn is not called, nothing is written.
//   - Concurrent duplicate: as with [Do], and 40001 is retried here.
//   - fn returns an error, panics, or ends the goroutine: Run rolls back, and returns that error, unchanged, or panics
//     on.
//
// After a serialization failure, a deadlock or a lost connection it begins anew, up to [Once.Tries] times with growing
// random pauses. So fn may run more than once, and only its last run is committed: it must set what it keeps outside
// tx, not add to it. Its effects outside the database may be repeated.
//
// A COMMIT whose reply is lost is settled by claiming again: the row's random token says whose it is, after a failover,
// too. Executed means that the committed row is this call's. If Run cannot find out before ctx or the tries end, it
// returns an *[Error] with Unknown set; the same key, delivered again, gets the right answer.
//
// fn must not do what [Do] forbids: after "ROLLBACK; BEGIN" the key is gone, and the effect is committed. A Run that fn
// calls for another key takes a second connection: on a small pool all callers may wait for one.
//
// Run owns the transaction and leaves none open, and no connection taken, on any path. Safe for concurrent use if db
// is. fn must not be nil.
func Run(ctx context.Context, db DB, key Key, fn func(context.Context, pgx.Tx) error) (Outcome, error) {
	return Once{}.Run(ctx, db, key, fn)
}

// Do is the function [Do], with the settings of o.
func (o Once) Do(ctx context.Context, tx pgx.Tx, key Key, fn func(context.Context, pgx.Tx) error) (Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return 0, err
	}
	res, err := claim.Do(inside(ctx, tx), pg.FromPgxTx(tx), c, func(ctx context.Context, tx pg.Tx) error {
		return run(ctx, tx, fn)
	})
	return Outcome(res.Outcome), o.translate(key.Scope(), err)
}

// Run is the function [Run], with the settings of o.
func (o Once) Run(ctx context.Context, db DB, key Key, fn func(context.Context, pgx.Tx) error) (Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return 0, err
	}
	res, err := claim.Run(ctx, pg.FromPgxLender(db, lender(db), o.TxOptions), c,
		func(ctx context.Context, tx pg.Tx) error {
			return run(ctx, tx, fn)
		})
	return Outcome(res.Outcome), o.translate(key.Scope(), err)
}

// claim checks the key and the table before any SQL, and makes of them what the engine takes.
func (o Once) claim(key Key) (*claim.Claim, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	c, err := o.settings().Claim(key.facts)
	return c, o.translate(key.Scope(), err)
}

func (o Once) settings() front.Settings {
	return front.Settings{
		Table: o.Table, MaxWait: o.MaxWait, Tries: o.Tries, Observer: o.Observer,
		Translate: func(of front.Name, err error) error {
			return o.translate(Scope{Source: of.Source, Operation: of.Operation}, err)
		},
	}
}
