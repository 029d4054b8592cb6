package idemsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/front"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Conn runs statements as database/sql does. [Do], [Once.Forget] and [Reservation.Confirm] need one that is in a
// transaction: a *sql.Tx, a *sqlx.Tx, a GORM transaction's ConnPool, a *sql.Conn on which one was begun, or a wrapper
// of these. Everything else takes a *sql.DB too.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DB begins the transactions of [Run], [Once.Reserve], [Call] and [Migrate]: a *sql.DB, a *sqlx.DB, a *sql.Conn, or a
// wrapper of one. A *sql.Tx does not fit, so Run inside a transaction does not compile. A *sql.Conn that is in a
// transaction is refused, with pgx before any SQL, with lib/pq by the driver. A driver wrapped in another, as for
// tracing, may hide it: then the outer transaction would be committed.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Once is how keys are claimed: the table, and how long and how often to try. Its zero value works. It is a plain
// value, safe for concurrent use.
type Once struct {
	// Table is the dedup table; the zero Table is processed_events.
	Table dedup.Table

	// MaxWait is [idem.Once.MaxWait]. 0 waits as long as the context and the server's limits allow. With Do it costs
	// four statements more, with Run two, each a round trip.
	MaxWait time.Duration

	// Tries is how many transactions Run begins at most. 0 means 10: about two seconds, with the pauses between them.
	// Less is refused.
	Tries int

	// TxOptions are those of Run's transactions. The zero value is the server's default isolation.
	TxOptions sql.TxOptions

	// Observer, if not nil, is told of every call.
	Observer dedup.Observer
}

// Do runs fn once for key, in the caller's transaction, as [idem.Do] does: Executed if the row is new and fn ran,
// Duplicate if it was there. A concurrent duplicate waits. An error of fn's fails tx as an SQL error would. The first
// delivery counts when the caller's Commit returned nil.
//
// To go on after an error, call Do inside a savepoint of your own (SAVEPOINT, or GORM's nested Transaction) and roll
// back to it. The server's errors, and the connection's, have failed tx. If nothing was sent, because ctx is done, or
// rows are open and the driver says so by driver.ErrBadConn, tx is as the driver leaves it. ErrInProgress,
// ErrPayloadMismatch, ErrExpired, ErrUnfinished and a *FinalError of package idem leave it usable.
//
// fn gets tx back as a [Tx]. It may use tx itself as well, or what is built on it: a *gorm.DB, a *sqlx.Tx, the Queries
// of sqlc. What [idem.Do] forbids is forbidden here, but nothing can refuse the end of the transaction. So after fn, on
// a first delivery, Do asks whether the claim's transaction is still open: one more round trip. That finds COMMIT,
// ROLLBACK, a transaction begun anew, and ROLLBACK TO a savepoint older than the call; what was committed was key and
// effect together. Do knows the transaction by the setting pgonce.mark, local to it; it takes RESET ALL in fn for its
// end.
//
// The caller owns tx: Do begins, commits and rolls back nothing, with one exception. If fn failed, and rows are open or
// the connection is lost, the server cannot be told to fail tx. Then Do rolls tx back, for database/sql would close the
// rows and commit. Roll back yourself a tx that has neither Rollback nor Raw.
//
// A tx without the methods Commit and Rollback is first asked, in two statements, whether it is in a transaction. So a
// *sql.DB is refused: it would commit the key before the effect. A *sql.Tx that was ended in SQL text is an
// *[idem.Error] with pgx/stdlib, and nothing is sent; so it is for [Once.Forget] and [Reservation.Confirm]. With lib/pq
// nobody can tell: without MaxWait the claim is committed alone. Do finds that after fn, and returns an *[idem.Error]
// of idem.StageFn; the key stays. End transactions by Commit and Rollback only.
//
// When the context that a *sql.Tx was begun with ends, database/sql rolls it back, whatever Do is doing. Claim several
// keys in one order everywhere, else transactions can deadlock (40P01). tx is not safe for concurrent use; Do on
// different transactions is. fn must not be nil.
func Do(ctx context.Context, tx Conn, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error) {
	return Once{}.Do(ctx, tx, key, fn)
}

