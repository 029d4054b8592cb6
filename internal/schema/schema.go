// Package schema makes and checks the dedup tables: DDL, migrations and the proofs of Verify, over either driver. The
// front doors are dedup (pgx) and idemsql (database/sql).
package schema

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// DefaultTable is the table of a Table without a name.
const DefaultTable = "processed_events"

// The files are valid SQL as they stand. The text behind marker is replaced by the table's quoted name.
const marker = "/*table*/processed_events"

//go:embed sql/0001_plain.sql
var plain0001 string

//go:embed sql/0002_plain.sql
var plain0002 string

// migrations holds one file a version, the first of version 1.
var migrations = []string{plain0001, plain0002}

func on(sql string, name pg.Name) string { return strings.ReplaceAll(sql, marker, name.Quoted()) }

// DDL returns the statements that make the table, every version's, in order.
func DDL(name pg.Name) string { return on(strings.Join(migrations, "\n"), name) }

// lockSQL lets one migration run at a time in a database. The id is the first eight bytes of SHA-256("pgonce migrate"), less the sign.
// Why not rely on IF NOT EXISTS: PostgreSQL looks and creates in two steps, so that of several sessions at once all but
// one fail with 23505 on an index of pg_catalog (pg_type_typname_nsp_index).
const lockSQL = `SELECT pg_advisory_xact_lock($1::int8)`

const lockID int64 = 0x1b2ed6e2c30d6515

// Migrate makes or updates the tables, in the caller's transaction, which must be READ COMMITTED: a snapshot taken
// before the wait for the lock would not show what the holder made. It returns the problems of a table that it cannot mend.
func Migrate(ctx context.Context, tx pg.Conn, names ...pg.Name) ([]Problem, error) {
	if err := tx.Send(ctx, &pg.Stmt{SQL: lockSQL, Args: []any{lockID}}); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	for _, name := range names {
		problems, err := migrate(ctx, tx, name)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		if len(problems) > 0 {
			return problems, nil
		}
	}
	return nil, nil
}

func migrate(ctx context.Context, tx pg.Conn, name pg.Name) ([]Problem, error) {
	found, err := lookUp(ctx, tx, name)
	if err != nil {
		return nil, err
	}
	from := 0
	if found.here != nil {
		// Asked before anything is created: IF NOT EXISTS looks into the first schema of the search path only, and would
		// put a second, empty table before one that holds keys. It also needs CREATE on the schema, for nothing.
		if problems := found.place(name); len(problems) > 0 {
			return problems, nil
		}
		from = found.here.version()
	}
	for version := from + 1; version <= len(migrations); version++ {
		if found.here != nil && from == 0 {
			break // not ours: Verify says whether it will do
		}
		if err := run(ctx, tx, on(migrations[version-1], name)); err != nil {
			return nil, fmt.Errorf("version %d: %w", version, err)
		}
	}
	return Verify(ctx, tx, name)
}

// run sends the statements of a file one by one: a driver in extended mode takes one a message. The files hold no
// semicolon but at the end of a statement.
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

// version reads the version from the table's comment; 0 where it has none of ours.
func (r *relation) version() int {
	_, after, ok := strings.Cut(r.comment, "pgonce dedup table, layout plain, version ")
	if !ok {
		return 0
	}
	var v int
	if _, err := fmt.Sscanf(after, "%d", &v); err != nil {
		return 0
	}
	return v
}
