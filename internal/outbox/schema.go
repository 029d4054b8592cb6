package outbox

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

//go:embed sql/0001.sql
var table0001 string

// migrations returns the SQL of one version after the other, the first of version 1.
func migrations(name pg.Name) []string {
	// Pinned, for a CHECK or an index keeps for ever what was found for its operators at its creation.
	return []string{render(name, pg.Pin(table0001))}
}

// DDL returns the statements that make the tables.
func DDL(name pg.Name) string { return strings.Join(migrations(name), "\n") }

// lockSQL lets one migration run at a time. The id is the first eight bytes of SHA-256("pgonce outbox migrate").
// Why not rely on IF NOT EXISTS: PostgreSQL looks and creates in two steps, so that one of two sessions at once
// fails.
var lockSQL = pg.Pin(`SELECT pg_advisory_xact_lock($1::int8)`)

const lockID int64 = 0x267215c45b6ac5cf

// Migrate makes or updates the tables, in the caller's transaction, which must be READ COMMITTED. It returns the
// problems of a table that it cannot change.
func Migrate(ctx context.Context, tx pg.Conn, names ...pg.Name) ([]Problem, error) {
	if problems, err := server(ctx, tx); err != nil || len(problems) > 0 {
		return problems, err
	}
	if err := tx.Send(ctx, &pg.Stmt{SQL: lockSQL, Args: []any{lockID}}); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var all []Problem
	for _, name := range names {
		r, err := lookUp(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		if r != nil && r.version() == 0 {
			// Not ours: nothing of it is changed.
			all = append(all, Problem{
				name.String(), notOurs, "a table of this name is there, and Migrate did not make it",
				"-- give the outbox another name",
			})
			continue
		}
		steps := migrations(name)
		for version := r.version() + 1; version <= len(steps); version++ {
			if err := run(ctx, tx, steps[version-1]); err != nil {
				return nil, fmt.Errorf("table %s: version %d: %w", name, version, err)
			}
		}
		problems, err := Verify(ctx, tx, name)
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
func (r *relation) version() int {
	var v int
	if r == nil {
		return 0
	}
	if _, err := fmt.Sscanf(r.comment, "pgonce outbox table, version %d", &v); err != nil {
		return 0
	}
	return v
}
