// Package schema makes and checks the dedup tables: DDL, migrations and the proofs of Verify, over either driver. The
// front doors are dedup (pgx) and idemsql (database/sql).
package schema

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// The files are valid SQL as they stand; see [pg.Marker].
var (
	//go:embed sql/0001_plain.sql
	plain0001 string
	//go:embed sql/0001_hash.sql
	hash0001 string
	//go:embed sql/0001_hash_leaf.sql
	hashLeaf0001 string
	//go:embed sql/0001_weekly.sql
	weekly0001 string
	//go:embed sql/0002_plain.sql
	plain0002 string
	//go:embed sql/0003_token.sql
	token0003 string
)

// migrations returns the SQL of one version after the other, the first of version 1; empty where a version has nothing
// for the layout.
func (t Table) migrations() []string {
	// Pinned, for a CHECK or a default keeps for ever what was found for its operators and functions at its creation.
	on := func(sql string) string { return t.Name.Into(pg.Pin(sql)) }
	n := t.Layout.Partitions()
	switch {
	case t.Layout == Weekly:
		return []string{on(weekly0001), "", on(strings.Replace(token0003, "layout plain", "layout weekly", 1))}
	case n == 0:
		return []string{on(plain0001), on(plain0002), on(token0003)}
	}
	var b strings.Builder
	b.WriteString(on(hash0001))
	for i := range n {
		b.WriteString(hashLeaf(t.Name, int64(n), int64(i)))
	}
	return []string{b.String(), "", on(strings.Replace(token0003, "layout plain", "layout hash", 1))}
}

// DDL returns the statements that make the table, every version's, in order.
func DDL(t Table) string {
	all := slices.DeleteFunc(append(t.migrations(), t.spreading()), func(sql string) bool { return sql == "" })
	return strings.Join(all, "\n")
}

// lockSQL lets one migration run at a time in a database. The id is the first eight bytes of SHA-256("pgonce
// migrate"), less the sign. Why not rely on IF NOT EXISTS: PostgreSQL looks and creates in two steps, so that of
// several sessions at once all but one fail with 23505 on an index of pg_catalog (pg_type_typname_nsp_index).
var lockSQL = pg.Pin(`SELECT pg_advisory_xact_lock($1::int8)`)

const lockID int64 = 0x1b2ed6e2c30d6515

// tablespaceSQL takes away a default_tablespace that is the database's own: PostgreSQL makes no partitioned table
// with it, and without it makes the same.
var tablespaceSQL = pg.Pin(`
SELECT set_config('default_tablespace'::text, ''::text, true)
  FROM pg_catalog.pg_database AS d
  JOIN pg_catalog.pg_tablespace AS s ON s.oid = d.dattablespace
 WHERE d.datname = current_database() AND s.spcname::text = current_setting('default_tablespace'::text)`)

// Migrate makes or updates the tables, in the caller's transaction, which must be READ COMMITTED: a snapshot taken
// before the wait for the lock would not show what the holder made. It returns the problems of a table that it cannot
// mend.
func Migrate(ctx context.Context, tx pg.Conn, tables ...Table) ([]Problem, error) {
	if err := tx.Send(ctx, &pg.Stmt{SQL: lockSQL, Args: []any{lockID}}); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := tx.Send(ctx, &pg.Stmt{SQL: tablespaceSQL}); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		problems, err := migrateAll(ctx, tx, tables)
		if !pgerr.Is(err, "55P03") || try == lockTries {
			return problems, err
		}
		// Claims that have waited behind the lock pass meanwhile, and so do those that Migrate holds up on the other tables.
		if again := tx.Send(ctx, &pg.Stmt{SQL: backSQL}); again != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPause):
		}
	}
}

