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

// Conn is anything that runs statements as database/sql does. [Do], [Once.Forget] and [Reservation.Confirm] want one that is
// in a transaction: a *sql.Tx, a *sqlx.Tx, the ConnPool of a GORM transaction, a *sql.Conn on which one was begun, or a
// wrapper of these. For everything else a *sql.DB will do.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DB is what [Run], [Once.Reserve], [Call] and [Migrate] need to begin their transactions: a *sql.DB, a *sqlx.DB, a *sql.Conn, or a wrapper of one.
// A *sql.Tx does not fit, so that Run inside of a transaction, where it could not keep its promise, does not compile; a
// *sql.Conn that is in a transaction is refused, with pgx before any SQL, with lib/pq by the driver. A driver that is wrapped in
// another one, as for tracing, may hide it: then the outer transaction would be committed.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Once is how keys are claimed: the table, and how long and how often to try. Like sync.Once, its zero value works; it
// is a plain value, safe for concurrent use, and usually a field of the service that uses it.
type Once struct {
	// Table is the dedup table; the zero Table is processed_events.
	Table dedup.Table

	// MaxWait is the longest that a call waits, in all, for other transactions that hold the key; then it returns
	// [idem.ErrInProgress]. It is counted in the server, rounded up to 1 ms. A smaller statement_timeout or lock_timeout
	// of yours still ends the claim earlier, with its own error. 0 waits for as long as the context and those allow. With
	// Do, MaxWait costs four statements more, with Run two, each a round trip; a context that ends during the wait,
	// instead, costs the transaction and its connection.
	//
	// Where MaxWait has ended, a last look tells why, in up to one second more: 10 ms for each lock. It claims a key that
	// nobody holds. A table that is locked itself (DDL) is 55P03 then, and a server that is slow 57014; both are
	// [idem.Retryable].
	//
	// Each Do with MaxWait is a subtransaction, and from the 65th in one transaction on PostgreSQL looks them up more
	// slowly.
	MaxWait time.Duration

	// Tries is how many transactions Run begins at the most. 0 means 10, less is refused: with the pauses between them
	// (exponential, at most 1 s, random), about two seconds.
	Tries int

	// TxOptions are those of Run's transactions. The zero value is the server's default isolation.
	TxOptions sql.TxOptions

	// Observer, where not nil, is told of every call.
	Observer dedup.Observer
}

