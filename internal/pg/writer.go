package pg

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errWriterInTx: a BEGIN inside of a transaction is only a warning, and the COMMIT would be the caller's.
var errWriterInTx = errors.New("the connection is in a transaction already")

// WriterPgx adapts a pool or connection for transactions of pgonce's own: READ COMMITTED and READ WRITE, whatever the
// session's defaults are.
func WriterPgx(db PgxDB) DB { return pgxWriter{db} }

type pgxWriter struct{ db PgxDB }

func (pgxWriter) NeedsMark() bool { return false }

func (w pgxWriter) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if PgxInTx(w.db) {
		return nil, errWriterInTx
	}
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return FromPgxDB(w.db, opts).Begin(ctx, stmts...)
}

// WriterSQL is [WriterPgx] for database/sql, whose options cannot ask for READ WRITE: a statement of its own does.
func WriterSQL(db SQLDB) DB {
	return sqlWriter{FromSQLDB(db, sql.TxOptions{Isolation: sql.LevelReadCommitted}), db}
}

type sqlWriter struct {
	DB
	db SQLDB
}

func (w sqlWriter) Begin(ctx context.Context, stmts ...*Stmt) (OwnTx, error) {
	if SQLInTx(w.db) {
		return nil, errWriterInTx
	}
	return w.DB.Begin(ctx, append([]*Stmt{{SQL: `SET TRANSACTION READ WRITE`}}, stmts...)...)
}

// WriterPgxAlone is [FromPgxAlone], whatever the session's defaults are: each Send and each Query is a READ COMMITTED
// and READ WRITE transaction, in one round trip.
//
// Why not a batch that begins a pgx.Tx: a pool would get its connection back only with a round trip more.
func WriterPgxAlone(db PgxDB) Conn { return pgxWriterAlone{db} }

type pgxWriterAlone struct{ db PgxDB }

func (c pgxWriterAlone) Send(ctx context.Context, stmts ...*Stmt) error {
	return c.alone(ctx, func(b *pgx.Batch) { queue(b, stmts...) })
}

func (c pgxWriterAlone) Query(
	ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error,
) error {
	return c.alone(ctx, func(b *pgx.Batch) { queueQuery(b, sql, args, row) })
}

func (c pgxWriterAlone) alone(ctx context.Context, fill func(b *pgx.Batch)) error {
	if PgxInTx(c.db) {
		return errWriterInTx
	}
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed read write`)
	fill(b)
	b.Queue(`commit`).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := c.db.SendBatch(ctx, b).Close()
	if err != nil && PgxInTx(c.db) {
		// A pool closes a connection that comes back in a transaction; a lone one stays in it.
		ctx, cancel := Detached(ctx)
		defer cancel()
		end := &pgx.Batch{}
		end.Queue(`rollback`)
		_ = c.db.SendBatch(ctx, end).Close()
	}
	return WithoutDetail(err)
}

// WriterSQLAlone is [WriterPgxAlone] for database/sql.
func WriterSQLAlone(db SQLDB) Conn { return sqlAlone{WriterSQL(db)} }
