package pgerr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// IgnoreDuplicate runs fn under a savepoint of tx and takes a unique violation (23505) of this constraint, and of no
// other, for success.
//
//   - fn returns nil: false, nil. Its work is part of tx.
//   - fn returns the violation: true, nil. All that fn did is rolled back, also what it did before that statement.
//   - fn returns another error: rolled back to the savepoint, and false with that error, unchanged.
//   - fn panics, or ends its goroutine: rolled back to the savepoint, and the panic goes on.
//
// tx can then go on, unless the connection was lost; the caller commits it or rolls it back. An insert in fn waits for
// an open transaction that has inserted the same row: true if that commits, false if it rolls back.
//
// The name is read as by [Duplicate], with two differences, looked up after the violation in one round trip. The
// constraint of a partition counts as that of its root. A name without a schema means the constraint that the search
// path finds, or the only one in the database. What cannot be a name is an error, and fn is not called.
//
// True does not say that the row holds what fn would have written; at REPEATABLE READ and above the transaction may not
// see it. False may not be the last word: a constraint that is INITIALLY DEFERRED fails the COMMIT with 23505. SET
// CONSTRAINTS ... IMMEDIATE at the end of fn brings it forward.
//
// fn must work on the tx that it is given, whose Commit and Rollback refuse, leave it open, and close its rows. If it
// returns nil although a statement of it failed, or it called Commit or Rollback, that is an error, and it is rolled
// back.
//
// Rolling back does not depend on ctx, and takes 5 seconds at most; if it fails, the connection is closed. The
// savepoint is always released. For many messages in one transaction ON CONFLICT DO NOTHING is cheaper: more than 64
// savepoints with writes slow the whole server down.
func IgnoreDuplicate(
	ctx context.Context, tx pgx.Tx, constraint string, fn func(ctx context.Context, tx pgx.Tx) error,
) (duplicate bool, err error) {
	want, err := parseName(constraint)
	if err != nil {
		return false, fmt.Errorf("pgerr: the constraint's name: %w", err)
	}
	if _, err := tx.Exec(ctx, savepointSQL); err != nil {
		return false, fmt.Errorf("pgerr: set a savepoint: %w", err)
	}

	own := &ownedTx{Tx: tx}
	returned := false
	defer func() {
		// Why not recover and panic again: the stack of the first panic would be lost, and runtime.Goexit not seen.
		if !returned {
			_ = undo(ctx, tx, rollbackToSQL+releaseSQL)
		}
	}()
	fnErr := fn(ctx, own)
	returned = true

	if fnErr == nil {
		if err := own.release(ctx); err != nil {
			_ = undo(ctx, tx, rollbackToSQL+releaseSQL)
			return false, err
		}
		return false, nil
	}
	return settle(ctx, tx, want, fnErr)
}

// The savepoint has one fixed name. A nested call hides it, and shows it again when it returns: each call releases its
// own savepoint, or closes the connection. Why not tx.Begin: pgx cannot release a savepoint after it rolled back to
// it, so that every duplicate would leave one more level behind.
const (
	savepointSQL  = `SAVEPOINT pgerr_ignore_duplicate`
	rollbackToSQL = `ROLLBACK TO SAVEPOINT pgerr_ignore_duplicate;`
	releaseSQL    = `RELEASE SAVEPOINT pgerr_ignore_duplicate;`
)

// undoTimeout bounds the roll back, which runs without the caller's deadline.
const undoTimeout = 5 * time.Second

// undo rolls back to the savepoint by sql, or closes the connection.
func undo(ctx context.Context, tx pgx.Tx, sql string) error {
	// A roll back with a context that is done would not be sent, and the caller's COMMIT would keep what fn did.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	_, err := tx.Exec(ctx, sql)
	if err == nil {
		return nil
	}
	// The connection of a pool's transaction that has ended serves somebody else by now.
	if !errors.Is(err, pgx.ErrTxClosed) {
		_ = tx.Conn().Close(ctx)
	}
	return err
}

