// Package pg is the seam between pgonce and the drivers: what the engines need of a connection, of a transaction and of
// a pool, and one adapter for each driver. Engines hold one SQL text; which driver carries it is decided at the front
// door.
package pg

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Stmt is one statement of a [Conn.Send].
type Stmt struct {
	SQL  string
	Args []any // string, []byte, int64, bool or nil; the SQL casts each ($1::text), so that no exec mode has to guess

	// Dest, where not nil, receives the columns of the first row. Without it, rows are not read.
	Dest []any

	// Rows is set by Send: rows returned where Dest is set, which is the proof of what a statement did. Without Dest it is
	// the count of the command tag, which some servers of this protocol get wrong for ON CONFLICT DO NOTHING.
	Rows int64
	Done bool // set by Send: the server has completed the statement
}

// Conn is one connection, in or outside a transaction. It is not safe for concurrent use.
type Conn interface {
	// Send runs stmts in order and stops at the first that fails, whose error it returns; Done tells how far it came.
	// pgx sends more than one in a single round trip, database/sql one after the other.
	Send(ctx context.Context, stmts ...*Stmt) error

	// Query runs one statement and calls row for each of its rows, in order; scan is valid during the call only. It
	// stops at the first error, of the server or of row, and returns it.
	Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error
}

// Tx is a transaction that somebody has begun.
type Tx interface {
	Conn

	// NeedsMark reports whether Check needs a mark in the transaction, see [Mark]: a driver that does not know the state
	// of its connection must ask the server whether the transaction is still the same.
	NeedsMark() bool

	// Check reports what has become of the transaction: nil while it can go on, else one of the errors below. mark is what
	// the claim has set, where NeedsMark says so. It works with a done context.
	Check(ctx context.Context, mark int64) error

	// Fail makes sure that the transaction cannot be committed, as an SQL error would, and that a rollback to a
	// savepoint of the caller's makes it usable again. It works with a done context. Where the server cannot be told,
	// the connection is closed. It returns ErrTxEnded or ErrCanceled where the transaction had ended already, however, and
	// ErrLost where the connection was lost.
	Fail(ctx context.Context) error
}

// What [Tx.Check] finds.
var (
	ErrTxFailed = errors.New("an SQL error has failed the transaction")
	ErrTxEnded  = errors.New("the transaction has ended")
	ErrCanceled = errors.New("the transaction was rolled back when its context ended")
	ErrLost     = errors.New("the connection is lost")
	ErrRowsOpen = errors.New("rows are still open")
	ErrNoAnswer = errors.New("the transaction does not answer: rows are still open, or the connection is lost")
)

// OwnTx is a transaction that pgonce has begun, and ends.
type OwnTx interface {
	Tx

	// Commit commits. A nil error is the only yes; pgerr.CommitUnknown tells no from unknown.
	Commit(ctx context.Context) error

	// Rollback rolls back, whatever the state of the transaction and of ctx, and gives the connection back. It returns
	// ErrLost where the server could not be told, which is a roll back, too; else nil.
	Rollback(ctx context.Context) error

	// SendAndRollback is Send, then Rollback, in one round trip where the driver can.
	SendAndRollback(ctx context.Context, stmts ...*Stmt) error
}

// DB begins transactions.
type DB interface {
	// NeedsMark is what NeedsMark of each transaction will say.
	NeedsMark() bool

	// Begin begins a transaction and sends stmts in it, in one round trip where the driver can. After an error there is
	// no transaction.
	Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error)
}

// Unsent reports whether err says that its statement was not sent: rows were open, or the context was done. Of a
// batch it says so of all, of several statements of database/sql of the first that is not Done. A driver may also say
// driver.ErrBadConn of a connection that it has lost, on which nothing can be committed any more.
func Unsent(err error) bool { return pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) }

// notSent is the error of a statement that the adapter itself held back.
type notSent struct{ error }

func (e notSent) Unwrap() error     { return e.error }
func (e notSent) SafeToRetry() bool { return true }

// Mark is the name of a setting by which a transaction can be known again. Every claim sets it anew, for its
// transaction only: the server takes it back when the transaction ends, and with a roll back to a savepoint that is
// older than the claim. Its lower bits ([MarkCount]) count the claims of the transaction; the others are random.
const (
	Mark            = "pgonce.mark"
	MarkCount int64 = 1<<24 - 1
)

// stands reports whether a claim that has set mine is still part of a transaction whose mark is now: that is mine, or
// one of a later claim, made by fn. An fn that rolls its own claim back, and then makes two of its own, is not found.
func stands(mine, now int64) bool { return mine == now || now&MarkCount > mine&MarkCount }

// CleanUpTime bounds what is done on behalf of a context that is done already.
const CleanUpTime = 5 * time.Second

// Detached returns a context for cleaning up: ctx's values, not its end.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), CleanUpTime)
}

// failSQL fails a transaction: there is no savepoint of this name, so the server answers 3B001, and its log says why.
// Why not a savepoint around fn, to roll back to: it would cost every call a round trip, and a nested call would have
// to name it apart from the outer one's.
const failSQL = `ROLLBACK TO SAVEPOINT "pgonce: fn failed, roll back"`