// Do runs fn once for key, in the caller's transaction. It inserts the key's row, and calls fn only when that row is
// new: the primary key of the table decides, never a lookup. Key and effect stand or fall together with tx.
//
//   - First call: the row is new, fn runs, and Do returns Executed. It counts when the caller commits, and that Commit
//     returned nil.
//   - Duplicate: the row is there, committed (or written earlier in tx); Do returns Duplicate, fn is not called, nothing is
//     written, and tx is as usable as before.
//   - Concurrent duplicate: Do waits for the transaction that holds the key. If that commits, Duplicate; if it rolls
//     back, this call runs fn. With [Once.MaxWait], ErrInProgress after that long, and tx stays usable. At REPEATABLE
//     READ and SERIALIZABLE a rival that committed after tx took its snapshot is 40001, as PostgreSQL reports it: run
//     the transaction again.
//   - fn returns an error, panics, or ends the goroutine: Do fails tx exactly as an SQL error would, and returns that
//     error, unchanged, or panics on. A Commit cannot succeed then. To go on, call Do inside a savepoint of your own
//     (SAVEPOINT, or GORM's nested Transaction) and roll back to it: key and effect are gone together, what was written
//     before and after stays.
//   - Any other error comes as an *[idem.Error], or as a *[idem.KeyError] before any SQL. An error of the server's,
//     or of the connection, has failed tx. Where nothing was sent, for ctx is done, or rows are open and the driver
//     says so by driver.ErrBadConn, tx is as the driver leaves it. ErrInProgress, ErrPayloadMismatch, ErrExpired,
//     ErrUnfinished and a *FinalError of package idem leave it usable.
//
// fn gets tx back as a [Tx], which has no Commit and no Rollback. It may use tx itself as well, or what is built on it: a
// *gorm.DB, a *sqlx.Tx, the Queries of sqlc. It must not:
//
//   - End the transaction. That cannot be refused. After fn, on a first delivery, Do asks the server whether the claim's
//     transaction is still open and can go on: one more round trip. So it finds COMMIT, ROLLBACK, a transaction that was
//     begun anew, and ROLLBACK TO a savepoint older than the call. Whatever was committed was key and effect together. The
//     transaction is known by the setting pgonce.mark, local to it; RESET ALL in fn is taken for its end.
//   - Swallow an SQL error, or leave rows open: Do returns an error though fn returned nil.
//   - Write its own key (Do, [Run], [Once.DoMany], [Once.Forget], [Once.Reserve], [Call], its [Reservation]): that call is
//     [idem.ErrNested] before any SQL, and the call around it fails too. Give such an effect an operation of its own.
//   - Count on what it does outside of tx (mail, HTTP): no roll back undoes it, and the next delivery does it again.
//
// FN.md of package idem says how a nested call is known, and what is not found.
//
// A *sql.Tx that was ended in SQL text before (COMMIT, ROLLBACK) is an *[idem.Error] with pgx/stdlib, and nothing is
// sent; so it is for [Once.Forget] and [Reservation.Confirm]. With lib/pq, database/sql cannot tell it: without MaxWait
// the claim is committed alone. Do finds that after fn, and returns an *[idem.Error] of idem.StageFn; the key stays. End
// transactions by Commit and Rollback alone.
//
// Several keys in one transaction: claim them in one order everywhere. Else two transactions can deadlock (40P01).
//
// The caller owns tx: Do begins, commits and rolls back nothing, with one exception. Where fn failed and the server
// cannot be told to fail tx, because rows are open or the connection is lost, Do rolls tx back: database/sql would close
// the rows by itself, and commit. A tx that has neither Rollback nor Raw cannot be helped then; roll it back.
//
// A tx without the methods Commit and Rollback is first asked, in two statements, whether it is in a transaction: a
// *sql.DB is refused, for it would commit the key before the effect. When the context that a *sql.Tx was begun with ends,
// database/sql rolls it back, whatever Do is doing. tx is not safe for concurrent use; Do on different transactions is. fn
// must not be nil.
func Do(ctx context.Context, tx Conn, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error) {
	return Once{}.Do(ctx, tx, key, fn)
}

// Run runs fn once for key, in a transaction of its own, and commits it.
//
//   - First call: fn runs, Run commits, and returns Executed.
//   - Duplicate: Run returns Duplicate; fn is not called, nothing is written.
//   - Concurrent duplicate: as with [Do], and 40001 is retried here.
//   - fn returns an error, panics, or ends the goroutine: Run rolls back, and returns that error, unchanged, or panics on.
//
// Serialization failures, deadlocks and lost connections are met by beginning anew, up to [Once.Tries] times with
// growing random pauses: fn may run more than once, and only its last run is committed. So fn must set what it keeps
// outside of tx, not add to it, and its effects outside of the database may be repeated.
//
// A COMMIT whose reply is lost, which a driver may report as driver.ErrBadConn, is settled by claiming again: the row says
// whether it took place, and whose it is. Run returns Executed only where the committed row is its own. Where it cannot
// find out before ctx or the tries end, it returns an *[idem.Error] with Unknown set; the same key, delivered again, gets
// the right answer. What database/sql itself repeats after driver.ErrBadConn is the beginning of a transaction, nothing
// that comes after it.
//
// A first delivery is BEGIN, the claim, fn, the check that [Do] describes, and COMMIT; a duplicate BEGIN, the claim, a
// read, and ROLLBACK. Each is a round trip: database/sql sends nothing ahead.
//
// ctx is that of every statement. The transaction is begun with a context of its own, so that database/sql does not roll
// back behind fn's back when ctx ends; fn's next statement with ctx fails, and Run rolls back. A ctx that ends before
// COMMIT is sent is a plain no; one that ends afterwards, before the reply, may be Unknown.
//
// A Run that fn calls for another key takes a second connection. On a small pool all callers may wait for one.
//
// Run owns the transaction and leaves none open, and no connection taken, on any path. It is safe for concurrent use
// where db is. fn must not be nil.
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
	res, err := claim.Run(ctx, pg.FromSQLDB(db, o.TxOptions), c, func(ctx context.Context, tx pg.Tx) error { return run(ctx, tx, fn) })
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
			return &idem.Error{Scope: scope, Table: o.Table.Name, Stage: idem.Stage(f.Stage), Unknown: f.CommitUnknown, Err: cause}
		},
	})
}