// settle ends a call whose fn returned fnErr.
func settle(ctx context.Context, tx pgx.Tx, want name, fnErr error) (duplicate bool, err error) {
	f := inspect(fnErr)
	if !f.uniqueOnly() {
		if err := undo(ctx, tx, rollbackToSQL+releaseSQL); errors.Is(err, pgx.ErrTxClosed) {
			return false, fmt.Errorf("pgerr: fn ended the caller's transaction: %w", fnErr)
		}
		return false, fnErr
	}

	// The lookup runs before the savepoint is released, so that the transaction outlives a failure of it.
	if err := undo(ctx, tx, rollbackToSQL); err != nil {
		return false, fmt.Errorf("pgerr: roll back to the savepoint, after fn failed with 23505: %w", err)
	}
	duplicate, err = want.confirm(ctx, tx, f.server)
	if err := undo(ctx, tx, rollbackToSQL+releaseSQL); err != nil {
		return false, fmt.Errorf("pgerr: release the savepoint, after fn failed with 23505: %w", err)
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("pgerr: look up the constraint that fn failed on with 23505: %w", err)
	case duplicate:
		return true, nil
	}
	return false, fnErr
}

// uniqueOnly reports whether the tree holds unique violations and no other trouble.
func (f *findings) uniqueOnly() bool {
	for _, e := range f.server {
		if e.code != UniqueViolation {
			return false
		}
	}
	return len(f.server) > 0 && !f.unclear()
}

// confirm reports whether each of the errors names the constraint or, of a partition, one that is part of it.
func (n name) confirm(ctx context.Context, tx pgx.Tx, violations []serverError) (bool, error) {
	for _, e := range violations {
		if n.schema != "" && n.names(e) {
			continue
		}
		// Without its schema the index cannot be told from one of the same name; PostgreSQL always sends it.
		if e.schema == "" || e.constraint == "" {
			return false, nil
		}
		var same bool
		err := tx.QueryRow(ctx, sameConstraintSQL, e.schema, e.constraint, n.schema, n.constraint).Scan(&same)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// sameConstraintSQL climbs from the index that was violated ($1 schema, $2 name) to the root of its partition tree, and
// looks for the wanted name ($3 schema or ”, $4 name) on the way. A constraint and its index have one name, and
// renaming one renames the other. The cast to name cuts like the server does, in the database's encoding.
const sameConstraintSQL = `
WITH RECURSIVE up AS (
    SELECT c.oid, c.relname, n.nspname
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text::name AND c.relname = $2::text::name AND c.relkind IN ('i', 'I')
    UNION ALL
    SELECT c.oid, c.relname, n.nspname
      FROM up
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
)
SELECT EXISTS (
    SELECT 1
      FROM up
     WHERE up.relname = $4::text::name
       AND CASE WHEN $3::text <> '' THEN up.nspname = $3::text::name
                ELSE pg_catalog.pg_table_is_visible(up.oid) OR NOT EXISTS (
                    SELECT 1
                      FROM pg_catalog.pg_class c
                      JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
                     WHERE c.relname = up.relname AND c.oid <> up.oid AND i.indisunique)
           END
)`

var errOwned = errors.New("pgerr: the transaction belongs to the caller of IgnoreDuplicate, who ends it")

// ownedTx is the transaction as fn sees it: without an end.
type ownedTx struct {
	pgx.Tx
	asked bool // for its end
}

func (t *ownedTx) Commit(context.Context) error {
	t.asked = true
	return errOwned
}

func (t *ownedTx) Rollback(context.Context) error {
	t.asked = true
	return errOwned
}

// release keeps what fn did, if fn may have that.
func (t *ownedTx) release(ctx context.Context) error {
	if t.asked {
		return errOwned
	}
	_, err := t.Exec(ctx, releaseSQL)
	switch {
	case err == nil:
		return nil
	case Is(err, InFailedSQLTransaction):
		return fmt.Errorf("pgerr: fn returned nil although a statement of it had failed: %w", err)
	}
	return fmt.Errorf("pgerr: release the savepoint: %w", err)
}
