package inboxsql

import (
	"context"

	"github.com/pgonce/pgonce/dedup/inbox"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Migrate is [inbox.Migrate]: it makes the table, or brings it up to this library's version; with none given, the zero
// Table.
func Migrate(ctx context.Context, db DB, tables ...inbox.Table) error {
	return wrapped("migrate", engine.Tables().MigrateAll(ctx, pg.WriterSQL(db), names(tables)...))
}

// Verify is [inbox.Verify]: it proves from the catalog that each table can be an inbox.
func Verify(ctx context.Context, db Conn, tables ...inbox.Table) error {
	return wrapped("verify", engine.Tables().VerifyAll(ctx, pg.FromSQL(db), names(tables)...))
}

func names(tables []inbox.Table) []string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.Name
	}
	return all
}

// Depth is [inbox.Table.Depth]: it counts what is not finished.
func Depth(ctx context.Context, db Conn, t inbox.Table) (inbox.Depth, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return inbox.Depth{}, wrapped("depth", err)
	}
	d, err := s.Depth(ctx, pg.FromSQL(db))
	return inbox.Depth(d), wrapped("depth", err)
}

// List is [inbox.Table.List]: it returns messages, the first stored first, at most limit.
func List(ctx context.Context, db Conn, t inbox.Table, f inbox.Filter, limit int) ([]inbox.Message, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return nil, wrapped("list", err)
	}
	found, err := s.List(ctx, pg.FromSQL(db), filter(f), limit)
	all := make([]inbox.Message, len(found))
	for i, m := range found {
		all[i] = message(m)
	}
	return all, wrapped("list", err)
}

// Replay is [inbox.Table.Replay]: it makes messages due again, dead ones if f says nothing else.
func Replay(ctx context.Context, db Conn, t inbox.Table, f inbox.Filter) (int64, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return 0, wrapped("replay", err)
	}
	n, err := s.Replay(ctx, pg.FromSQL(db), aloneOf(db), filter(f))
	return n, wrapped("replay", err)
}

// Discard is [inbox.Table.Discard]: it gives dead messages up.
func Discard(ctx context.Context, db DB, t inbox.Table, f inbox.Filter) (int64, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return 0, wrapped("discard", err)
	}
	n, err := s.Discard(ctx, pg.WriterSQL(db), filter(f))
	return n, wrapped("discard", err)
}

// Purge is [inbox.Table.Purge]: it deletes what t's Keep and KeepBodies say.
func Purge(ctx context.Context, db DB, t inbox.Table) (inbox.Purged, error) {
	p, err := engine.Table(t).Purge(ctx, pg.WriterSQLAlone(db))
	return inbox.Purged(p), wrapped("purge", err)
}

func filter(f inbox.Filter) engine.Filter {
	return engine.Filter{
		State: engine.State(f.State), Source: f.Source, Operation: f.Operation, IDs: f.IDs, ErrorClass: f.ErrorClass,
		ReceivedAfter: f.ReceivedAfter, ReceivedBefore: f.ReceivedBefore,
	}
}
