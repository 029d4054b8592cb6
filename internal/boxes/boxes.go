// Package boxes is what the tables of the inbox and of the outbox share: how they are migrated, and what is asked of
// the catalog about them. What is a table's own its engine says, as a [Kind].
package boxes

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// Kind is a kind of table.
type Kind struct {
	Noun   string // "inbox": in the comment of the table, which states its version
	Things string // what it holds: "messages"
	Done   string // what becomes of them: "handled"
	Torn   string // what is lost where Citus commits on other nodes and then not on this one

	Lock    int64 // lets one migration run at a time
	Session bool  // whether VerifyAll asks the session, too

	Parse  func(name string) (pg.Name, error)
	Steps  func(name pg.Name) []string // the SQL of one version after the other, the first of version 1
	Verify func(ctx context.Context, conn pg.Conn, name pg.Name) ([]schema.Problem, error)
}

// DDL returns the statements that make a table.
func (k Kind) DDL(name pg.Name) string { return strings.Join(k.Steps(name), "\n") }

// lockSQL lets one migration run at a time. Why not rely on IF NOT EXISTS: PostgreSQL looks and creates in two steps,
// so that one of two sessions at once fails.
var lockSQL = pg.Pin(`SELECT pg_advisory_xact_lock($1::int8)`)

// MigrateAll migrates tables in a transaction of its own, which must be READ COMMITTED, and verifies them in it; the
// default one where none is given. Its error is a *dedup.VerifyError where there are problems.
func (k Kind) MigrateAll(ctx context.Context, db pg.DB, tables ...string) error {
	all, err := k.names(tables)
	if err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	problems, err := k.migrate(ctx, tx, all...)
	if err == nil {
		err = verifyError(problems)
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

// VerifyAll verifies tables; the default one where none is given. Its error is a *dedup.VerifyError where there are
// problems.
func (k Kind) VerifyAll(ctx context.Context, conn pg.Conn, tables ...string) error {
	all, err := k.names(tables)
	if err != nil {
		return err
	}
	problems, err := schema.Server(ctx, conn)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return verifyError(problems)
	}
	if k.Session {
		if problems, err = schema.Session(ctx, conn); err != nil {
			return err
		}
	}
	for _, name := range all {
		p, err := k.Verify(ctx, conn, name)
		if err != nil {
			return err
		}
		problems = append(problems, p...)
	}
	return verifyError(problems)
}

func (k Kind) names(tables []string) ([]pg.Name, error) {
	if len(tables) == 0 {
		tables = []string{""}
	}
	all := make([]pg.Name, len(tables))
	for i, t := range tables {
		name, err := k.Parse(t)
		if err != nil {
			return nil, err
		}
		all[i] = name
	}
	return all, nil
}

// migrate makes or updates the tables. It returns the problems of a table that it cannot change.
func (k Kind) migrate(ctx context.Context, tx pg.Conn, names ...pg.Name) ([]schema.Problem, error) {
	if problems, err := schema.Server(ctx, tx); err != nil || len(problems) > 0 {
		return problems, err
	}
	if err := tx.Send(ctx, &pg.Stmt{SQL: lockSQL, Args: []any{k.Lock}}); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var all []schema.Problem
	for _, name := range names {
		r, err := lookUp(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		if r != nil && k.version(r) == 0 {
			// Not ours: nothing of it is changed.
			all = append(all, schema.Problem{
				Table: name.String(), Kind: notOurs, Message: "a table of this name is there, and Migrate did not make it",
				Fix: "-- give the " + k.Noun + " another name",
			})
			continue
		}
		steps := k.Steps(name)
		for version := k.version(r) + 1; version <= len(steps); version++ {
			if err := run(ctx, tx, steps[version-1]); err != nil {
				return nil, fmt.Errorf("table %s: version %d: %w", name, version, err)
			}
		}
		problems, err := k.Verify(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, problems...)
	}
	return all, nil
}

// run sends the statements of a file one by one: a driver in extended mode takes one a message.
func run(ctx context.Context, tx pg.Conn, file string) error {
	for _, sql := range strings.SplitAfter(file, ";\n") {
		if strings.TrimSpace(sql) == "" {
			continue
		}
		if err := tx.Send(ctx, &pg.Stmt{SQL: sql}); err != nil {
			return err
		}
	}
	return nil
}

// version reads the version from the table's comment; 0 where there is no table, or no version of ours.
func (k Kind) version(r *relation) int {
	var v int
	if r == nil {
		return 0
	}
	if _, err := fmt.Sscanf(r.comment, "pgonce "+k.Noun+" table, version %d", &v); err != nil {
		return 0
	}
	return v
}

// verifyError returns nil for no problems.
func verifyError(problems []schema.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	e := &dedup.VerifyError{}
	for _, p := range problems {
		found := dedup.Problem{Table: p.Table, Message: p.Message, Fix: p.Fix}
		if err := found.Kind.UnmarshalText([]byte(p.Kind)); err != nil {
			return err
		}
		e.Problems = append(e.Problems, found)
	}
	return e
}
