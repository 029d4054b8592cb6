// Package inboxsql is package inbox for database/sql: pgx/stdlib, lib/pq, and what stands on them. The types are
// inbox's, and so are states, order, failures and errors.
//
//	m := inbox.Message{Source: "stripe", Operation: "webhook", ID: event, Body: body}
//	out, err := inboxsql.Store(ctx, db, inbox.Table{}, m)
//
//	err := inboxsql.Run(ctx, db, inbox.Worker{}, func(ctx context.Context, tx inboxsql.Tx, m inbox.Message) error {
//		_, err := tx.ExecContext(ctx, `UPDATE subscriptions SET active = true WHERE id = $1`, string(m.Body))
//		return err
//	})
//
// Waking by Listen needs a connection of pgx: send to [inbox.Worker].Wake from wherever you listen, or let the worker
// look every 25 ms.
package inboxsql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	"github.com/pgonce/pgonce/dedup/inbox"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Conn runs single statements: a *sql.DB, *sql.Conn or *sql.Tx, or a wrapper of one.
type Conn interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DB begins transactions: a *sql.DB or *sql.Conn, or a wrapper of one.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Tx is a transaction as a handler sees it: a *sql.Tx without its end.
type Tx interface {
	Conn
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// Handler is [inbox.Handler] over database/sql. tx has no Commit and no Rollback, and no savepoints but those of SQL
// text.
type Handler func(ctx context.Context, tx Tx, m inbox.Message) error

// Store is [inbox.Table.Store]: it stores m once. With a *sql.Tx it is there if and when that is committed; else at
// once. A *sql.Conn in a transaction that was begun by hand will do, too.
func Store(ctx context.Context, db Conn, t inbox.Table, m inbox.Message) (inbox.Outcome, error) {
	conn := pg.FromSQL(db)
	if tx, ok := db.(*sql.Tx); ok {
		in, err := pg.FromSQLTx(ctx, tx)
		if err != nil {
			return 0, wrapped("store", err)
		}
		conn = in
	}
	fresh, err := engine.Table(t).Store(ctx, conn, aloneOf(db), engine.Message{
		Source: m.Source, Operation: m.Operation, ID: m.ID, Key: m.Key, Headers: m.Headers, Body: m.Body,
	})
	switch {
	case err != nil:
		return 0, wrapped("store", err)
	case fresh:
		return inbox.Stored, nil
	}
	return inbox.Duplicate, nil
}

// aloneOf adapts db for a transaction of its own; nil where db is a transaction, or in one.
func aloneOf(db Conn) pg.Conn {
	if own, ok := db.(pg.SQLDB); ok && !pg.SQLInTx(own) {
		return pg.WriterSQLAlone(own)
	}
	return nil
}

func options(w inbox.Worker, h Handler) engine.Options {
	o := engine.Options{
		Table: engine.Table(w.Table), Workers: w.Workers, Timeout: w.Timeout, Lease: w.Lease, Poll: w.Poll,
		Wake: w.Wake, MaxAttempts: w.MaxAttempts, MinRetry: w.MinRetry, MaxRetry: w.MaxRetry,
	}
	if h == nil {
		return o
	}
	o.Handle = func(ctx context.Context, tx pg.Tx, m engine.Message) error {
		t, err := newTx(tx)
		if err != nil {
			return err
		}
		defer t.closeRows() // whatever becomes of the handler: while they are open the server cannot be told anything
		if err := h(ctx, t, message(m)); err != nil {
			return err
		}
		if t.closeRows() {
			return fmt.Errorf("%w: it returned nil, and %w", inbox.ErrMisuse, pg.ErrRowsOpen)
		}
		return nil
	}
	return o
}

// Run is [inbox.Worker.Run]: it handles messages until ctx ends, and returns its error, or at once one that says what
// is wrong with w. Each of its own statements is a transaction, of four round trips.
func Run(ctx context.Context, db DB, w inbox.Worker, h Handler) error {
	err := options(w, h).Run(ctx, pg.WriterSQLAlone(db), pg.WriterSQL(db), tell(ctx, w))
	if err != nil && ctx.Err() == nil {
		return wrapped("run", err)
	}
	return err
}

// Drain is [inbox.Worker.Drain]: it handles messages until none is due.
func Drain(ctx context.Context, db DB, w inbox.Worker, h Handler) (inbox.Stats, error) {
	e, err := options(w, h).Worker(pg.WriterSQLAlone(db), pg.WriterSQL(db))
	if err != nil {
		return inbox.Stats{}, wrapped("drain", err)
	}
	s, handler, err := e.Drain(ctx, tell(ctx, w))
	return inbox.Stats(s), cmp.Or(wrapped("drain", err), wrapped("handle", handler))
}

// tell returns what calls Done.
func tell(ctx context.Context, w inbox.Worker) func(a engine.Attempt, err error) {
	return func(a engine.Attempt, err error) {
		if w.Done != nil {
			w.Done(ctx, message(a.Msg), cmp.Or(wrapped("work", err), wrapped("handle", a.Err)))
		}
	}
}

func message(m engine.Message) inbox.Message {
	return inbox.Message{
		Source: m.Source, Operation: m.Operation, ID: m.ID, Key: m.Key, Headers: m.Headers, Body: m.Body,
		ReceivedAt: m.ReceivedAt, State: inbox.State(m.State), Attempt: m.Attempt,
		ErrorClass: m.ErrorClass, LastError: m.LastError,
	}
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("inboxsql: %s: %w", what, err)
}
