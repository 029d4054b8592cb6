package idemsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// Migrate is [dedup.Migrate] over database/sql: it makes the tables, or brings them up to the version of this library;
// with none given, the zero Table. It owns one READ COMMITTED transaction, in which it holds an advisory lock, so that
// several processes may call it at once. It ends with the checks of [Verify], and returns their *[dedup.VerifyError] for a
// table that it cannot mend; then, as on any other error, nothing is changed. Safe for concurrent use.
func Migrate(ctx context.Context, db DB, tables ...dedup.Table) (err error) {
	all, err := resolve(tables)
	if err != nil {
		return fmt.Errorf("idemsql: migrate: %w", err)
	}
	if pg.SQLInTx(db) {
		return errors.New("idemsql: migrate: the connection is in a transaction already")
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("idemsql: migrate: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	problems, err := schema.Migrate(ctx, pg.FromSQL(tx), all...)
	if err == nil {
		err = verifyError(problems)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("idemsql: migrate: %w", err)
	}
	return nil
}

// Verify is [dedup.Verify] over database/sql: it proves from the catalog that each table backs its keys; with none given,
// the zero Table. It returns nil when it does, a *[dedup.VerifyError] with every problem where not, and any other error
// when it could not ask. It reads pg_catalog only, and answers for the current role and search path: call it on the
// connections that claim, at the start of the program or in its tests. Safe for concurrent use where db is.
func Verify(ctx context.Context, db Conn, tables ...dedup.Table) error {
	resolved, err := resolve(tables)
	if err != nil {
		return fmt.Errorf("idemsql: verify: %w", err)
	}
	var all []schema.Problem
	for i, t := range resolved {
		problems, err := schema.Verify(ctx, pg.FromSQL(db), t)
		if err != nil {
			return fmt.Errorf("idemsql: verify: %w", err)
		}
		all = append(all, problems...)
		if len(tables) > 0 && !tables[i].ShortRetention {
			all = append(all, schema.Window(t.Name, t.Retention, tables[i].Resends)...)
		}
	}
	problems, err := schema.Session(ctx, pg.FromSQL(db))
	if err != nil {
		return fmt.Errorf("idemsql: verify: %w", err)
	}
	all = append(all, problems...)
	if err := verifyError(all); err != nil {
		return fmt.Errorf("idemsql: verify: %w", err)
	}
	return nil
}

func resolve(tables []dedup.Table) ([]schema.Table, error) {
	if len(tables) == 0 {
		tables = []dedup.Table{{}}
	}
	all := make([]schema.Table, len(tables))
	for i, t := range tables {
		if err := t.Validate(); err != nil {
			return nil, err
		}
		all[i] = schema.Table{Name: pg.Name{Table: schema.DefaultTable}, Layout: schema.Layout(t.Layout), Retention: t.Retention}
		if t.Retention == 0 {
			all[i].Retention = dedup.DefaultRetention
		}
		if t.Name != "" {
			name, err := pg.ParseName(t.Name)
			if err != nil {
				return nil, err
			}
			all[i].Name = name
		}
	}
	return all, nil
}

// verifyError returns nil for no problems.
func verifyError(problems []schema.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	e := &dedup.VerifyError{}
	for _, p := range problems {
		e.Problems = append(e.Problems, dedup.Problem(p))
	}
	return e
}
