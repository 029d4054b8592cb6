package idemsql

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/internal/tables"
)

// Migrate is [dedup.Migrate] over database/sql: it makes the tables, or brings them up to this library's version. It
// owns one READ COMMITTED transaction. Safe for concurrent use.
func Migrate(ctx context.Context, db DB, all ...dedup.Table) error {
	problems, err := tables.Migrate(ctx, pg.WriterSQL(db), below(all))
	if err := verified(problems, err); err != nil {
		return fmt.Errorf("idemsql: migrate: %w", err)
	}
	return nil
}

// Verify is [dedup.Verify] over database/sql: it proves from the catalog that each table backs its keys. Call it on the
// connections that claim. Safe for concurrent use if db is.
func Verify(ctx context.Context, db Conn, all ...dedup.Table) error {
	problems, err := tables.Verify(ctx, pg.FromSQL(db), below(all))
	if err := verified(problems, err); err != nil {
		return fmt.Errorf("idemsql: verify: %w", err)
	}
	return nil
}

// below returns the tables for the engine.
func below(all []dedup.Table) []tables.Table {
	s := make([]tables.Table, len(all))
	for i, t := range all {
		s[i] = tables.Table{
			Name: t.Name, Layout: schema.Layout(t.Layout),
			Retention: t.Retention, Resends: t.Resends, ShortRetention: t.ShortRetention,
			Spread: schema.Spread(t.Spread),
		}
	}
	return s
}

// verified returns err, or a *dedup.VerifyError where there are problems.
func verified(problems []schema.Problem, err error) error {
	if err != nil || len(problems) == 0 {
		return err
	}
	e := &dedup.VerifyError{}
	for _, p := range problems {
		one := dedup.Problem{Table: p.Table, Message: p.Message, Fix: p.Fix}
		if err := one.Kind.UnmarshalText([]byte(p.Kind)); err != nil {
			return err
		}
		e.Problems = append(e.Problems, one)
	}
	return e
}
