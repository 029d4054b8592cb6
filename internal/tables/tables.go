// Package tables makes, verifies and maintains the dedup tables, over either driver. Its front doors are dedup (pgx)
// and idemsql (database/sql). They bring settings and connections, and give its answers the types of their users.
package tables

import (
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// DefaultRetention is the retention of a table that states none.
const DefaultRetention = 35 * 24 * time.Hour

// Table is a dedup.Table, as its user wrote it.
type Table struct {
	Name           string
	Layout         schema.Layout
	Retention      time.Duration
	Resends        time.Duration
	ShortRetention bool
	Spread         schema.Spread
}

// Resolve validates t and returns what the engine knows it by.
func (t Table) Resolve() (schema.Table, error) {
	s := schema.Table{Layout: t.Layout, Retention: t.Retention, Spread: t.Spread}
	switch {
	case !s.Layout.Known():
		return schema.Table{}, errors.New("the table's layout is unknown")
	case !s.Spread.Known():
		return schema.Table{}, errors.New("the table is to be spread by what is not key, source or schema")
	case t.Retention < 0:
		return schema.Table{}, errors.New("the table's retention is negative")
	case t.Resends < 0:
		return schema.Table{}, errors.New("the time for which the table's sender resends is negative")
	}
	if t.Retention == 0 {
		s.Retention = DefaultRetention
	}
	var err error
	s.Name, err = pg.TableName(t.Name)
	if err == nil && s.Spread == schema.SpreadBySchema && s.Name.Schema == "" {
		err = errors.New("the table is spread by its schema, and its name has none")
	}
	return s, err
}

// resolve resolves all tables; none given stand for the zero one.
func resolve(tables []Table) ([]schema.Table, error) {
	resolved := make([]schema.Table, len(tables))
	for i, t := range tables {
		var err error
		if resolved[i], err = t.Resolve(); err != nil {
			return nil, err
		}
	}
	return resolved, nil
}

// orZero returns the zero Table where none is given.
func orZero(tables []Table) []Table {
	if len(tables) == 0 {
		return []Table{{}}
	}
	return tables
}

// Migrate makes the tables or brings them up to date, in one transaction of db, which must be one of [pg.WriterPgx] or
// [pg.WriterSQL]. It returns the problems of a table that it cannot fix; then, as after an error, nothing is changed.
func Migrate(ctx context.Context, db pg.DB, tables []Table) ([]schema.Problem, error) {
	resolved, err := resolve(orZero(tables))
	if err != nil {
		return nil, err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	committed := false
	defer func() {
		if !committed {
			_ = tx.Rollback(ctx)
		}
	}()
	if problems, err := schema.Server(ctx, tx); err != nil || len(problems) > 0 {
		return problems, err
	}
	if problems, err := schema.Migrate(ctx, tx, resolved...); err != nil || len(problems) > 0 {
		return problems, err
	}
	committed = true
	return nil, tx.Commit(ctx)
}

// Verify returns everything that keeps the tables, and the settings of the session, from backing their keys.
func Verify(ctx context.Context, conn pg.Conn, tables []Table) ([]schema.Problem, error) {
	tables = orZero(tables)
	resolved, err := resolve(tables)
	if err != nil {
		return nil, err
	}
	// First, and alone: it may not know the catalog that the rest reads.
	all, err := schema.Server(ctx, conn)
	if err != nil || len(all) > 0 {
		return all, err
	}
	for i, t := range resolved {
		found, err := schema.Verify(ctx, conn, t)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		if !tables[i].ShortRetention {
			all = append(all, schema.Window(t.Name, t.Retention, tables[i].Resends)...)
		}
	}
	found, err := schema.Session(ctx, conn)
	return append(all, found...), err
}
