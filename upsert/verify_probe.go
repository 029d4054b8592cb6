package upsert

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

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
		if err := p.copied(ctx, conn, writer{p: p}.target()); err != nil {
			return err
		}
		var text string
		if err := conn.Send(ctx, &pg.Stmt{
			SQL: catalogSQL, Args: []any{"pg_temp.pgonce_probe"},
			Dest: []any{&text},
		}); err != nil {
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

// copied makes a temporary copy of the table with one unique index.
func (p *plan) copied(ctx context.Context, conn pg.Conn, target string) error {
	err := conn.Send(ctx, &pg.Stmt{SQL: "CREATE TEMPORARY TABLE pgonce_probe (LIKE " + p.table.Quoted() + ")"})
	if err != nil {
		return err
	}
	err = conn.Send(ctx, &pg.Stmt{SQL: "CREATE UNIQUE INDEX pgonce_probe_target ON pg_temp.pgonce_probe " + target})
	if state := sqlState(err); strings.HasPrefix(state, "42") && state != "42501" {
		return targetError{err}
	}
	return err
}

// comparePredicates asks PostgreSQL whether an ON CONFLICT clause with the plan's predicate finds an index with this
// other one, and whether the other way round too, so that both mean the same rows.
func (p *plan) comparePredicates(ctx context.Context, db DB, other string) (infers, equal bool, err error) {
	if infers, err = p.infers(ctx, db, other, p.where); err == nil && infers {
		equal, err = p.infers(ctx, db, p.where, other)
	}
	return infers, equal, err
}

// noArbiter is invalid_column_reference: there is no unique index that fits an ON CONFLICT clause.
const noArbiter = "42P10"

// infers asks whether an ON CONFLICT clause with the predicate asked finds a unique index with the predicate indexed.
func (p *plan) infers(ctx context.Context, db DB, indexed, asked string) (bool, error) {
	err := undone(ctx, db, func(conn pg.Conn) error {
		if err := p.copied(ctx, conn, p.targetWhere(indexed)); err != nil {
			return err
		}
		_, err := p.explained(ctx, conn, "pg_temp.pgonce_probe", p.targetWhere(asked))
		return err
	})
	if sqlState(err) == noArbiter {
		return false, nil
	}
	return err == nil, err
}

// targetWhere returns the target with another predicate.
func (p *plan) targetWhere(predicate string) string {
	return writer{p: &plan{keys: p.keys, where: predicate}}.target()
}

// explained asks PostgreSQL to plan a write with this target, which does nothing, and returns the table that would be
// written.
func (p *plan) explained(ctx context.Context, conn pg.Conn, table, target string) (pg.Name, error) {
	columns := strings.Join(writer{p: p}.columns(), ", ")
	var text string
	err := conn.Send(ctx, &pg.Stmt{
		Dest: []any{&text},
		SQL: "EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) INSERT INTO " + table + " AS t (" + columns + ") SELECT " +
			columns + " FROM " + table + " AS s ON CONFLICT " + target + " DO NOTHING",
	})
	if err != nil {
		return pg.Name{}, err
	}
	var plans []struct {
		Plan struct {
			Schema string
			Table  string `json:"Relation Name"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) == 0 {
		return pg.Name{}, errors.Join(errors.New("PostgreSQL's plan cannot be read"), err)
	}
	return pg.Name{Schema: plans[0].Plan.Schema, Table: plans[0].Plan.Table}, nil
}

// undone runs fn in a transaction, or under a savepoint where db is one, and rolls back.
func undone(ctx context.Context, db DB, fn func(pg.Conn) error) (err error) {
	// Also when ctx is done by then: what is left open would keep the caller's connection.
	undo := func(rollback func(context.Context) error) {
		clean, cancel := pg.Detached(ctx)
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
			return conn.Send(ctx, &pg.Stmt{SQL: "ROLLBACK TO SAVEPOINT pgonce_probe"},
				&pg.Stmt{SQL: "RELEASE SAVEPOINT pgonce_probe"})
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