// A change of a table in use waits for its lock for lockTimeout, lockTries times, and lets claims pass in between:
// behind a lock that is waited for, every claim waits.
const (
	lockTimeout = "1s"
	lockTries   = 30
	lockPause   = 300 * time.Millisecond

	saveSQL    = `SAVEPOINT pgonce_migrate`
	backSQL    = `ROLLBACK TO SAVEPOINT pgonce_migrate`
	releaseSQL = `RELEASE SAVEPOINT pgonce_migrate`
	limitSQL   = `SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.set_config('lock_timeout', $1::text, true)`
	unlimitSQL = `SELECT pg_catalog.set_config('lock_timeout', $1::text, true)`
)

func migrateAll(ctx context.Context, tx pg.Conn, tables []Table) ([]Problem, error) {
	if err := tx.Send(ctx, &pg.Stmt{SQL: saveSQL}); err != nil {
		return nil, err
	}
	for _, t := range tables {
		problems, err := migrate(ctx, tx, t)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", t.Name, err)
		}
		if len(problems) > 0 {
			return problems, nil
		}
	}
	return nil, tx.Send(ctx, &pg.Stmt{SQL: releaseSQL})
}

// limited calls f with a limit to its waits for locks. A smaller one of the session's is replaced, too: Migrate tries
// again.
func limited(ctx context.Context, tx pg.Conn, f func() error) error {
	var old, now string
	if err := tx.Send(ctx, &pg.Stmt{SQL: limitSQL, Args: []any{lockTimeout}, Dest: []any{&old, &now}}); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return tx.Send(ctx, &pg.Stmt{SQL: unlimitSQL, Args: []any{old}, Dest: []any{&now}})
}

func migrate(ctx context.Context, tx pg.Conn, t Table) ([]Problem, error) {
	found, err := lookUp(ctx, tx, t.Name)
	if err != nil {
		return nil, err
	}
	from := 0
	if found.here != nil {
		// Asked before anything is created: IF NOT EXISTS looks into the first schema of the search path only, and would
		// put a second, empty table before one that holds keys. It also needs CREATE on the schema, for nothing.
		if problems := found.place(t); len(problems) > 0 {
			return problems, nil
		}
		from = found.here.version()
	}
	migrations := t.migrations()
	for version := from + 1; version <= len(migrations); version++ {
		if found.here != nil && from == 0 {
			break // not ours: Verify says whether it will do
		}
		change := func() error { return run(ctx, tx, migrations[version-1]) }
		if found.here == nil {
			err = change()
		} else {
			err = limited(ctx, tx, change)
		}
		if err != nil {
			return nil, fmt.Errorf("version %d: %w", version, err)
		}
	}
	if t.Layout == Weekly {
		if problems, err := migrateWeeks(ctx, tx, t); err != nil || len(problems) > 0 {
			return problems, err
		}
	}
	if found.here == nil {
		// One with keys is for its owner to move: claims would wait for as long as that takes.
		if err := spread(ctx, tx, t); err != nil {
			return nil, err
		}
	}
	problems, err := Verify(ctx, tx, t)
	return slices.DeleteFunc(problems, func(p Problem) bool { return bearable(p, t) }), err
}

// migrateWeeks makes the partitions of a table of layout Weekly, new or not, unless it is another one.
func migrateWeeks(ctx context.Context, tx pg.Conn, t Table) ([]Problem, error) {
	found, err := lookUp(ctx, tx, t.Name)
	if err != nil {
		return nil, err
	}
	if problems := found.place(t); len(problems) > 0 {
		return problems, nil
	}
	by, _, err := partitioningOf(ctx, tx, found.here.oid)
	if err != nil {
		return nil, err
	}
	v := verifier{table: found.here.name(t.Name.Table), layout: t.Layout}
	if !v.partitioned(by) {
		return v.problems, nil
	}
	t.Name = v.table
	_, err = MakeWeeks(ctx, tx, t, found.here.oid)
	return nil, err
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
	var layout string
	var v int
	if _, err := fmt.Sscanf(r.comment, "pgonce dedup table, layout %s version %d", &layout, &v); err != nil {
		return 0
	}
	return v
}
