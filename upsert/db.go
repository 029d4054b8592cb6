package upsert

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/internal/pg"
)

// DB is what a statement needs of a connection: a pgx.Tx, *pgx.Conn, *pgxpool.Conn or *pgxpool.Pool, or what [SQL]
// returns.
//
// The transaction belongs to the caller: nothing here begins, commits or rolls back (except [Verify], which undoes its
// own probe). Outside a transaction each statement is one of its own.
type DB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// SQL adapts database/sql: a *sql.Tx, *sql.Conn, *sql.DB, or anything with their two methods (sqlx, GORM's ConnPool).
// Any driver for PostgreSQL will do; pgx/stdlib and lib/pq are tested.
//
// Use the result in this package only: it answers a batch with an error.
func SQL(q interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
},
) DB {
	return sqlDB{q}
}

type sqlDB struct{ q pg.SQL }

func (sqlDB) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return noResults{} }

var errAdapterOnly = errors.New("upsert: what upsert.SQL returns serves this package alone; use the database/sql " +
	"handle itself")

// noResults is the answer to a batch that was not sent.
type noResults struct{ pgx.BatchResults }

func (noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errAdapterOnly }
func (noResults) Query() (pgx.Rows, error)         { return nil, errAdapterOnly }
func (noResults) QueryRow() pgx.Row                { return noRow{} }
func (noResults) Close() error                     { return errAdapterOnly }

type noRow struct{}

func (noRow) Scan(...any) error { return errAdapterOnly }

func connOf(db DB) (pg.Conn, error) {
	switch d := db.(type) {
	case nil:
		return nil, errors.New("upsert: the database handle is nil")
	case sqlDB:
		if d.q == nil {
			return nil, errors.New("upsert: the database handle is nil")
		}
		return pg.FromSQL(d.q), nil
	}
	return pg.FromPgx(db), nil
}

// unnamed is a connection whose Query does not prepare: see [bulk].
type unnamed struct {
	pg.Conn
	q interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
}

// withoutPlan returns conn with a Query whose plan is made for its parameters and not kept, where that can be had.
func withoutPlan(db DB, conn pg.Conn) pg.Conn {
	u := unnamed{Conn: conn}
	var ok bool
	if u.q, ok = db.(interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}); !ok {
		return conn
	}
	// The simple protocol keeps no plans either, and was chosen because something in between speaks no other.
	if mode, ok := execMode(db); !ok || mode == pgx.QueryExecModeSimpleProtocol {
		return conn
	}
	return u
}

// execMode asks for methods, not for types, so that a wrapper of a transaction or a pool counts as well.
func execMode(db DB) (mode pgx.QueryExecMode, ok bool) {
	switch d := db.(type) {
	case interface{ Conn() *pgx.Conn }:
		if conn := d.Conn(); conn != nil {
			return conn.Config().DefaultQueryExecMode, true
		}
	case interface{ Config() *pgx.ConnConfig }:
		return d.Config().DefaultQueryExecMode, true
	case interface{ Config() *pgxpool.Config }:
		return d.Config().ConnConfig.DefaultQueryExecMode, true
	}
	return 0, false
}

func (u unnamed) Query(
	ctx context.Context, query string, args []any, row func(scan func(dest ...any) error) error,
) error {
	rows, err := u.q.Query(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(pg.Scanner(rows)); err != nil {
			return err
		}
	}
	return rows.Err()
}
