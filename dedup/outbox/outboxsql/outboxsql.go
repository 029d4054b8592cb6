// Package outboxsql is package outbox for database/sql: pgx/stdlib, lib/pq, and what stands on them. The types are
// outbox's, and so are order, failures and errors.
//
//	err := outboxsql.Append(ctx, tx, outbox.Table{}, outbox.Event{Topic: "orders", Key: order, Payload: body})
//
//	err := outboxsql.Run(ctx, db, outbox.Relay{Publisher: publisher})
//
// Waking by Listen needs a connection of pgx: send to [outbox.Relay].Wake from wherever you listen, or let the relay
// look every 25 ms.
package outboxsql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgonce/pgonce/dedup/outbox"
	engine "github.com/pgonce/pgonce/internal/outbox"
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

func statements(t outbox.Table) (engine.SQL, error) {
	name, err := engine.ParseName(t.Name)
	return engine.For(name), err
}

// Append stores events in tx, as [outbox.Table.Append] does, each in one round trip. Of anything but a *sql.Tx it asks
// first, in two more, whether it is in a transaction; if not, that is an error.
func Append(ctx context.Context, tx Conn, t outbox.Table, events ...outbox.Event) error {
	s, err := statements(t)
	if err != nil {
		return fmt.Errorf("outboxsql: append: %w", err)
	}
	all := make([]engine.Event, len(events))
	for i, e := range events {
		all[i] = engine.Event(e)
	}
	in, err := pg.FromSQLTx(ctx, tx)
	if err == nil {
		err = s.Append(ctx, in, all...)
	}
	if err != nil {
		return fmt.Errorf("outboxsql: append: %w", err)
	}
	return nil
}

func options(r outbox.Relay) engine.Options {
	o := engine.Options{
		Table: r.Table.Name, Batch: r.Batch, Workers: r.Workers, Lease: r.Lease, Poll: r.Poll, Wake: r.Wake,
		MaxAttempts: r.MaxAttempts, MinRetry: r.MinRetry, MaxRetry: r.MaxRetry,
	}
	if r.Publisher == nil {
		return o
	}
	o.Publish = func(ctx context.Context, found []engine.Event) engine.Result {
		err := r.Publisher.Publish(ctx, events(found))
		var each outbox.EventErrors
		if errors.As(err, &each) {
			return engine.Result{Each: each, Err: err}
		}
		return engine.Result{Err: err}
	}
	return o
}

// Run is [outbox.Relay.Run]: it publishes until ctx ends, and returns its error, or at once one that says what is wrong
// with r. Each of its statements is a transaction, of four round trips.
func Run(ctx context.Context, db DB, r outbox.Relay) error {
	tell := func(s engine.Stats, published, err error) {
		if r.Done != nil {
			r.Done(ctx, outbox.Stats(s), cmp.Or(wrapped("relay", err), wrapped("publish", published)))
		}
	}
	err := options(r).Run(ctx, pg.WriterSQLAlone(db), pg.WriterSQL(db), tell)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("outboxsql: run: %w", err)
	}
	return err
}

// Drain is [outbox.Relay.Drain]: it publishes until nothing is due.
func Drain(ctx context.Context, db DB, r outbox.Relay) (outbox.Stats, error) {
	e, err := options(r).Relay()
	if err != nil {
		return outbox.Stats{}, fmt.Errorf("outboxsql: drain: %w", err)
	}
	s, published, err := e.New(pg.WriterSQLAlone(db), pg.WriterSQL(db)).Drain(ctx)
	return outbox.Stats(s), cmp.Or(wrapped("drain", err), wrapped("publish", published))
}

// Lag is [outbox.Table.Lag]: it counts what waits, and reads all of the table.
func Lag(ctx context.Context, db Conn, t outbox.Table) (outbox.Lag, error) {
	s, err := statements(t)
	if err != nil {
		return outbox.Lag{}, wrapped("lag", err)
	}
	l, err := s.Lag(ctx, pg.FromSQL(db))
	return outbox.Lag(l), wrapped("lag", err)
}

// Parked is [outbox.Table.Parked]: it lists parked events, the oldest first, at most limit.
func Parked(ctx context.Context, db Conn, t outbox.Table, limit int) ([]outbox.Event, error) {
	s, err := statements(t)
	if err != nil {
		return nil, wrapped("parked", err)
	}
	found, err := s.Parked(ctx, pg.FromSQL(db), limit)
	return events(found), wrapped("parked", err)
}

// Retry is [outbox.Table.Retry]: it makes parked events due again; all of them if no id is given.
func Retry(ctx context.Context, db DB, t outbox.Table, ids ...string) (int64, error) {
	s, err := statements(t)
	if err != nil {
		return 0, wrapped("retry", err)
	}
	n, err := s.Retry(ctx, pg.WriterSQL(db), ids...)
	return n, wrapped("retry", err)
}

// Discard is [outbox.Table.Discard]: it deletes parked events, which are never published.
func Discard(ctx context.Context, db DB, t outbox.Table, ids ...string) (int64, error) {
	s, err := statements(t)
	if err != nil {
		return 0, wrapped("discard", err)
	}
	n, err := s.Discard(ctx, pg.WriterSQL(db), ids...)
	return n, wrapped("discard", err)
}

// Migrate is [outbox.Migrate]: it makes the tables, or brings them up to this library's version; with none given, the
// zero Table.
func Migrate(ctx context.Context, db DB, tables ...outbox.Table) error {
	return wrapped("migrate", engine.Tables().MigrateAll(ctx, pg.WriterSQL(db), names(tables)...))
}

// Verify is [outbox.Verify]: it proves from the catalog that each table can be an outbox.
func Verify(ctx context.Context, db Conn, tables ...outbox.Table) error {
	return wrapped("verify", engine.Tables().VerifyAll(ctx, pg.FromSQL(db), names(tables)...))
}

func names(tables []outbox.Table) []string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.Name
	}
	return all
}

func events(found []engine.Event) []outbox.Event {
	all := make([]outbox.Event, len(found))
	for i, e := range found {
		all[i] = outbox.Event(e)
	}
	return all
}

func wrapped(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("outboxsql: %s: %w", what, err)
}