// Run runs fn once for key, in a transaction of its own, and commits it, as [idem.Run] does: Executed, or Duplicate
// with nothing written. A concurrent duplicate waits, as with [Do]. On an error of fn's it rolls back and returns that.
// Conflicts and lost connections are tried again up to [Once.Tries] times, so fn may run more than once. A COMMIT whose
// reply is lost (which a driver may report as driver.ErrBadConn) is settled as there.
//
// A first delivery is BEGIN, the claim, fn, the check that [Do] describes, and COMMIT; a duplicate BEGIN, the claim, a
// read, and ROLLBACK. Each is a round trip. After driver.ErrBadConn database/sql repeats by itself only the beginning
// of a transaction.
//
// ctx is that of every statement, and not of the transaction: when it ends, fn's next statement fails, and Run rolls
// back. A ctx that ends before COMMIT is sent is a plain no. One that ends between COMMIT and its reply may be Unknown.
//
// A Run that fn calls for another key takes a second connection: on a small pool all callers may wait for one. Run owns
// the transaction and leaves none open, and no connection taken, on any path. Safe for concurrent use if db is. fn must
// not be nil.
func Run(ctx context.Context, db DB, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error) {
	return Once{}.Run(ctx, db, key, fn)
}

// Do is the function [Do], with the settings of o.
func (o Once) Do(ctx context.Context, tx Conn, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return 0, err
	}
	ctx, tx = whole(ctx, tx)
	seam, err := open(ctx, tx)
	if err != nil {
		return 0, o.translate(key.Scope(), c.Refused(ctx, err))
	}
	res, err := claim.Do(ctx, seam, c, func(ctx context.Context, tx pg.Tx) error { return run(ctx, tx, fn) })
	return idem.Outcome(res.Outcome), o.translate(key.Scope(), err)
}

// Run is the function [Run], with the settings of o.
func (o Once) Run(ctx context.Context, db DB, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return 0, err
	}
	res, err := claim.Run(ctx, pg.FromSQLDB(db, o.TxOptions), c,
		func(ctx context.Context, tx pg.Tx) error { return run(ctx, tx, fn) })
	return idem.Outcome(res.Outcome), o.translate(key.Scope(), err)
}

// open adapts the caller's transaction, and refuses what is none.
func open(ctx context.Context, tx Conn) (pg.Tx, error) {
	seam, err := pg.FromSQLTx(ctx, tx)
	if err == nil {
		return seam, nil
	}
	f := &claim.Failure{Stage: claim.StageClaim, Err: err}
	if pgerr.Is(err, "25P01") {
		f.Hint = "a *sql.DB would commit the key before the effect: begin a transaction, or call Run"
	}
	return nil, f
}

// claim checks the key and the table before any SQL, and makes of them what the engine takes.
func (o Once) claim(key idem.Key) (*claim.Claim, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	c, err := o.settings().Claim(front.FactsOf(key))
	return c, o.translate(key.Scope(), err)
}

func (o Once) settings() front.Settings {
	return front.Settings{
		Table: o.Table, MaxWait: o.MaxWait, Tries: o.Tries, Observer: o.Observer,
		Translate: func(of front.Name, err error) error {
			return o.translate(idem.Scope{Source: of.Source, Operation: of.Operation}, err)
		},
	}
}

// translate gives the engine's failures the types of package idem. The effect's own errors pass as they are.
func (o Once) translate(scope idem.Scope, err error) error {
	return front.Translate(err, front.Types{
		Fault: func(f *front.KeyFault) error { return &idem.KeyError{Role: f.Role, Problem: f.Problem} },
		Final: func(f *claim.Final) error { return &idem.FinalError{Value: f.Value, Err: f.Err} },
		Failure: func(f *claim.Failure, cause error) error {
			return &idem.Error{
				Scope: scope, Table: o.Table.Name, Stage: idem.Stage(f.Stage), Unknown: f.CommitUnknown,
				Err: cause,
			}
		},
	})
}
