package upsert

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
)

// targetError says that the target itself is wrong.
type targetError struct{ error }

// probe makes an index of the conflict target on a temporary copy of the table, and returns how PostgreSQL writes its
// expressions and its predicate: the one way to compare them with those of an index without a parser.
func (p *plan) probe(ctx context.Context, db DB) (*index, error) {
	var found *index
	err := undone(ctx, db, func(conn pg.Conn) error {
		var text string
		err := conn.Send(ctx, &pg.Stmt{SQL: "CREATE TEMPORARY TABLE pgonce_probe (LIKE " + p.table.Quoted() + ")"})
		if err != nil {
			return err
		}
		err = conn.Send(ctx, &pg.Stmt{SQL: "CREATE UNIQUE INDEX pgonce_probe_target ON pg_temp.pgonce_probe " + (writer{p: p}).target()})
		var state interface{ SQLState() string }
		if errors.As(err, &state) && strings.HasPrefix(state.SQLState(), "42") && state.SQLState() != "42501" {
			return targetError{err}
		}
		if err != nil {
			return err
		}
		if err := conn.Send(ctx, &pg.Stmt{SQL: catalogSQL, Args: []any{"pg_temp.pgonce_probe"}, Dest: []any{&text}}); err != nil {
			return err
		}
		var c catalog
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return err
		}
		if len(c.Indexes) != 1 {
			return fmt.Errorf("the probe found %d indexes where it made one", len(c.Indexes))
		}
		found = &c.Indexes[0]
		return nil
	})
	return found, err
}

// undone runs fn in a transaction, or under a savepoint where db is one, and rolls back.
func undone(ctx context.Context, db DB, fn func(pg.Conn) error) (err error) {
	// Also when ctx is done by then: what is left open would keep the caller's connection.
	undo := func(rollback func(context.Context) error) {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if failed := rollback(clean); failed != nil && err == nil {
			err = failed
		}
	}
	if q, ok := db.(sqlDB); ok {
		if b, ok := q.q.(interface {
			BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
		}); ok {
			tx, err := b.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer undo(func(context.Context) error { return tx.Rollback() })
			return fn(pg.FromSQL(tx))
		}
		conn := pg.FromSQL(q.q)
		if err := conn.Send(ctx, &pg.Stmt{SQL: "SAVEPOINT pgonce_probe"}); err != nil {
			return err
		}
		defer undo(func(ctx context.Context) error {
			return conn.Send(ctx, &pg.Stmt{SQL: "ROLLBACK TO SAVEPOINT pgonce_probe"}, &pg.Stmt{SQL: "RELEASE SAVEPOINT pgonce_probe"})
		})
		return fn(conn)
	}
	b, ok := db.(interface {
		Begin(context.Context) (pgx.Tx, error)
	})
	if !ok {
		return errors.New("the database handle has no Begin method, which a target with an expression or a predicate needs")
	}
	tx, err := b.Begin(ctx)
	if err != nil {
		return err
	}
	defer undo(tx.Rollback)
	return fn(pg.FromPgx(tx))
}
